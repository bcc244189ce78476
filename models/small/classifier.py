"""A fine-tuned encoder that takes a step which chooses: known or unknown, relevant or not."""

import asyncio
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from hoptimizer.common.batching import CORES, Batcher
from hoptimizer.models.engine.loading import device_and_dtype
from hoptimizer.models.engine.packed import pack
from hoptimizer.models.small.base import SmallModel
from hoptimizer.models.small.card import Card
from hoptimizer.models.small.encoder import ROWS, PairTokenizer, TextPair, by_length, load_encoder, probabilities
from hoptimizer.models.small.fields import pair


class Classifier(SmallModel):
    """A small model that gives an output field one of its labels.

    Calls that are under way at the same time share forward passes, those of similar length together.

    Attributes:
        passes: forward passes so far.
    """

    def __init__(self, folder: Path, card: Card) -> None:
        super().__init__(folder, card)
        model, tokenizer = load_encoder(str(folder), len(card.labels), trained=True)
        self._model = model.to(*device_and_dtype())
        pack(self._model)
        self._tokenizer = PairTokenizer(tokenizer, card.max_tokens, card.shared_tokens)
        self.passes = 0

    async def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return await asyncio.wrap_future(self._batcher.submit(pair(inputs, self.card.inputs)))

    def predict(self, inputs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Choose for many sets of input fields; the results are in their order."""
        return self._decide([pair(one, self.card.inputs) for one in inputs])

    @cached_property
    def _batcher(self) -> Batcher[TextPair, dict[str, Any]]:
        return Batcher(self._decide, limit=4 * ROWS, on=CORES)

    def _decide(self, pairs: Sequence[TextPair]) -> list[dict[str, Any]]:
        rows = self._tokenizer(pairs)
        self.passes += sum(1 for _ in by_length(rows))
        return [self._named(row) for row in probabilities(self._model, self._tokenizer, rows).tolist()]

    def _named(self, row: list[float]) -> dict[str, Any]:
        card = self.card
        place = max(range(len(row)), key=row.__getitem__)
        probability = row[place]
        if len(row) == 2:
            probability = row[1]
            place = int(probability >= (0.5 if card.threshold is None else card.threshold))
        return {card.output: card.labels[place], "probability": probability}
