"""Encoders with a classification head: loading them, and running texts of similar length through them in batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hoptimizer.common.errors import UserError
from hoptimizer.common.text import Span
from hoptimizer.models.engine.loading import loading

# Texts in one forward pass.
ROWS = 64
# Texts share a batch if their lengths round up to the same multiple of so many tokens. How far a text is padded then
# depends on its own length alone; so does every bit of its result on a CPU, where the model is packed.
WIDTH = 16

TextPair = tuple[str, str | None]
"""A text, and the second one that is read with it, or ``None``."""


def load_encoder(name: str, labels: int, trained: bool) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """An encoder in fp32, and its tokenizer.

    Args:
        name: folder or hub id.
        labels: how many logits the head has.
        trained: whether the head must be in the files too; else it starts at random, by torch's seed.

    Raises:
        UserError: it can't be loaded, or is no encoder.
    """
    # Eager attention: SDPA takes twice as long to train a small encoder on a CPU, and is no faster without gradients.
    options = {"dtype": torch.float32, "attn_implementation": "eager"} | ({"use_safetensors": True} if trained else {})
    with loading(name, "an encoder"):
        config = AutoConfig.from_pretrained(name, num_labels=labels, trust_remote_code=False)
        model, found = AutoModelForSequenceClassification.from_pretrained(
            name, config=config, output_loading_info=True, **options, trust_remote_code=False
        )
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    if trained and (missing := sorted(found["missing_keys"])):
        raise UserError(f"{name}: its weights lack {missing[0]}; copy the whole folder that the training wrote")
    return model.eval(), tokenizer


@dataclass(frozen=True)
class AlignedPair:
    """A tokenized pair of texts.

    Attributes:
        row: the model's inputs, without padding.
        places: for each token the number of its text, 0 or 1, and where it stands in that text, in characters; ``None``
            for the tokenizer's special tokens.
        cut: whether the pair was too long, so that tokens were cut off.
    """

    row: dict[str, list[int]]
    places: list[tuple[int, Span] | None]
    cut: bool = False


class PairTokenizer:
    """Turns texts and pairs of texts into token ids, and cuts those that are too long.

    With ``shared``, token types do not tell the first text from the second, which the separator does anyway, but tokens
    that both texts hold from all others. Whether a passage is about what the question names can then be seen at once; a
    small encoder would need thousands of examples to learn to compare words (exact match cues; Boualili et al., 2020).

    Args:
        tokenizer: the encoder's tokenizer; ``shared`` needs a fast one with token types, and has no effect on others.
        max_tokens: the most tokens of a pair. The end of the longer text is cut, and where both then are equally long,
            the ends of both.
        shared: whether to mark tokens that both texts hold.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_tokens: int, shared: bool) -> None:
        self._tokenizer = tokenizer
        self._shared = shared and tokenizer.is_fast and "token_type_ids" in tokenizer.model_input_names
        self._max = min(max_tokens, tokenizer.model_max_length)
        # A causal model's tokenizer would run the two texts together.
        self._between = "" if tokenizer.sep_token else "\n"

    def __call__(self, pairs: Sequence[TextPair]) -> list[dict[str, list[int]]]:
        """The model's inputs for each pair, without padding."""
        return [row for row, _ in self._encode(pairs)]

    def aligned(self, pairs: Sequence[TextPair]) -> list[AlignedPair]:
        """The model's inputs for each pair, and where in the texts each token stands; it needs a fast tokenizer."""
        return [
            AlignedPair(
                row, [None if side is None else (side, span) for side, span in zip(sides, spans, strict=True)], cut
            )
            for row, (sides, spans, cut) in self._encode(pairs, offsets=True)
        ]

    def _encode(
        self, pairs: Sequence[TextPair], offsets: bool = False
    ) -> list[tuple[dict[str, list[int]], tuple[list[int | None], list[Span], bool]]]:
        """The inputs for each pair; for each token the number of its text and, with ``offsets``, where it stands; and
        whether the pair was cut, as far as the tokenizer tells."""
        if not pairs:
            return []
        firsts = [first + self._between for first, _ in pairs]
        seconds = [second for _, second in pairs if second is not None]
        encoded = self._tokenizer(
            firsts,
            seconds or None,
            truncation="longest_first",
            max_length=self._max,
            return_offsets_mapping=offsets,
            split_special_tokens=True,  # a passage that names a separator has none
        )
        spans = encoded.pop("offset_mapping") if offsets else [[]] * len(pairs)
        rows = [{key: encoded[key][i] for key in encoded} for i in range(len(pairs))]
        fast = self._tokenizer.is_fast
        sides = [encoded.sequence_ids(i) if fast else [] for i in range(len(pairs))]
        cut = [fast and bool(encoded[i].overflowing) for i in range(len(pairs))]
        if self._shared:
            for row, side in zip(rows, sides, strict=True):
                row["token_type_ids"] = _shared_tokens(row["input_ids"], side)
        return list(zip(rows, zip(sides, spans, cut, strict=True), strict=True))

    def pad(self, rows: Sequence[dict[str, list[int]]], device: torch.device) -> dict[str, Tensor]:
        """The inputs of a batch, tensors of shape ``(rows, tokens)``, padded to a multiple of :data:`WIDTH`."""
        return dict(self._tokenizer.pad(list(rows), pad_to_multiple_of=WIDTH, return_tensors="pt").to(device))


def _shared_tokens(ids: Sequence[int], sides: Sequence[int | None]) -> list[int]:
    """1 for each token that the other text holds as well, 0 for the others."""
    held: tuple[set[int], set[int]] = (set(), set())
    for token, side in zip(ids, sides, strict=True):
        if side is not None:
            held[side].add(token)
    both = held[0] & held[1]
    return [int(side is not None and token in both) for token, side in zip(ids, sides, strict=True)]


def by_length(rows: Sequence[dict[str, list[int]]], size: int = ROWS) -> Iterator[list[int]]:
    """Batches of rows that are padded to the same multiple of :data:`WIDTH`, as the rows' places."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]["input_ids"]))
    for _, alike in groupby(order, key=lambda i: -(-len(rows[i]["input_ids"]) // WIDTH)):
        places = list(alike)
        for start in range(0, len(places), size):
            yield places[start : start + size]


@torch.inference_mode()
def probabilities(model: PreTrainedModel, tokenizer: PairTokenizer, rows: Sequence[dict[str, list[int]]]) -> Tensor:
    """Probabilities of shape ``(rows, labels)`` for tokenized texts, fp32 on the CPU.

    Those of a packed model do not depend on which texts are in a batch together.
    """
    device = next(model.parameters()).device
    result = torch.empty(len(rows), model.config.num_labels, dtype=torch.float32)
    for places in by_length(rows):
        logits = model(**tokenizer.pad([rows[i] for i in places], device)).logits
        result[places] = logits.float().softmax(-1).cpu()
    return result
