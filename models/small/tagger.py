"""Token classifiers on an encoder: which tokens count, and which tag the whole text has (EfficientRAG, section 3.3)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from hoptimizer.common.errors import UserError
from hoptimizer.models.engine.loading import loading
from hoptimizer.models.small.encoder import AlignedPair, PairTokenizer, TextPair, by_length

HEADS = "heads.safetensors"

# Pairs in one forward pass; a small encoder's activations then stay in a processor's cache.
_ROWS = 16


class TokenTagger(nn.Module):
    """An encoder with two linear heads: one says of every token whether it is useful, one tags the tokens' mean.

    Args:
        encoder: gives each token a hidden state.
        tags: how many tags there are; 0 for a model that labels tokens alone.
    """

    def __init__(self, encoder: PreTrainedModel, tags: int) -> None:
        super().__init__()
        self.encoder = encoder
        size = encoder.config.hidden_size
        self.token_head = nn.Linear(size, 2)
        self.tag_head = nn.Linear(size, tags) if tags else None

    def forward(self, **inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits of the tokens ``(rows, tokens, 2)``, and of the tags ``(rows, tags)`` or ``None``."""
        hidden = self.encoder(**inputs)[0]
        if self.tag_head is None:
            return self.token_head(hidden), None
        mask = inputs["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        return self.token_head(hidden), self.tag_head((hidden * mask).sum(1) / mask.sum(1))

    def save_pretrained(self, folder: Path) -> None:
        """Write the encoder as transformers does, and the heads beside it."""
        self.encoder.save_pretrained(folder)
        heads = {name: weight for name, weight in self.state_dict().items() if not name.startswith("encoder.")}
        save_file({name: weight.contiguous().cpu() for name, weight in heads.items()}, folder / HEADS)


def load_tagger(
    name: str, tags: int, trained: bool, attention: Literal["eager"] | None = None
) -> tuple[TokenTagger, PreTrainedTokenizerBase]:
    """A token tagger in fp32, and its tokenizer.

    Args:
        name: folder or hub id of an encoder, or the folder of a trained tagger, whose heads are taken where they fit.
        tags: how many tags there are; 0 for a model that labels tokens alone.
        trained: whether the heads must be there; else they start at random, by torch's seed.
        attention: transformers' name of the attention: ``eager`` trains twice as fast on a CPU; ``None`` for the
            fastest one that the encoder's class has, which infers faster (DeBERTa has no other than ``eager``).

    Raises:
        UserError: the model can't be loaded, is no encoder, or its tokenizer belongs to another model.
    """
    options: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": attention}
    options |= {"use_safetensors": True} if trained else {}
    with loading(name, "an encoder"):
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
        encoder = AutoModel.from_pretrained(name, config=config, **options, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    if config.is_encoder_decoder:
        raise UserError(f"{name}: has a decoder, and a labeler or filter needs an encoder alone; take one such as BERT")
    if len(tokenizer) > config.vocab_size:
        raise UserError(
            f"{name}: its tokenizer knows {len(tokenizer)} tokens and its model {config.vocab_size}; they belong to "
            "different checkpoints: copy both from the same one"
        )
    if not tokenizer.is_fast:
        raise UserError(f"{name}: its tokenizer does not tell where tokens stand; take one that has a fast tokenizer")
    model = TokenTagger(encoder, tags)
    _load_heads(model, name, trained)
    return model.eval(), tokenizer


def _load_heads(model: TokenTagger, name: str, trained: bool) -> None:
    file = Path(name) / HEADS
    expected = {key: weight.shape for key, weight in model.state_dict().items() if not key.startswith("encoder.")}
    try:
        heads = load_file(file) if file.exists() else {}
    except SafetensorError as error:
        raise UserError(f"{file}: is broken ({error}); copy the whole folder that the training wrote") from error
    if {key: weight.shape for key, weight in heads.items()} == expected:
        model.load_state_dict(heads, strict=False)
    elif trained:
        raise UserError(f"{name}: {HEADS} lacks the heads that its card promises; copy the whole folder again")


@dataclass(frozen=True)
class TaggerOutput:
    """What a tagger says of one pair of texts.

    Attributes:
        tags: the probability of each tag; empty for a tagger without tags.
        tokens: the probability that each token counts.
    """

    tags: list[float]
    tokens: list[float]


@torch.inference_mode()
def tag(model: TokenTagger, tokenizer: PairTokenizer, pairs: Sequence[AlignedPair]) -> list[TaggerOutput]:
    """Run tokenized pairs through a tagger, those of similar length together; the results are in the pairs' order."""
    device = next(model.parameters()).device
    rows = [pair.row for pair in pairs]
    results: dict[int, TaggerOutput] = {}
    for places in by_length(rows, _ROWS):
        token_logits, tag_logits = model(**tokenizer.pad([rows[i] for i in places], device))
        tokens = token_logits.float().softmax(-1)[..., 1].cpu()
        tags = [] if tag_logits is None else tag_logits.float().softmax(-1).tolist()
        for row, place in enumerate(places):
            length = len(rows[place]["input_ids"])
            results[place] = TaggerOutput(tags[row] if tags else [], tokens[row, :length].tolist())
    return [results[i] for i in range(len(pairs))]


def tag_texts(
    model: TokenTagger, tokenizer: PairTokenizer, pairs: Sequence[TextPair]
) -> list[tuple[AlignedPair, TaggerOutput]]:
    """Tokenize pairs of texts and run them through a tagger; the results are in the pairs' order."""
    aligned = tokenizer.aligned(pairs)
    return list(zip(aligned, tag(model, tokenizer, aligned), strict=True))
