"""What is shown of texts of whatever origin."""

import io

import pytest
from rich.text import Text

from hoptimizer.cli.screen import answers
from hoptimizer.cli.screen.console import WIDTH, TextConsole, tell, working

HOSTILE = "[/b] :smile: [red]\x1b[2J\x1b]0;title\x07 \x9b31m \u202egnp.exe\u2066 \r\b Lyon"
SHOWN = "[/b] :smile: [red][2J]0;title 31m gnp.exe  Lyon"


@pytest.fixture(autouse=True)
def unknown_width(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)


def printed(*parts):
    file = io.StringIO()
    console = TextConsole(file)
    for part in parts:
        console.print(part)
    return " ".join(file.getvalue().split())


@pytest.mark.parametrize("part", [HOSTILE, Text(HOSTILE)])
def test_no_text_styles_what_is_shown_or_steers_the_terminal(part):
    assert printed(part) == " ".join(SHOWN.split())


def test_an_answer_and_its_passages_are_shown_as_they_are():
    record = {"step": "retrieve", "inputs": {"query": "[/b] who?"}, "outputs": {"passages": ["p"]}, "failure": None}
    result = {
        "answer": "[/red]\x1b[0m Lyon",
        "passages": [{"id": "p", "title": "[/i]\x1b[31mLyon", "text": "\x1b[2J"}],
        "steps": [record],
    }
    shown = printed(*answers.answer("[/b] who?", result))
    assert "\x1b" not in shown
    assert all(text in shown for text in ("[/b] who?", "[/i][31mLyon", "Answer: [/red][0m Lyon"))


def test_lines_and_stages_on_stderr_are_shown_as_they_are(capsys):
    tell("a file named \x1b[31m[/b]")
    with working() as report:
        report("scoring [/b]\x1b[31m", 0, 1, "")
    shown = capsys.readouterr().err
    assert "a file named [31m[/b]" in shown
    assert "scoring [/b][31m" in shown


def test_what_is_no_terminal_gets_whole_tables_unless_it_says_how_wide_it_is(monkeypatch):
    assert TextConsole(io.StringIO()).width == WIDTH
    monkeypatch.setenv("COLUMNS", "70")
    assert TextConsole(io.StringIO()).width == 70
