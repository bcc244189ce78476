"""EfficientRAG's two small models, as steps of its program (Zhuang et al., 2024, section 3.1)."""

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from hoptimizer.common.batching import CORES, Batcher
from hoptimizer.common.text import Span, joined, words
from hoptimizer.models.engine.loading import device_and_dtype
from hoptimizer.models.engine.packed import pack
from hoptimizer.models.small.base import SmallModel
from hoptimizer.models.small.card import TERMINATE, Card, Label, RankCalibration
from hoptimizer.models.small.encoder import AlignedPair, PairTokenizer, TextPair
from hoptimizer.models.small.fields import pair
from hoptimizer.models.small.tagger import TaggerOutput, TokenTagger, load_tagger, tag_texts

# The most pairs in a batch.
_LIMIT = 512


class _TokenModel(SmallModel):
    """What labeler and filter share: calls that are under way at the same time are tagged in one batch."""

    def __init__(self, folder: Path, card: Card) -> None:
        super().__init__(folder, card)
        model, tokenizer = load_tagger(str(folder), len(card.labels), trained=True)
        self._model: TokenTagger = model.to(*device_and_dtype())
        pack(self._model)
        self._tokenizer = PairTokenizer(tokenizer, card.max_tokens, card.shared_tokens)

    async def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return self._output(inputs, *await asyncio.wrap_future(self._batcher.submit(pair(inputs, self.card.inputs))))

    def predict(self, inputs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Take the step for many sets of input fields; the results are in their order."""
        tagged = self._tag([pair(one, self.card.inputs) for one in inputs])
        return [self._output(one, *result) for one, result in zip(inputs, tagged, strict=True)]

    @cached_property
    def _batcher(self) -> Batcher[TextPair, tuple[AlignedPair, TaggerOutput]]:
        return Batcher(self._tag, limit=_LIMIT, on=CORES)

    def _tag(self, pairs: Sequence[TextPair]) -> list[tuple[AlignedPair, TaggerOutput]]:
        return tag_texts(self._model, self._tokenizer, pairs)

    @abstractmethod
    def _output(self, inputs: dict[str, Any], aligned: AlignedPair, tagged: TaggerOutput) -> dict[str, Any]:
        """The step's output fields, made from the probabilities of a tagged pair."""


class Labeler(_TokenModel):
    """The labeler & tagger: tags a passage for a query, and copies the words of a passage that is kept."""

    extra_inputs: ClassVar[frozenset[str]] = frozenset({"rank", "round"})

    def _output(self, inputs: dict[str, Any], aligned: AlignedPair, tagged: TaggerOutput) -> dict[str, Any]:
        card = self.card
        reading = TagDecision(card.labels, card.threshold, card.token_threshold, card.rank)
        return reading(inputs, aligned, tagged)


@dataclass(frozen=True)
class TagDecision:
    """Decides by a labeler's probabilities on a passage's tag and its useful words.

    Attributes:
        labels: the tags, in the order of the logits.
        threshold: the least probability at which a passage is kept; ``None`` where the likeliest tag decides.
        token_threshold: the least probability at which a word is copied.
        rank: how the passage's place in the search bears on its being kept: for passages that the question finds, and
            for those that later queries find; ``None`` if it does not.
    """

    labels: tuple[Label, ...]
    threshold: float | None
    token_threshold: float
    rank: tuple[RankCalibration, RankCalibration] | None = None

    def __call__(self, inputs: dict[str, Any], aligned: AlignedPair, tagged: TaggerOutput) -> dict[str, Any]:
        """The step's output.

        Args:
            inputs: ``query``, ``passage``, the passage's ``rank`` in the search, from 1, and the ``round`` of the
                search, from 0.
            aligned: the tokens of query and passage.
            tagged: the probabilities of the tokens and of the tags.

        Returns:
            ``tag``, ``useful`` (phrases of the passage, in order) and ``probability``, that of the passage being kept.
        """
        terminated = tagged.tags[self.labels.index(TERMINATE)]
        kept = 1 - terminated
        if self.rank is not None:
            kept = self.rank[min(inputs["round"], 1)](kept, inputs["rank"])
        if (terminated == max(tagged.tags)) if self.threshold is None else (kept < self.threshold):
            return {"tag": TERMINATE, "useful": [], "probability": kept}
        others = [place for place, label in enumerate(self.labels) if label != TERMINATE]
        text = inputs["passage"]
        [chosen] = chosen_words([(1, text)], aligned, tagged, self.token_threshold)
        spans = joined(text, chosen)
        return {
            "tag": self.labels[max(others, key=tagged.tags.__getitem__)],
            "useful": [text[start:end] for start, end in spans],
            "probability": kept,
        }


class QueryFilter(_TokenModel):
    """The filter: makes the next query of words of the query and of what is known, in their order."""

    def _output(self, inputs: dict[str, Any], aligned: AlignedPair, tagged: TaggerOutput) -> dict[str, Any]:
        texts = [(side, text) for side, text in enumerate(pair(inputs, self.card.inputs)) if text]
        chosen = chosen_words(texts, aligned, tagged, self.card.token_threshold)
        return {
            self.card.output: " ".join(
                text[slice(*span)] for (_, text), spans in zip(texts, chosen, strict=True) for span in spans
            )
        }


def chosen_words(
    texts: Sequence[tuple[int, str]], aligned: AlignedPair, tagged: TaggerOutput, threshold: float
) -> list[list[Span]]:
    """The words of texts whose likeliest token reaches a threshold.

    Where no word reaches it, those that have at least half the probability of the likeliest word are chosen, because a
    passage that is kept, and a query, must say something.

    Args:
        texts: texts of a pair, each with the number of its side in it, 0 or 1.
        aligned: the pair's tokens.
        tagged: the tokens' probabilities.
        threshold: the least probability of a token.

    Returns:
        the words' spans, for each text.
    """
    best = [_likeliest(text, side, aligned, tagged) for side, text in texts]
    most = max((value for one in best for _, value in one), default=0.0)
    least = min(threshold, most / 2) if most < threshold else threshold
    return [[span for span, value in one if value >= least and value > 0] for one in best]


def _likeliest(text: str, side: int, aligned: AlignedPair, tagged: TaggerOutput) -> list[tuple[Span, float]]:
    """The words of a text, each with the probability of its likeliest token."""
    # By character, and not by a token's first one: a token of SentencePiece begins with the space before its word.
    probability: dict[int, float] = {}
    for place, value in zip(aligned.places, tagged.tokens, strict=True):
        if place is not None and place[0] == side:
            probability |= dict.fromkeys(range(*place[1]), value)
    return [
        (span, max((probability[i] for i in range(*span) if i in probability), default=0.0)) for span in words(text)
    ]
