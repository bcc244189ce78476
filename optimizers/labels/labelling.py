"""Examples that are made concurrently, and written down as they are made."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dspy.utils.exceptions import DSPyError

from hoptimizer.common.errors import UserError
from hoptimizer.common.progress import Progress
from hoptimizer.eval.failures import one_line
from hoptimizer.optimizers.labels.examples import TrainingExample


@dataclass(frozen=True)
class PendingExample:
    """An example to be.

    Attributes:
        inputs: the signature's input fields; passages as texts.
        label: makes the example, whose inputs are these and perhaps further ones; ``None`` where no output that is
            usable comes out.
    """

    inputs: dict[str, str]
    label: Callable[[], Awaitable[TrainingExample | None]]


def collect(pending: Sequence[PendingExample], file: Path, workers: int, progress: Progress) -> list[TrainingExample]:
    """Label what is wanted, each once, concurrently; every row is in the file as soon as it is labelled.

    A compile that was killed labels it again, and finds the calls that were made in the run's own cache.

    Args:
        wanted: all with the same input fields, in the order in which the examples are returned, whichever is labelled
            first; of several with the same inputs the first.
        file: JSON lines, ``inputs`` and ``output`` each.
        workers: labels under way at once.
        progress: told how many are labelled, of how many.

    Raises:
        UserError: a language model fails.
    """
    unique: dict[str, PendingExample] = {}
    for one in pending:
        unique.setdefault(_key(one.inputs), one)
    made: dict[str, TrainingExample | None] = {}
    file.parent.mkdir(parents=True, exist_ok=True)
    slots = asyncio.Semaphore(workers)
    with file.open("w", encoding="utf-8") as rows:

        async def label(key: str, one: PendingExample) -> None:
            async with slots:
                try:
                    made[key] = await one.label()
                except DSPyError as error:
                    raise failure(error, file) from error
            example = made[key]
            row = {"inputs": example.inputs, "output": example.output} if example else {"inputs": one.inputs}
            rows.write(json.dumps(row, ensure_ascii=False) + "\n")
            rows.flush()
            progress(len(made), len(unique))

        async def label_all() -> None:
            async with asyncio.TaskGroup() as group:
                for key, one in unique.items():
                    group.create_task(label(key, one))

        try:
            asyncio.run(label_all())
        except BaseExceptionGroup as group:  # the end of a budget is no Exception
            raise group.exceptions[0] from None
    return [example for key in unique if (example := made[key]) is not None]


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
