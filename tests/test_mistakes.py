"""A stranger's mistakes: each ends in one line that names it, and exit code 2, before anything slow is imported."""

import json
import subprocess
import sys

import pytest

from hoptimizer.cli import main

FILES = {
    "list.yaml": "- data\n",
    "broken.yaml": "data: [\n",
    "file.jsonl": "{}\n",
    "taken/x": "",
    "grid.yaml": "base: {data: atlas}\ngird: {retriever.k: [1]}\n",
    "seeds.yaml": "base: {data: atlas}\nseeds: many\n",
}
MISTAKES = [
    (["compile"], ["data: required"]),
    (["compile", "nowhere.yaml"], ["nowhere.yaml", "no such config file"]),
    (["compile", "data=nowhere"], ["nowhere"]),
    (["compile", "data=some/nowhere"], ["nowhere", "no such folder"]),
    (["compile", "data=atlas", "program=irctt"], ["'irctt'", "did you mean 'ircot'"]),
    (["compile", "data=atlas", "optimizer=gepaa"], ["optimizer.name", "'gepaa'", "known:"]),
    (["compile", "data=atlas", "metric=f2"], ["metric", "'f2'"]),
    (["compile", "data=atlas", "wrong.key=1"], ["wrong", "unknown key"]),
    (["compile", "data=atlas", "--split", "tset"], ["'tset'", "split"]),
    (["compile", "data=atlas", "data.train=100000"], ["100000", "train"]),
    (["compile", "data=atlas", "data.train=0"], ["data.train"]),
    (["compile", "data=atlas", "data.train=-3"], ["data.train"]),
    (["compile", "data=atlas", "data.train=many"], ["data.train", "many"]),
    (["compile", "data=atlas", "program.max_stepps=3", "program=ircot"], ["max_stepps", "max_steps"]),
    (["compile", "data=atlas", "program=ircot", "program.max_steps=0"], ["program.max_steps"]),
    (["compile", "data=atlas", "program=ircot", "program.max_steps=two"], ["program.max_steps", "two"]),
    (["compile", "data=atlas", "program.reader=cott"], ["program.reader", "cott"]),
    (["compile", "data=atlas", "retriever=bm26"], ["retriever.name", "'bm26'"]),
    (["compile", "data=atlas", "retriever.k=0"], ["retriever.k"]),
    (["compile", "data=atlas", "optimizer=gepa", "program=direct"], ["lm.reflection"]),
    (["compile", "data=atlas", "optimizer.max_demos=2"], ["max_demos"]),
    (["compile", "data=atlas", "metric={f1: 1, lm_cals: -0.1}"], ["lm_cals"]),
    (["compile", "data=atlas", "metric={lm_calls: -0.1}"], ["metric", "f1"]),
    (["compile", "data=atlas", "metric=accuracy"], ["lm.judge"]),
    (["compile", "data=atlas", "lm.raeder=openai/x"], ["lm.raeder"]),
    (["compile", "data=atlas", "lm.default.temprature=1"], ["temprature", "temperature"]),
    (["compile", "data=atlas", "lm.default.temperature=hot"], ["lm.default.temperature", "hot"]),
    (["compile", "data=atlas", "lm.default.max_tokens=0"], ["max_tokens"]),
    (["compile", "data=atlas", "seed=-1"], ["seed"]),
    (["compile", "data=atlas", "seed=x"], ["seed"]),
    (["compile", "data=atlas", "workers=0"], ["workers"]),
    (["compile", "data=atlas", "max_unanswered=2"], ["max_unanswered"]),
    (["compile", "data=atlas", "data=", "program=direct"], ["data"]),
    (["compile", "data=atlas", "program=my.module:Thing"], ["my.module"]),
    (["compile", "a.yaml", "b.yaml"], ["b.yaml", "one config file"]),
    (["compile", "data=atlas", "key.=1"], ["key"]),
    (["compile", "data=atlas", "lm=local/no-such-model", "program=direct", "retriever=bm25"], ["no-such-model"]),
    (["compile", "data=atlas", "lm=gpt-4o", "program=direct"], ["gpt-4o"]),
    (["compile", "list.yaml"], ["list.yaml", "not a YAML mapping"]),
    (["compile", "broken.yaml"], ["broken.yaml", "not a YAML mapping"]),
    (["compile", "data=file.jsonl"], ["file.jsonl"]),
    (["eval", "data=atlas", "data.dev=1", "lm=local/no-such-model", "program=direct"], ["no-such-model"]),
    (["eval", "--run", "0" * 32], ["0" * 32, "hop compare"]),
    (["eval", "data=atlas", "data.dev=1", "program=direct", "tracking.uri=nonsense://x"], ["tracking.uri", "nonsense"]),
    (["eval", "data=atlas", "program.steps.reeder=x", "program=direct"], ["reeder"]),
    (["eval", "data=atlas", "data.dev=1", "program=direct", "program.steps.reader=./no-folder"], ["no-folder"]),
    (["compare", "data=atlas", "tracking.uri=sqlite:///new.db"], ["no run", "hop compile"]),
    (["compare", "grid.yaml", "1f2e"], ["grid.yaml", "give the file or the runs"]),
    (["compare", "nowhere.yaml"], ["nowhere.yaml", "no such config file"]),
    (["index", "info", "data=atlas", "retriever=hybrid", "retriever.of=[bm25, oracle]"], ["retriever.of: oracle"]),
    (["study", "nowhere.yaml"], ["nowhere.yaml", "no such config file"]),
    (["study", "a.yaml", "b.yaml"], ["b.yaml", "one study file"]),
    (["study", "grid.yaml"], ["gird"]),
    (["study", "seeds.yaml"], ["seeds"]),
    (["ask", " ", "data=atlas"], ["question"]),
    (["ask", "Who?"], ["data: required"]),
    (["ask", "data=nowhere"], ["nowhere"]),
    (["models", "pull", "smollm"], ["smollm"]),
    (["data", "check", "nowhere"], ["nowhere"]),
    (["data", "new", "taken"], ["taken"]),
    (["data", "import", "hotpot", "x.json", "--out", "o"], ["hotpotqa"]),
    (["data", "import", "hotpotqa", "x.json", "--out", "o"], ["x.json"]),
    (["data", "join", "atlas=x", "--out", "o"], ["atlas=x"]),
    (["index", "search", "x", "data=atlas", "retriever.name=bm26"], ["retriever.name", "'bm26'"]),
    (["index", "search", "x", "data=atlas", "retriever.checkpoint=no-such-checkpoint"], ["no-such-checkpoint"]),
    (["index", "info", "data=nowhere"], ["nowhere"]),
    (["doctor", "lm.default.modle=x"], ["modle"]),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with some files that are wrong."""
    (tmp_path / "taken").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("words", "says"), MISTAKES, ids=lambda value: " ".join(value)[:60])
def test_a_mistake_ends_in_one_line_and_exit_code_2(folder, monkeypatch, capsys, words, says):
    monkeypatch.setattr(sys, "argv", ["hop", *words])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    last = [line for line in err.splitlines() if line.startswith("hop: ")]
    assert (end.value.code, len(last)) == (2, 1), err
    for part in says:
        assert part in last[0], last[0]
    assert out == ""


# What takes seconds to import.
SLOW = ("torch", "transformers", "mlflow", "colbert", "pandas", "matplotlib", "scipy", "litellm")
# Only the provider tells that it has no key; it is asked once the store is open.
ASKED = ("lm=gpt-4o",)
# What is told by a program's class, which is a DSPy module, or by what is read after the whole config.
TOLD_BY_DSPY = (
    *("program.", "optimizer.", "optimizer=gepa ", "metric", "lm.raeder", "lm="),
    *("sqlite:", "study", "no-such-checkpoint"),
)
PROGRAM = """
import contextlib, io, json, sys
from hoptimizer.cli import main
mistakes, slow = json.loads(sys.argv[1])
for words in mistakes:
    sys.argv = ["hop", *words]
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        main()
    if brought := [name for name in slow if name in sys.modules]:
        sys.exit(f"{words} brought {brought}")
"""


@pytest.mark.parametrize(
    ("later", "slow", "at_least"),
    [(ASKED, SLOW, len(MISTAKES) - 1), (ASKED + TOLD_BY_DSPY, (*SLOW, "dspy"), 42)],
    ids=["before what takes seconds", "before DSPy"],
)
def test_mistakes_are_said_before_what_is_slow_to_import(folder, later, slow, at_least):
    said = [words for words, _ in MISTAKES if not any(told in f"{' '.join(words)} " for told in later)]
    assert len(said) >= at_least
    command = [sys.executable, "-c", PROGRAM, json.dumps([said, slow])]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
