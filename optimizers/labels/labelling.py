"""Training examples that are made concurrently, and written to a file as they are made."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hoptimizer.common.concurrency import all_of, run_async
from hoptimizer.common.progress import Progress
from hoptimizer.models.failures import ends_all, explained, one_line
from hoptimizer.optimizers.labels.examples import TrainingExample
from hoptimizer.programs.program import FAILURES

_log = logging.getLogger(__name__)


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

    A compile that was killed labels them again: the run's own cache holds the calls that were already made. An example
    whose prompt or search is refused is left out.

    Args:
        pending: the pending examples, all with the same input fields; of several with the same inputs, only the first
            is labelled.
        file: a file of JSON lines, each with ``inputs`` and, where the output is usable, ``output``.
        workers: the number of examples that are labelled at once.
        progress: is told how many examples are labelled, and how many there are.

    Returns:
        the usable examples, in the order of ``pending``.

    Raises:
        UserError: a language model can't be used; a ``ServiceError`` where a call got no answer.
    """
    unique: dict[str, PendingExample] = {}
    for one in pending:
        unique.setdefault(_key(one.inputs), one)
    made: dict[str, TrainingExample | None] = {}
    refused: list[str] = []
    file.parent.mkdir(parents=True, exist_ok=True)
    slots = asyncio.Semaphore(workers)
    with file.open("w", encoding="utf-8") as rows:

        async def label(key: str, one: PendingExample) -> None:
            async with slots:
                try:
                    made[key] = await one.label()
                except FAILURES as error:  # what is refused costs its own question, as in an evaluation
                    if ends_all(error):
                        raise explained(error) from error
                    made[key] = None
                    refused.append(one_line(error))
            example = made[key]
            row = {"inputs": example.inputs, "output": example.output} if example else {"inputs": one.inputs}
            rows.write(json.dumps(row, ensure_ascii=False) + "\n")
            rows.flush()
            progress(len(made), len(unique))

        run_async(all_of(label(key, one) for key, one in unique.items()))
    if refused:
        counts = f"{len(refused)} of {len(unique)}"
        _log.warning("%s: %s left out, as they were refused: %s", file.stem, counts, refused[0])
    return [example for key in unique if (example := made[key]) is not None]


def _key(inputs: dict[str, Any]) -> str:
    return json.dumps(inputs, sort_keys=True)
