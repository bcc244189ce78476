"""Which figures of a study's table differ by more than chance: paired tests, corrected for their number."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pandas as pd

from hoptimizer.eval.display.sheet import MARK
from hoptimizer.eval.statistics import CHANCE, holm, sign_flip_p
from hoptimizer.study.cells import Study
from hoptimizer.study.file import NAME, label
from hoptimizer.study.lines import Line


@dataclass(frozen=True)
class Significance:
    """What the paired tests of a table say.

    Attributes:
        p: by figure and by the line's number: how probable a difference from the baseline as large as this one is if
            the two are interchangeable, after Holm's correction over all lines.
        best: the figures that are the best ones, each with the line's number.
        baseline: what the lines are tested against, or ``None``.
    """

    p: dict[str, dict[int, float]] = field(default_factory=dict)
    best: frozenset[tuple[str, int]] = frozenset()
    baseline: str | None = None

    def differs(self, name: str, line: int) -> bool:
        """Whether a line's figure differs from the baseline's."""
        return self.p.get(name, {}).get(line, 1.0) < CHANCE

    @property
    def note(self) -> str:
        """What the table's signs mean; nothing where it has none."""
        tested = f"p < {CHANCE} in a paired sign-flip test, Holm's correction"
        than = f"than {self.baseline}" if self.baseline else "than every other row"
        signs = [f"Bold: the best of its column, and better {than}"] if self.best else []
        if any(value < CHANCE for found in self.p.values() for value in found.values()):
            signs.append(f"{MARK}: differs from {self.baseline}")
        elif any(self.p.values()):
            signs.append(f"No score differs from {self.baseline} by more than chance")
        return f"{'. '.join(signs)} ({tested})." if signs else ""


def significance(study: Study, lines: Sequence[Line], names: Iterable[str]) -> Significance:
    """Test a table's scores, each figure on its own.

    Lines are compared by the questions that both have a score for; of several seeds, a question counts with its mean.
    A figure is the best one if it is the highest of those on the same questions in the same column and, with a
    baseline, better than that, else better than each other line. Only scores of which more is better are tested.

    Args:
        study: what was run.
        lines: its table.
        names: the figures.
    """
    rewarded = study.config.objective.rewarded
    best: set[tuple[str, int]] = set()
    p: dict[str, dict[int, float]] = {}
    for name in names:
        if name not in rewarded:
            continue
        known = {
            number: line.scores[name].dropna()
            for number, line in enumerate(lines)
            if name in line.scores and not line.is_unsought(name, study.config.objective.name)
        }
        scores = {number: found for number, found in known.items() if not found.empty}
        against = {number: base for number in scores if (base := _baseline(study, lines, number)) in scores}
        if study.file.baseline:
            p[name] = _corrected({number: _p(scores[base], scores[number], study) for number, base in against.items()})
        for group in _groups(study, lines, scores):
            leader = max(group, key=lambda number: (scores[number].mean(), -number))
            others = [number for number in group if number != leader]
            if study.file.baseline:
                worse = leader in against and scores[against[leader]].mean() < scores[leader].mean()
                found = {leader: p[name].get(leader, 1.0)} if worse else {}
            else:
                found = _corrected({number: _p(scores[number], scores[leader], study) for number in others})
            if found and max(found.values()) < CHANCE:
                best.add((name, leader))
    return Significance(p, frozenset(best), _shown(study))


def _corrected(p: dict[int, float]) -> dict[int, float]:
    return dict(zip(p, holm(list(p.values())), strict=True))


def _p(first: pd.Series, second: pd.Series, study: Study) -> float:
    shared = first.index.intersection(second.index)
    if shared.empty:
        return 1.0
    return sign_flip_p(list(first[shared]), list(second[shared]), study.config.seed)


def _baseline(study: Study, lines: Sequence[Line], number: int) -> int | None:
    """The line that another one is tested against: the baseline's, where all else is the same."""
    given = {axis: label(value) for axis, value in (study.file.baseline or {}).items()}
    wanted = {axis: label(value) for axis, value in lines[number].place.items()} | given
    for other, line in enumerate(lines):
        if other != number and {axis: label(value) for axis, value in line.place.items()} == wanted:
            return other
    return None


def _groups(study: Study, lines: Sequence[Line], numbers: Iterable[int]) -> list[list[int]]:
    """The lines that are compared with each other: those of one column that answered the same questions."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for number in numbers:
        column = tuple(label(lines[number].place[axis]) for axis in study.file.columns)
        groups.setdefault((column, frozenset(lines[number].scores.index)), []).append(number)
    return [group for group in groups.values() if len(group) > 1]


def _shown(study: Study) -> str | None:
    row = study.file.baseline or {}
    named = [label(value) if axis == NAME else f"{axis}={label(value)}" for axis, value in row.items()]
    return ", ".join(named) or None
