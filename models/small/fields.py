"""A step's inputs and outputs as the texts that small models read and write."""

from collections.abc import Mapping, Sequence
from typing import Any

from hoptimizer.common.errors import UserError


def texts(inputs: Mapping[str, Any], fields: Sequence[str]) -> list[str]:
    """The input fields as texts, in order; a list has one item on each line.

    Raises:
        UserError: a field is missing.
    """
    missing = [field for field in fields if field not in inputs]
    if missing:
        raise UserError(f"the small model reads {', '.join(fields)}, and {missing[0]!r} was not given")
    return [_text(inputs[field]) for field in fields]


def pair(inputs: Mapping[str, Any], fields: Sequence[str]) -> tuple[str, str | None]:
    """The inputs as an encoder reads them: the first field, and all others joined by line breaks."""
    first, *rest = texts(inputs, fields)
    return first, "\n".join(rest) if rest else None


def prompt(inputs: Mapping[str, Any], fields: Sequence[str], output: str) -> str:
    """The inputs as a generator reads them: each field after its name, and the output's name last."""
    lines = [f"{_name(field)}: {text}" for field, text in zip(fields, texts(inputs, fields), strict=True)]
    return "\n".join([*lines, f"{_name(output)}:"])


def written(output: str | Sequence[str]) -> str:
    """An output as a generator writes it: a list has one item on each line."""
    return output.strip() if isinstance(output, str) else "\n".join(" ".join(item.split()) for item in output)


def parse(text: str, listed: bool) -> str | list[str]:
    """What a generator wrote as the output's type: a text, or the lines that are not empty."""
    return [line.strip() for line in text.splitlines() if line.strip()] if listed else text.strip()


def _text(value: Any) -> str:  # noqa: ANN401 - any field of any signature
    if isinstance(value, (list, tuple)):
        return "\n".join(str(item) for item in value)
    return str(value)


def _name(field: str) -> str:
    return field.replace("_", " ").capitalize()
