"""What is shown of texts of whatever origin."""

import io

import pytest
from rich.text import Text

from hoptimizer.cli.screen import answers
from hoptimizer.cli.screen.console import WIDTH, TextConsole, tell, working
from hoptimizer.cli.screen.parts import Parts
from hoptimizer.eval.display.sheet import Sheet

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


@pytest.mark.parametrize("width", ["48", "60", "80", "100", "160"])
def test_no_column_of_a_wide_table_is_left_out_on_a_narrow_screen(monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    header = ["variant", "run", *(f"figure {number}" for number in range(9)), "difference [95% interval]"]
    rows = [
        [
            f"a variant of quite a long name {row}",
            f"run{row}",
            *(f"{row}{number}.25" for number in range(9)),
            "+2.1 [−3.0, 6.0]",
        ]
        for row in range(3)
    ]
    file = io.StringIO()
    TextConsole(file).print(Parts(Sheet("A title", header, 2, rows, note="A note of some words")))
    shown = file.getvalue()
    assert max(map(len, shown.splitlines())) <= int(width)
    assert all(text in shown for row in rows for text in row[1:])
    parts = shown.count("variant  ")
    assert parts == 1 if width == "160" else parts > 1
    assert (shown.count("A title"), shown.count("A note of some words")) == (1, 1)
