"""A stranger's mistakes: each ends in one line that names it, and its exit code, before anything slow is imported."""

import json
import subprocess
import sys

import pytest
from mistakes import MISTAKES, OUTAGES, write_files

from hoptimizer.cli import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with some files that are wrong."""
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "says", "code"),
    [*((*mistake, 2) for mistake in MISTAKES), *((*outage, 1) for outage in OUTAGES)],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else None,
)
def test_a_mistake_ends_in_one_line_and_its_exit_code(folder, monkeypatch, capsys, words, says, code):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr(sys, "argv", ["hop", *words])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    last = [line for line in err.splitlines() if line.startswith("hop: ")]
    assert (end.value.code, len(last)) == (code, 1), err
    for part in says:
        assert part in last[0], last[0]
    assert out == ""


# What takes seconds to import.
SLOW = ("torch", "transformers", "mlflow", "colbert", "pandas", "matplotlib", "scipy", "litellm")
# What is told by a program's class, which is a DSPy module, or by what is read after the whole config.
TOLD_BY_DSPY = (
    *("program.", "optimizer.", "optimizer=gepa ", "metric", "lm.raeder", "lm="),
    *("sqlite:", "no-such-checkpoint", "index build "),
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
    [((), SLOW, len(MISTAKES) + len(OUTAGES)), (TOLD_BY_DSPY, (*SLOW, "dspy"), 49)],
    ids=["before what takes seconds", "before DSPy"],
)
def test_mistakes_are_said_before_what_is_slow_to_import(folder, monkeypatch, later, slow, at_least):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    said = [words for words, _ in [*MISTAKES, *OUTAGES] if not any(told in f"{' '.join(words)} " for told in later)]
    assert len(said) >= at_least
    command = [sys.executable, "-c", PROGRAM, json.dumps([said, slow])]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
