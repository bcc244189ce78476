"""The built wheel in an environment of its own: all that a user of ``pip install hoptimizer`` has."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LEFT = (".*", "build", "*.egg-info", "mlruns")

pytestmark = pytest.mark.slow(reason="minutes: installs all once more, as a user does, and runs the demo")


def run(*command, folder, **environment):
    result = subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


@pytest.fixture(scope="module")
def hop(tmp_path_factory):
    """``hop`` of the wheel, called in a folder where no file of the repository is."""
    folder = tmp_path_factory.mktemp("wheel")
    # A copy, since a build leaves files, and takes those that an earlier one left.
    source = shutil.copytree(ROOT, folder / "source", ignore=shutil.ignore_patterns(*LEFT))
    run(sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(source), folder=folder)
    [wheel] = folder.glob("*.whl")
    run(sys.executable, "-m", "venv", "venv", folder=folder)
    python = str(folder / "venv" / "bin" / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--constraint", str(ROOT / "constraints.txt")]
    run(*pip, "torch", folder=folder)
    run(*pip, str(wheel), folder=folder)
    shutil.rmtree(source)
    # Not the folder of this process, whose packages would be found first.
    clean = {"PYTHONPATH": "", "MLFLOW_TRACKING_URI": ""}
    return lambda *words: run(str(folder / "venv" / "bin" / "hop"), *words, folder=folder, **clean)


def test_a_user_who_installs_the_wheel_can_examine_it_and_run_the_demo(hop):
    assert "hoptimizer" in hop("--version")
    assert all(found["works"] for found in json.loads(hop("doctor", "--json"))["findings"])
    result = json.loads(hop("demo", "--json", "data.train=48", "data.dev=6", "data.test=6"))
    assert len(result["variants"]) == 9
    assert {variant["n"] for variant in result["variants"]} == {6}
