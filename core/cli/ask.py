"""``hop ask``."""

import io
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from hoptimizer.cli.screen.console import show, tell, working
from hoptimizer.cli.screen.options import Json, Overrides, RunOption, check_parts, config_of

# What may stand in a question's place where none is given: key=value, or a config file.
_SETTING = re.compile(r"[~+]*(\w+)[\w.~+-]*=|\S+\.ya?ml$")


def ask_command(
    question: Annotated[
        str | None, typer.Argument(help="The question; without one, questions are read until the end of the input.")
    ] = None,
    overrides: Overrides = None,
    run: RunOption = None,
    as_json: Json = False,
) -> None:
    """Answer a question, and show the steps and the passages that led to the answer.

    Without a question it is a chat: models and index are loaded once, and each line that you enter is a question. An
    empty line ends it, as Ctrl-D does. With --json, each answer is one line. A word with "=" is a setting if it begins
    with a section of the config, as data=atlas does, or has no space; any other is the question.

    Examples:

        hop ask "Who painted the Mona Lisa?" data=atlas program=ircot

        hop ask "Who painted the Mona Lisa?" --run 1f2e3d

        hop ask data=atlas program=ircot
    """
    from hoptimizer.common.errors import UserError
    from hoptimizer.common.urls import line_without_secrets

    words = list(overrides or ())
    if question is not None and _is_setting(question):
        spoken = next((word for word in words if not _is_setting(word)), None)  # it may stand behind the config
        words, question = [word for word in (question, *words) if word != spoken], spoken
    if question is not None and not question.strip():
        raise UserError("question: expected some words, got none")
    with working() as report:
        run, config = config_of(run, words, splits=())
        check_parts(config, skipped={"judge"})
        from hoptimizer.workbench import Workbench

        bench = Workbench(config, report)
        tell(bench.summary(run_id=run))
        with bench.active():
            program = _variant(bench, run) if run else bench.program()
    if question is not None:
        _answer(bench, program, question, as_json)
        return
    for line in _lines():
        try:
            _answer(bench, program, line, as_json)
        except UserError as error:  # the next question may be answered
            tell(f"hop: {line_without_secrets(error)}")


def _is_setting(word: str) -> bool:
    from hoptimizer.config import Config

    found = _SETTING.match(word)
    return found is not None and (found[1] in Config.model_fields or len(word.split()) == 1)


def _variant(bench: Any, run: str) -> Any:  # noqa: ANN401 - imported late
    from hoptimizer.compiled import program_of  # brings MLflow
    from hoptimizer.tracking.journal import store_of
    from hoptimizer.tracking.tracker import Tracker

    config = bench.config
    return program_of(bench, Tracker(store_of(config.tracking.uri, run), config.experiment), run)


def _answer(bench: Any, program: Any, question: str, as_json: bool) -> None:  # noqa: ANN401 - imported late
    from hoptimizer.answers import answer_all
    from hoptimizer.cli.screen import answers

    with working(), bench.active():
        [result] = answer_all(program, [question])
    show(result, as_json, *answers.answer(question, result, _titles(bench, result["steps"])))


def _titles(bench: Any, steps: Sequence[dict[str, Any]]) -> dict[str, str]:  # noqa: ANN401 - imported late
    """The titles of all passages that were found, by their id."""
    corpus = bench.data.corpus
    found = {id for step in steps for id in step["outputs"].get("passages") or ()}
    return {id: corpus[id].title for id in found if corpus and id in corpus}


def _lines() -> Iterator[str]:
    """Questions as they are entered or piped in, until an empty line of a terminal or the end of the input."""
    asking = sys.stdin.isatty()
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # a line that is no text is refused alone
    while True:
        if asking:
            sys.stderr.write("? ")
            sys.stderr.flush()
        line = sys.stdin.readline()
        if not line or (asking and not line.strip()):
            return
        if line.strip():
            yield line.strip()
