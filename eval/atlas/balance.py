"""Deals questions into splits, and orders a split, so that splits and their beginnings are alike.

Questions are alike if they have the same type, the same last relation and the same side (:class:`Drawn`). Each of the
three is spread evenly: every split, and every prefix of a split, has close to its share of each.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from hoptimizer.eval.atlas.facts import rank
from hoptimizer.eval.atlas.questions import QuestionRow


@dataclass(frozen=True)
class Drawn:
    """A question that was chosen for the data set.

    Attributes:
        row: the question with its annotations, without an id.
        relation: the column that its last hop asks for, such as ``river``.
        side: ``yes``, ``no``, or which of two named ones is the answer; empty for questions along a chain.
    """

    row: QuestionRow
    relation: str
    side: str = ""

    @property
    def features(self) -> Iterator[tuple[str, ...]]:
        """What is spread evenly, the coarse first."""
        type = self.row["type"]
        yield (type,)
        yield ("relation", self.relation)
        yield (type, self.side)
        yield (type, "relation", self.relation)
        yield (type, self.relation, self.side)

    @property
    def rank(self) -> int:
        """A number that decides between questions that are alike."""
        return rank("order", self.row["question"])


def deal(drawn: list[Drawn], quotas: dict[str, dict[str, int]]) -> dict[str, list[Drawn]]:
    """The questions dealt into splits: each goes to the split that lacks its features most.

    Args:
        drawn: of each type as many as the quotas add up to.
        quotas: how many questions of each type each split takes.
    """
    share = {split: sum(quota.values()) / len(drawn) for split, quota in quotas.items()}
    splits: dict[str, list[Drawn]] = {split: [] for split in quotas}
    seen: Counter[tuple[str, ...]] = Counter()
    given: dict[str, Counter[tuple[str, ...]]] = {split: Counter() for split in quotas}
    for one in sorted(drawn, key=lambda one: (one.row["type"], one.side, one.relation, one.rank)):
        type = one.row["type"]
        seen.update(one.features)
        lacks = {
            split: sum(share[split] * seen[feature] - given[split][feature] for feature in one.features)
            for split, quota in quotas.items()
            if given[split][(type,)] < quota[type]
        }
        split = max(lacks, key=lambda split: lacks[split])
        splits[split].append(one)
        given[split].update(one.features)
    return splits


def spread(drawn: list[Drawn]) -> list[Drawn]:
    """The questions of a split in an order of which every prefix is alike: the next one is what lacks most."""
    total = Counter(feature for one in drawn for feature in one.features)
    taken: Counter[tuple[str, ...]] = Counter()
    left = sorted(drawn, key=lambda one: one.rank)
    ordered: list[Drawn] = []
    while left:
        share = (len(ordered) + 1) / len(drawn)
        one = max(left, key=lambda one: sum(total[feature] * share - taken[feature] for feature in one.features))
        left.remove(one)
        ordered.append(one)
        taken.update(one.features)
    return ordered
