"""What is kept of a long run: its calls in memory, its predictions in the store."""

import dspy
import pytest
from chat_server import ChatServer
from dspy.clients import base_lm

from hoptimizer import Tracker, UserError, Workbench, load_config, workbench
from hoptimizer.eval import Evaluation, Question, evaluate
from hoptimizer.eval.runner import QuestionResult
from hoptimizer.models import usage
from hoptimizer.tracking.artifacts import DECIMALS, PART, log_evaluation
from hoptimizer.tracking.naming import parts_tag, predictions_file

ANSWER = "[[ ## answer ## ]]\nLyon\n\n[[ ## completed ## ]]"


@pytest.fixture(autouse=True)
def dspy_as_it_was(monkeypatch):
    monkeypatch.setattr(dspy, "cache", dspy.cache)
    monkeypatch.setattr(base_lm, "MAX_HISTORY_SIZE", base_lm.MAX_HISTORY_SIZE)
    monkeypatch.setattr(base_lm, "GLOBAL_HISTORY", [])


def test_the_latest_calls_alone_are_held_in_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOPTIMIZER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(workbench, "HISTORY", 3)
    monkeypatch.setattr(usage, "_IN_MEMORY", 3)
    with ChatServer(answer=lambda _: ANSWER) as server:
        lm = [f"lm.default.api_base={server.url}", "lm.default=openai/scripted"]
        bench = Workbench(load_config(None, ["data=atlas", "program=direct", *lm]))
        before = len(dspy.settings.trace)
        with bench.active():
            evaluate(
                bench.program(), [Question(id=str(i), question=f"Where is {i}?", answers=["Lyon"]) for i in range(8)]
            )
            held = len(base_lm.GLOBAL_HISTORY), len(bench.lms["default"].history), len(dspy.cache.memory_cache)
    assert held == (3, 3, 3)
    assert len(dspy.settings.trace) == before


def test_predictions_of_many_questions_are_tables_that_mlflows_page_can_open(tmp_path):
    rows = [
        QuestionResult(Question(id=f"q{n}", question="Where?", answers=["There"]), "There", [], {"f1": n / 3}, [])
        for n in range(2 * PART + 1)
    ]
    tracker = Tracker(f"sqlite:///{tmp_path}/mlflow.db", "many")
    with tracker.run("eval", "many") as run:
        log_evaluation(Evaluation(rows, seconds=1.0), "dev", "after")
    files = [predictions_file("dev", "after", part) for part in (1, 2, 3)]
    sizes = [len(tracker.client.load_table(run.info.experiment_id, file, [run.info.run_id])) for file in files]
    assert sizes == [PART, PART, 1]
    read = tracker.predictions(run.info.run_id, "dev").table
    assert list(read["id"]) == [row.question.id for row in rows]
    assert list(read["f1"]) == [round(row.scores["f1"], DECIMALS) for row in rows]


@pytest.mark.parametrize("parts", ["0", "-1", "many", "9" * 5000])
def test_a_number_of_parts_that_is_none_is_one_line(tmp_path, parts):
    rows = [QuestionResult(Question(id="q", question="Where?", answers=["There"]), "There", [], {"f1": 1.0}, [])]
    tracker = Tracker(f"sqlite:///{tmp_path}/mlflow.db", "strange")
    with tracker.run("eval", "strange") as run:
        log_evaluation(Evaluation(rows, seconds=1.0), "dev", "after")
    tracker.client.set_tag(run.info.run_id, parts_tag("dev", "after"), parts)
    with pytest.raises(UserError, match="expected a number of files"):
        tracker.predictions(run.info.run_id, "dev")
