"""Demonstrations from the questions that are most similar to the one that is asked (Liu et al., 2022, section 3)."""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

# Questions whose neighbours are remembered for their next step; a served program is asked without end.
_ORDERS = 1024

Demonstrations = Mapping[str, Mapping[str, Any]]
"""The fields of a question's demonstration for each step, by the step's name."""


class Neighbours:
    """Chooses demonstrations by the question.

    Args:
        k: demonstrations per step.
        encoder: the sentence encoder: a name of the weights store, a folder or a hub id.
        pool: questions, each with its demonstrations.
    """

    def __init__(self, k: int, encoder: str, pool: Sequence[tuple[str, Demonstrations]]) -> None:
        self.k, self.encoder = k, encoder
        self.pool = list(pool)
        self._orders: dict[str, list[int]] = {}

    def __call__(self, step: str, question: str) -> list[dict[str, Any]]:
        """The demonstrations of a step; the most similar one comes last, next to the question itself."""
        order = self._orders.get(question)
        if order is None:
            if len(self._orders) >= _ORDERS:
                self._orders = {}
            order = self._orders[question] = self._order(question)
        found = (self.pool[place][1].get(step) for place in order if self.pool[place][0] != question)
        chosen = [dict(shown) for shown in found if shown][: self.k]
        return chosen[::-1]

    def without(self, steps: Collection[str]) -> "Neighbours":
        """The same neighbours without demonstrations of some steps."""
        pool = [
            (question, {step: demo for step, demo in shown.items() if step not in steps})
            for question, shown in self.pool
        ]
        return Neighbours(self.k, self.encoder, pool)

    def _order(self, question: str) -> list[int]:
        from hoptimizer.models.small.embedder import Embedder  # brings torch

        likeness = self._vectors @ Embedder.of(self.encoder)([question])[0]
        return likeness.argsort(descending=True, stable=True).tolist()

    @cached_property
    def _vectors(self) -> "Tensor":
        from hoptimizer.models.small.embedder import Embedder  # brings torch

        return Embedder.of(self.encoder)([question for question, _ in self.pool])

    def dump_state(self) -> dict[str, Any]:
        """The state that :meth:`load_state` takes, as plain data."""
        return {"k": self.k, "encoder": self.encoder, "pool": self.pool}

    @classmethod
    def load_state(cls, state: Mapping[str, Any]) -> "Neighbours":
        """Neighbours from the state that :meth:`dump_state` gave, which may have been JSON in between."""
        return cls(state["k"], state["encoder"], [(question, shown) for question, shown in state["pool"]])
