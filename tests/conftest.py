"""Fixtures that tests share."""

import gc
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):  # they share the cores; before torch counts them
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // int(workers))))

SMALL_LM = "local/smollm2-135m-instruct"
SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"


def pytest_configure():
    """Where a config names no language model, tests ask a small one, whose answers do for what is done with them.

    Commands that are run as processes of their own, such as those of the pages, ask the default one.
    """
    from hoptimizer import config

    config.DEFAULT_LM = SMALL_LM


@pytest.fixture
def published():
    """The folder of published data samples; tests that need it are skipped where it is absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"published samples are not at {SHARED_DATA}")
    return SHARED_DATA


@pytest.fixture(scope="session")
def checkpoint():
    """The folder by which a check of data counts tokens: a check fetches none, and a new machine has none."""
    from hoptimizer.eval.data_warnings import checkpoint_folder
    from hoptimizer.models.weights.store import pull

    pull("all-minilm-l6-v2")
    return checkpoint_folder("minilm")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A folder to work in, where a module's runs are kept."""
    folder = tmp_path_factory.mktemp("store")
    before = Path.cwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


@pytest.fixture
def _no_collection():
    """What an interruption raises within a callback of the garbage collector, of which hypothesis has one, is lost.

    Libraries collect by themselves, too, so that the callbacks are taken away.
    """
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    gc.disable()
    yield
    gc.enable()
    gc.callbacks.extend(callbacks)


@pytest.fixture(autouse=True)
def _no_inherited_tracking_uri():
    """MLflow leaves the store it was last pointed at in the environment, where later tests' commands would find it."""
    os.environ.pop("MLFLOW_TRACKING_URI", None)
