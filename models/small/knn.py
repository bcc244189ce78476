"""A vote among the labelled examples that are most similar to what is asked (SKR-knn, Wang et al., 2023)."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from hoptimizer.common.errors import UserError
from hoptimizer.models.small.base import SmallModel
from hoptimizer.models.small.card import Card
from hoptimizer.models.small.embedder import Embedder

NEIGHBOURS = "neighbours.safetensors"
"""The file of a model's examples: ``vectors`` of shape ``(examples, dimensions)``, and as many ``labels``, 1 for the
positive one."""


class KNNClassifier(SmallModel):
    """A small model whose label is that of similar examples. Nothing was trained: its folder holds their vectors.

    The positive label is chosen if its share among the ``k`` nearest examples reaches the card's threshold.

    Raises:
        UserError: the examples are broken, or belong to another encoder.
    """

    def __init__(self, folder: Path, card: Card) -> None:
        super().__init__(folder, card)
        file = folder / NEIGHBOURS
        try:
            held = load_file(file)
            self._vectors, self._labels = held["vectors"].float(), held["labels"].float()
        except (FileNotFoundError, SafetensorError, KeyError) as error:
            raise UserError(f"{file}: is broken ({error}); copy the whole folder that the compile wrote") from error
        self._embed = Embedder.of(card.base)
        size = self._embed(["?"]).shape[1]
        if not len(self._labels) or self._vectors.shape != (*self._labels.shape, size):
            raise UserError(
                f"{file}: {len(self._labels)} labels with vectors of shape {tuple(self._vectors.shape)}, and the "
                f"encoder {card.base} gives {size} dimensions; copy the whole folder that the compile wrote"
            )

    async def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return await asyncio.to_thread(self._decide, as_text(inputs, self.card.inputs))

    def _decide(self, text: str) -> dict[str, Any]:
        card = self.card
        [share] = positive_shares(self._vectors, self._labels, self._embed([text]), card.k or 1).tolist()
        return {card.output: card.labels[int(share >= (card.threshold or 0.0))], "probability": share}


def as_text(inputs: Mapping[str, Any], names: Sequence[str]) -> str:
    """The input fields of a step as the one text that is compared."""
    return " ".join(str(inputs[name]) for name in names)


def positive_shares(vectors: Tensor, labels: Tensor, asked: Tensor, k: int) -> Tensor:
    """The share of positive labels among the nearest examples.

    Args:
        vectors: unit vectors of the examples, of shape ``(examples, dimensions)``.
        labels: 1 for examples with the positive label, 0 for the others, of shape ``(examples,)``.
        asked: unit vectors of what is asked, of shape ``(asked, dimensions)``.
        k: how many examples vote; all of them where there are fewer.

    Returns:
        The shares, of shape ``(asked,)``.
    """
    order = (asked @ vectors.T).argsort(descending=True, stable=True)
    return labels[order[:, :k]].mean(-1)
