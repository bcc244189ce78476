"""What is kept of the calls of a long run, beside the cache on disk."""

import dspy
import pytest
from chat_server import ChatServer
from dspy.clients import base_lm

from hoptimizer import Workbench, load_config, workbench
from hoptimizer.eval import Question, evaluate
from hoptimizer.models import usage

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
