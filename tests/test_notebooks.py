"""The notebooks run from top to bottom, and a cell whose kernel was interrupted is continued when it is run again."""

import contextlib
import json
import re
import sqlite3
import sys
import time
from functools import partial
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel

from hoptimizer.common.paths import home

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import notebooks  # the command that keeps in them what they show

EXAMPLES = Path(__file__).parents[1] / "examples"
# Of the model that every test has: what differs is how it draws.
MODELS = """
MODELS = ["{model: local/smollm2-135m-instruct, temperature: %s}" % heat for heat in (0.0, 0.5, 1.0)]
QUESTIONS = 3
"""


executed = partial(notebooks.run, longest=550)


def read(name):
    return nbformat.read(EXAMPLES / name, as_version=4)


def shown(notebook):
    """Everything that the cells printed or displayed as text."""
    return "\n".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs(notebook))


def views(notebook):
    """The tables that the cells displayed."""
    return "\n".join(output.get("data", {}).get("text/html", "") for output in outputs(notebook))


def columns(notebook):
    """The columns of these tables."""
    return re.findall(r'<th [^>]*class="col_heading[^>]*>([^<]*)<', views(notebook))


def outputs(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a home of its own, whose weights are the shared ones: nothing is known from earlier runs."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "models").symlink_to(home() / "models")
    monkeypatch.setenv("HOPTIMIZER_HOME", str(tmp_path / "home"))
    return tmp_path


def test_a_program_is_compiled_for_a_data_set_of_ones_own(folder):
    for name in ("handbook", "handbook-questions.csv"):
        (folder / name).symlink_to(EXAMPLES / name)
    kept = read("own_data.ipynb")
    notebook = executed(read("own_data.ipynb"), folder)
    assert columns(kept) == columns(notebook), "benchmarks/notebooks.py keeps in it what its cells show"
    text = shown(notebook)
    assert "20 passages of 20 documents" in text
    assert "- Alma: The Alma is the oldest vessel" in text
    assert re.search(r"documents: +100%", text), "progress is shown"
    assert re.search(r"compiled on dev: +100%", text)
    assert "rag, before compiling" in views(notebook)
    assert "paired over 18 questions" in views(notebook)


def with_models_that_are_here(notebook):
    [parameters] = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ())]
    parameters.source = MODELS
    return notebook


def test_three_language_models_are_compared(folder):
    notebook = executed(with_models_that_are_here(read("three_models.ipynb")), folder)
    tables = views(notebook)
    # What sets the variants apart is a column: there the model, here its temperature.
    kept = set(columns(read("three_models.ipynb"))) - {"LM"}
    assert kept, "benchmarks/notebooks.py keeps in it what its cells show"
    assert kept <= set(columns(notebook))
    assert "n = 3</caption>" in tables, "the evaluation of the first"
    rows = re.findall(r">{model: local/smollm2[^<]*<", tables)
    assert len(rows) >= 3 + 3, "their means and differences, and what they cost"


@pytest.mark.slow(reason="the notebook as it stands: three models of up to 1.5 billion parameters")
def test_three_language_models_are_compared_as_the_notebook_stands(folder):
    assert "local/qwen2.5-coder-1.5b-instruct" in views(executed(read("three_models.ipynb"), folder))


COMPILE = """
import json, hoptimizer
words = ["data=atlas", "data.train=8", "data.dev=4", "program=rag", "retriever=bm25", "retriever.k=2", "workers=2",
         "optimizer.num_candidate_programs=2", "optimizer.max_bootstrapped_demos=2", "optimizer.max_labeled_demos=2",
         "lm.default.max_tokens=16", "optimizer.prompt_formats=[plain]"]
variant = hoptimizer.compile_variant(hoptimizer.load_config(None, words))
run = hoptimizer.Tracker("sqlite:///mlflow.db", "atlas").get(variant.run_id)
print(json.dumps({"run": variant.run_id, "status": run.info.status}))
print(len(hoptimizer.Tracker("sqlite:///mlflow.db", "atlas").runs()))
"""


def finished_calls(folder):
    """Language model calls that are kept."""
    count = 0
    for shard in (folder / "home" / "work").glob("*/calls/*/cache.db"):
        # One that is just being made has no table yet, or is locked: what it holds is counted the next time.
        with contextlib.suppress(sqlite3.OperationalError), sqlite3.connect(shard, timeout=0.01) as connection:
            count += connection.execute("select count(*) from Cache").fetchone()[0]
    return count


def test_a_kernel_that_is_interrupted_in_a_compile_continues_it(folder):
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(folder))
    try:
        client.execute(COMPILE, stop_on_error=False)  # or the kernel drops what is sent right after the interruption
        deadline = time.monotonic() + 300
        while finished_calls(folder) < 8:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        manager.interrupt_kernel()
        ended = client.get_shell_msg(timeout=60)["content"]
        assert (ended["status"], ended["ename"]) == ("error", "KeyboardInterrupt")
        kept = finished_calls(folder)
        printed = []
        client.execute_interactive(
            COMPILE, timeout=300, output_hook=lambda message: printed.append(message["content"].get("text", ""))
        )
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    told = "".join(printed)
    result = json.loads(re.search(r"^{.*}$", told, re.MULTILINE)[0])
    assert kept >= 8
    assert result["status"] == "FINISHED"
    assert told.splitlines()[-1] == "1", "the run that was interrupted is the one that is finished"
