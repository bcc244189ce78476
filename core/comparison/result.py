"""What a comparison comes to."""

from dataclasses import asdict, dataclass, field
from typing import Any

from hoptimizer.comparison.costs import Costs
from hoptimizer.eval import statistics
from hoptimizer.eval.display.sheet import notebook


@dataclass(frozen=True)
class Compared:
    """One variant of a comparison.

    Attributes:
        run_id: its run.
        name: what the table calls it.
        compiled: whether an optimizer made it.
        estimates: mean and interval of each metric.
        scores: per question, in the order of ``ids``; not a number where a question has none.
        ids: the questions.
        unanswered: how many of them have no score because a language model's call got no answer.
        settings: the language model, and those settings in which the variants differ, by their keys.
        costs: what a question takes.
        answers: what it answered, in the order of ``ids``.
    """

    run_id: str
    name: str
    compiled: bool
    estimates: dict[str, statistics.Estimate]
    scores: dict[str, list[float]]
    ids: list[str]
    unanswered: int = 0
    settings: dict[str, str] = field(default_factory=dict)
    costs: Costs = field(default_factory=lambda: Costs({}, None))
    answers: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Group:
    """The questions of one type, or with one number of hops.

    Attributes:
        name: the type, or the number of hops; ``None`` for questions of which it is not known.
        n: questions.
        estimates: mean and interval of the metric for each variant; ``None`` where it has no scores in the group.
        differences: of each variant but the first against it, paired by question; ``None`` where there are no pairs.
    """

    name: str | None
    n: int
    estimates: list[statistics.Estimate | None]
    differences: list[statistics.Difference | None]


@dataclass(frozen=True)
class Comparison:
    """Variants that answered the same questions.

    Attributes:
        split: the questions' split.
        metric: what the differences are of.
        variants: in the order asked for; the first is the baseline.
        differences: of each variant but the first against it.
        by: what questions are grouped by, or ``None``.
        groups: the metric by group.
        notes: what was left out, in words.
        questions: the words of the questions, in the order of the variants' ``ids``.
        gold: the answers of each that count as right.
        seed: of the bootstrap and the tests.
    """

    split: str
    metric: str
    variants: list[Compared]
    differences: list[statistics.Difference]
    by: str | None = None
    groups: list[Group] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    gold: list[list[str]] = field(default_factory=list)
    seed: int = 0

    @property
    def p(self) -> list[float]:
        """Of each difference, how probable one as large as this is by chance, after Holm's correction over all."""
        return statistics.holm([difference.p for difference in self.differences])

    @property
    def names(self) -> list[str]:
        """The variants' names, numbered where one occurs twice."""
        names = [variant.name for variant in self.variants]
        return [f"{n} ({names[:i].count(n) + 1})" if names.count(n) > 1 else n for i, n in enumerate(names)]

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from hoptimizer.comparison.sheets import comparison_sheets

        return notebook(*comparison_sheets(self))

    def as_dict(self) -> dict[str, Any]:
        """What ``hop compare --json`` prints."""
        return {
            "split": self.split,
            "metric": self.metric,
            "variants": [
                {
                    "run_id": v.run_id,
                    "name": v.name,
                    "compiled": v.compiled,
                    "n": len(v.ids),
                    "unanswered": v.unanswered,
                    "metrics": {name: estimate.mean for name, estimate in v.estimates.items()},
                    "intervals": {name: [e.low, e.high] for name, e in v.estimates.items()},
                    "settings": v.settings,
                    "costs": v.costs.means,
                    "seconds_n": v.costs.timed,
                }
                for v in self.variants
            ],
            "differences": [
                {"run_id": v.run_id, "baseline": self.variants[0].run_id, **asdict(d), "p_holm": p}
                for v, d, p in zip(self.variants[1:], self.differences, self.p, strict=True)
            ],
            "notes": self.notes,
            **({"by": self.by, "groups": [asdict(group) for group in self.groups]} if self.by else {}),
        }
