"""Training examples that are made concurrently, and written to a file as they are made."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspy.utils.exceptions import DSPyError

from hoptimizer.common.concurrency import all_of, run_async
from hoptimizer.common.errors import UserError
from hoptimizer.common.progress import Progress
from hoptimizer.models.failures import one_line
from hoptimizer.optimizers.labels.examples import TrainingExample


@dataclass(frozen=True)
class PendingExample:
    """An example that is still to be labelled.

    Attributes:
        inputs: the signature's input fields, passages as texts.
        label: makes the example, which has these inputs and perhaps further ones; it gives ``None`` where the output
            is not usable.
    """

    inputs: dict[str, Any]
    label: Callable[[], Awaitable[TrainingExample | None]]


def collect(pending: Sequence[PendingExample], file: Path, workers: int, progress: Progress) -> list[TrainingExample]:
    """Label pending examples concurrently, each once; a row is in the file as soon as it is labelled.

    A compile that was killed labels them again: the run's own cache holds the calls that were already made.

    Args:
        pending: the pending examples, all with the same input fields; of several with the same inputs, only the first
            is labelled.
        file: a file of JSON lines, each with ``inputs`` and, where the output is usable, ``output``.
        workers: the number of examples that are labelled at once.
        progress: is told how many examples are labelled, and how many there are.

    Returns:
        the usable examples, in the order of ``pending``.

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

        run_async(all_of(label(key, one) for key, one in unique.items()))
    return [example for key in unique if (example := made[key]) is not None]


def _key(inputs: dict[str, Any]) -> str:
    return json.dumps(inputs, sort_keys=True)


def failure(error: DSPyError, file: Path) -> UserError:
    """The error that a user sees where a language model that labels can't be asked.

    Args:
        error: the error that the language model raised.
        file: the file of the labels, which are kept.
    """
    if isinstance(error.__cause__, UserError):  # the model could not be loaded
        return error.__cause__
    return UserError(
        f"{file.stem}: a language model failed: {one_line(error)}; what is labelled so far is kept: check the lm "
        "section and give the same command again"
    )
