"""Examples that are kept as they are made, so that a collection that was killed repeats none."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from dspy.utils.exceptions import DSPyError

from hoptimizer.eval.failures import one_line
from hoptimizer.models.errors import UserError
from hoptimizer.optimizers.examples import Example

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Wanted:
    """An example to be.

    Attributes:
        inputs: the signature's input fields; passages as texts.
        label: makes the example, whose inputs are these and perhaps further ones; ``None`` where no output that is
            usable comes out.
    """

    inputs: dict[str, str]
    label: Callable[[], Awaitable[Example | None]]


def collect(wanted: Sequence[Wanted], file: Path, workers: int, progress: Progress) -> list[Example]:
    """Label what is wanted, each once, concurrently; every row is in the file as soon as it is labelled.

    Args:
        wanted: all with the same input fields, in the order in which the examples are returned, whichever is labelled
            first; of several with the same inputs the first.
        file: JSON lines, ``inputs`` and ``output`` each; rows that it holds already are not labelled again.
        workers: labels under way at once.
        progress: told how many are labelled, of how many.

    Raises:
        UserError: a language model fails; the rows that were labelled stay.
    """
    unique: dict[str, Wanted] = {}
    for one in wanted:
        unique.setdefault(_key(one.inputs), one)
    names = wanted[0].inputs.keys() if wanted else ()
    kept = {key: example for key, example in _kept(file, names).items() if key in unique}
    missing = {key: one for key, one in unique.items() if key not in kept}
    file.parent.mkdir(parents=True, exist_ok=True)
    slots = asyncio.Semaphore(workers)
    with file.open("ab") as rows:

        async def label(key: str, one: Wanted) -> None:
            async with slots:
                try:
                    kept[key] = await one.label()
                except DSPyError as error:
                    raise failure(error, file) from error
            example = kept[key]
            row = {"inputs": example.inputs, "output": example.output} if example else {"inputs": one.inputs}
            rows.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            rows.flush()
            progress(len(kept), len(unique))

        async def label_all() -> None:
            async with asyncio.TaskGroup() as group:
                for key, one in missing.items():
                    group.create_task(label(key, one))

        try:
            asyncio.run(label_all())
        except BaseExceptionGroup as group:  # the end of a budget is no Exception
            raise group.exceptions[0] from None
    return [example for key in unique if (example := kept[key]) is not None]


def _kept(file: Path, names: Collection[str]) -> dict[str, Example | None]:
    """The rows of a file by the inputs that were wanted; what a killed process left of one is cut off."""
    if not file.exists():
        return {}
    rows = [json.loads(line) for line in whole_rows(file).splitlines()]
    return {
        _key({name: row["inputs"][name] for name in names}): Example(**row) if "output" in row else None for row in rows
    }


def whole_rows(file: Path) -> bytes:
    """The whole lines of a file, from which what a killed process left of one is cut off."""
    whole, end, _ = file.read_bytes().rpartition(b"\n")
    os.truncate(file, len(whole) + len(end))
    return whole


def _key(inputs: dict[str, str]) -> str:
    return json.dumps(inputs, sort_keys=True)


def failure(error: DSPyError, file: Path) -> UserError:
    """What to tell where a language model that labels can't be asked.

    Args:
        error: what it raised.
        file: the labels that are kept.
    """
    if isinstance(error.__cause__, UserError):  # the model could not be loaded
        return error.__cause__
    return UserError(
        f"{file.stem}: a language model failed: {one_line(error)}; what is labelled so far is kept: check the lm "
        "section and give the same command again"
    )
