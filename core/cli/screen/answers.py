"""Answers and labelled questions for people, without what takes seconds to import."""

from collections.abc import Mapping
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from hoptimizer.optimizers.labels.hop_labels import LabelledQuestion

# Of a step's texts, so much is shown: a title or a word may be a whole file. As JSON they are whole.
LONGEST = 5_000
# Of the text of a passage that an answer comes from, so much is shown.
SNIPPET = 160
# How what becomes of a passage is shown.
TAG_STYLES = {"continue": "green", "finish": "cyan", "terminate": "dim"}
_NO_ANSWER = Text("\nNo answer: the output of the language model could not be used.", style="bold red")


def answer(question: str, result: dict[str, Any], titles: Mapping[str, str] | None = None) -> list[RenderableType]:
    """An answer, the steps that led to it, and the passages that it came from with the start of their text.

    Args:
        question: what was asked.
        result: one of :func:`~hoptimizer.answers.answer_all`.
        titles: of the corpus's passages by their id, for those that were found and left out in the end.
    """
    steps = Table(header_style="bold", box=None, pad_edge=False)
    steps.add_column("step", no_wrap=True, overflow="fold")
    for heading in ("asked", "came out"):
        steps.add_column(heading, overflow="fold")
    titles = {**(titles or {}), **{passage["id"]: passage["title"] for passage in result["passages"]}}
    for record in result["steps"]:
        given = record["inputs"]
        asked = next(
            (given[name] for name in ("query", "thoughts", "known", "facts", "question") if given.get(name)), ""
        )
        out = record["outputs"]
        if record["step"] == "labeler":
            asked = "  " + titles.get(record["inputs"]["passage"], record["inputs"]["passage"])
            steps.add_row("", _cut(asked), record["failure"] or _labels(out))
            continue
        came = ", ".join(titles.get(id, id) for id in out["passages"]) if "passages" in out else _joined(out)
        steps.add_row(record["step"], _cut(asked), record["failure"] or _cut(came))
    passages = [
        Text.assemble("  ", (passage["title"] or passage["id"], "bold"), f"  {_snippet(passage['text'])}")
        for passage in result["passages"]
    ]
    read = [Text("\nfrom", style="dim"), *passages] if passages else []
    said = Text(f"\nAnswer: {result['answer']}", style="bold green") if result["answer"] else _NO_ANSWER
    return [Text(question, style="bold"), steps, *read, said]


def _labels(outputs: dict[str, Any]) -> Text:
    """What a labeler said of a passage."""
    overrides = _cut("".join(f" · {phrase}" for phrase in outputs["useful"] or ()))
    return Text.assemble((str(outputs["tag"]), TAG_STYLES.get(str(outputs["tag"]), "")), (overrides, "bold"))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _snippet(text: str) -> str:
    """The start of a passage, in one line."""
    return shorten(text, SNIPPET, placeholder=" …")


def _joined(outputs: dict[str, Any]) -> str:
    return " · ".join(str(value) for value in outputs.values() if value is not None)


def labels(shown: "LabelledQuestion") -> list[RenderableType]:
    """A labelled question: each hop's query, and its passage with the words that count marked."""
    lines: list[RenderableType] = [Text(shown.question, style="bold")]
    if shown.failure:
        lines.append(Text(f"  skipped: {shown.failure}", style="red"))
    for number, hop in enumerate(shown.hops, 1):
        after = f" after {' and '.join(str(place + 1) for place in hop.after)}" if hop.after else ""
        lines.append(Text.assemble(f"  {number}{after}  ", (hop.tag, TAG_STYLES[hop.tag]), f"  {hop.query}"))
        text = Text(hop.text)
        for start, end in hop.spans:
            text.stylize("black on yellow", start, end)
        lines.append(Padding(text, (0, 0, 0, 5)))
    return [*lines, Text()]
