"""The rounds in which the hops of a question are searched for, and the hops whose words make each query."""

from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter


@dataclass(frozen=True)
class HopOrder:
    """The order in which a question's hops are searched for. A hop's *place* is its index in that order.

    Attributes:
        hops: the hops by place: first those that the question itself finds, then round by round.
        after: by place, the places of the hops whose words the query is made with, in order. The query takes the place
            of the last one's query. Empty where the query is the question.
        open: by place, the places of the hops that the query still has to lead to: the hop, and those after it.
    """

    hops: list[int]
    after: list[list[int]]
    open: list[list[int]]


def hop_order(needs: Sequence[Sequence[int]], merged: bool) -> HopOrder:
    """The order of hops of which some need what others found.

    Args:
        needs: for each hop the hops, from 0, whose words it needs.
        merged: whether a round has one query for all its hops (EfficientRAG, section 3.1), which is made with the words
            of all hops of the round before that any hop needs; else each hop has a query of its own.

    Raises:
        graphlib.CycleError: hops need each other in a circle.

    Example:
        >>> from hoptimizer.optimizers.labels.hop_order import hop_order
        >>> directors_and_their_birthdays = [[], [], [0], [1]]
        >>> hop_order(directors_and_their_birthdays, merged=False).after
        [[], [], [0], [1]]
        >>> hop_order(directors_and_their_birthdays, merged=True).after
        [[], [], [0, 1], [0, 1]]
    """
    rounds = [0] * len(needs)
    for hop in TopologicalSorter(dict(enumerate(needs))).static_order():
        rounds[hop] = 1 + max((rounds[need] for need in needs[hop]), default=-1)
    order = sorted(range(len(needs)), key=rounds.__getitem__)
    place = {hop: at for at, hop in enumerate(order)}
    own = [sorted({place[need] for need in needs[hop]}) for hop in order]
    if not merged:
        return HopOrder(order, own, [_reached(at, own) for at in range(len(order))])
    of = [rounds[hop] for hop in order]
    needed = {need for wanted in own for need in wanted}
    after, open = [], []
    for here in of:
        shared = {at for at in needed if of[at] == here - 1}
        after.append(sorted(shared.union(*(own[at] for at, its in enumerate(of) if its == here))))
        open.append([at for at, its in enumerate(of) if its >= here])
    return HopOrder(order, after, open)


def _reached(hop: int, after: Sequence[Sequence[int]]) -> list[int]:
    """The places of a hop and of all that depend on it."""
    reached = [hop]
    for at in range(hop + 1, len(after)):
        if any(before in reached for before in after[at]):
            reached.append(at)
    return reached
