"""Outcomes of questions as they come, on disk, until the run that they belong to is kept."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence

from pydantic import TypeAdapter, ValidationError

from hoptimizer.common.paths import home
from hoptimizer.eval.datasets.question import Question
from hoptimizer.eval.runner import QuestionResult
from hoptimizer.executors.task import versions
from hoptimizer.workbench import Workbench

_ROW = TypeAdapter(QuestionResult)


class KeptRows:
    """The outcomes of one evaluation that was not finished yet, which the same command does not ask for again.

    Workers on other machines cache their calls there. The outcomes are kept here, by the process that asks, so that
    nothing is lost with a worker, a machine or the whole cluster but the questions that were under way.

    Args:
        bench: of the config. Where it wants no cache for a language model, nothing is kept.
        run_id: the compiled variant that is asked, or ``None``.
    """

    def __init__(self, bench: Workbench, run_id: str | None) -> None:
        parts = [bench.config.digest, bench.data.digest, run_id, versions()]
        name = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
        self._file = home() / "answers" / f"{name}.jsonl"
        self._wanted = all(settings.cache for settings in bench.config.lm.values())

    def read(self, questions: Sequence[Question]) -> dict[str, QuestionResult]:
        """The outcomes so far by the question's id; a line that was cut off counts as none.

        Args:
            questions: those that are asked.
        """
        if not self._wanted or not self._file.is_file():
            return {}
        known = {question.id: question for question in questions}
        found = {}
        for line in self._file.read_bytes().splitlines():
            try:
                row = json.loads(line)
                if question := known.get(row["question"]):
                    found[question.id] = _ROW.validate_python(row | {"question": question})
            except (ValueError, TypeError, KeyError, ValidationError):
                continue
        return found

    def keep(self, row: QuestionResult) -> None:
        """Keep an outcome; a question that got no answer has none."""
        if not self._wanted or not row.is_answered:
            return
        values = {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
        values |= {"question": row.question.id, "steps": [dataclasses.asdict(step) for step in row.steps]}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("ab", buffering=0) as out:  # one write, so that no other process's comes between
            out.write(b"\n" + json.dumps(values).encode() + b"\n")  # the line before may have been cut off

    def forget(self) -> None:
        """Remove the outcomes, once the run has them."""
        self._file.unlink(missing_ok=True)
