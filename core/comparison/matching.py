"""Which runs can be compared: those that answered the same questions."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pandas as pd
from mlflow.entities import Run

from hoptimizer.common.errors import UserError
from hoptimizer.eval.display.format import counted
from hoptimizer.tracking.naming import KIND, STARTED_FROM
from hoptimizer.tracking.tracker import Tracker


@dataclass(frozen=True)
class Answered:
    """A run that answered a split.

    Attributes:
        run: the run.
        table: its answers and scores, one row for each question.
    """

    run: Run
    table: pd.DataFrame

    @cached_property
    def questions(self) -> list[str]:
        """What tells its questions from others: their ids, their words, and the answers that count as right."""
        columns = [self.table.get(name, pd.Series([None] * len(self.table))) for name in ("id", "question", "answers")]
        return [json.dumps(row, default=str) for row in zip(*columns, strict=True)]

    @cached_property
    def supporting(self) -> str | None:
        """The supporting passages of its questions, in whatever order; ``None`` where the run did not keep them."""
        if "supporting" not in self.table:
            return None
        known = [sorted(map(str, ids)) if isinstance(ids, list) else [] for ids in self.table["supporting"]]
        return json.dumps(known)

    def only(self, questions: Sequence[str]) -> "Answered":
        """With these questions alone, in this order."""
        places = {question: place for place, question in enumerate(self.questions)}
        chosen = self.table.iloc[[places[question] for question in questions]]
        return replace(self, table=chosen.reset_index(drop=True))


def matched(tracker: Tracker, run_ids: Sequence[str], split: str, metric: str) -> tuple[list[Answered], list[str]]:
    """The runs to compare, each with the questions that all of them answered.

    Runs that are asked for are compared by the questions that they share. Otherwise the runs of the experiment are
    taken that have scores of the metric and answered all questions of the latest such one, without those that another
    compile started from.

    Args:
        tracker: the store that holds the runs.
        run_ids: the runs that are asked for, the baseline first; or none.
        split: the questions' split.
        metric: what they are compared by.

    Returns:
        the runs, and what was left out, in words.

    Raises:
        UserError: there is no such run, a run did not answer the split, or there is no question that all answered.
    """
    runs = [tracker.get(run_id) for run_id in run_ids]
    answered = _answered(tracker, runs or tracker.runs(), split)
    if len(answered) < len(runs):
        missing = next(run for run in runs if run not in [one.run for one in answered])
        raise UserError(
            f"run {missing.info.run_id} has no answers on {split}: give another --split, or score it with "
            f"`hop eval --run {missing.info.run_id} --split {split}`"
        )
    if not answered:
        raise UserError(
            f"experiment {tracker.experiment_name!r} has no run that answered {split}: make one with `hop compile` "
            "or `hop eval`"
        )
    if runs:
        return _sharing(answered, split)
    having = [one for one in answered if metric in one.table] or answered  # a program that searches nothing: no recall
    kept, notes = _like_the_latest(having, split)
    if without := len(answered) - len(having):
        notes.insert(0, f"left out: {counted(without, 'run')} of the experiment without scores of {metric!r}")
    return kept, notes


def _answered(tracker: Tracker, runs: Iterable[Run], split: str) -> list[Answered]:
    found = ((run, tracker.predictions(run.info.run_id, split)) for run in runs)
    return [Answered(run, predictions.table) for run, predictions in found if predictions is not None]


def _sharing(answered: Sequence[Answered], split: str) -> tuple[list[Answered], list[str]]:
    sets = [set(one.questions) for one in answered]
    shared = [question for question in dict.fromkeys(answered[0].questions) if all(question in own for own in sets)]
    if not shared:
        first = answered[0].run.info.run_id
        other = next((a.run.info.run_id for a, own in zip(answered, sets, strict=True) if not sets[0] & own), None)
        which = f"runs {first} and {other} have" if other else "the runs have"
        raise UserError(f"{which} no question of {split} in common: score them on the same data")
    notes = [
        f"{answer.run.info.run_name} answered {len(own)} questions; those that all runs answered are compared"
        for answer, own in zip(answered, sets, strict=True)
        if len(own) > len(shared)
    ]
    return [one.only(shared) for one in answered], notes


def _like_the_latest(answered: Sequence[Answered], split: str) -> tuple[list[Answered], list[str]]:
    *_, latest = answered
    wanted = list(dict.fromkeys(latest.questions))
    start = started_from(one.run for one in answered)
    whole = [one for one in answered if set(wanted) <= set(one.questions)]
    kept = [one for one in whole if one is latest or one.run.info.run_id not in start]
    notes = []
    if others := len(answered) - len(whole):
        whose = f"answered other questions of {split} than the latest one"
        notes.append(f"{counted(others, 'run')} of the experiment {whose}")
    if steps := len(whole) - len(kept):
        notes.append(f"{counted(steps, 'run')} that another compile started from")
    notes = [f"left out: {note}" for note in notes]
    if more := sum(len(set(one.questions)) > len(wanted) for one in kept):
        info = latest.run.info
        notes.append(
            f"the latest run, {info.run_name} ({info.run_id[:8]}), answered {len(wanted)} questions of {split} and "
            f"{counted(more, 'run')} answered more: all are compared by these {len(wanted)}; "
            "to leave it out, name the runs"
        )
    return [one.only(wanted) for one in kept], notes


def started_from(runs: Iterable[Run]) -> set[str]:
    """The compiles that are but a stage: the runs that other compiles among these started from."""
    compiles = {run.info.run_id: run.data.tags for run in runs if run.data.tags.get(KIND) == "compile"}
    return {tags[STARTED_FROM] for tags in compiles.values() if STARTED_FROM in tags} & compiles.keys()
