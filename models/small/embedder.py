"""Sentence vectors by a small encoder (Reimers and Gurevych, 2019, section 3: the mean over the tokens)."""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

from hoptimizer.models.engine.loading import loading
from hoptimizer.models.weights.store import resolve

_MAX_TOKENS = 256


class Embedder:
    """Encodes texts as unit vectors, whose dot product says how similar the texts are.

    Args:
        name: a name of the weights store, a folder or a hub id.

    Raises:
        UserError: the encoder can't be loaded.
    """

    def __init__(self, name: str) -> None:
        folder = resolve(name)
        with loading(folder, "a sentence encoder"):
            self._model = AutoModel.from_pretrained(
                folder, dtype=torch.float32, trust_remote_code=False, use_safetensors=True
            ).eval()
            self._tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)

    @classmethod
    @cache
    def of(cls, name: str) -> "Embedder":
        """The embedder of that name, which is loaded once."""
        return cls(name)

    @torch.inference_mode()
    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Vectors of shape ``(texts, dimensions)``; each depends on its text alone."""
        # One by one: in a batch, the padding would change a vector's last bits.
        return torch.cat([self._one(text) for text in texts])

    def _one(self, text: str) -> Tensor:
        tokens = self._tokenizer(text, truncation=True, max_length=_MAX_TOKENS, return_tensors="pt")
        return nn.functional.normalize(self._model(**tokens).last_hidden_state.mean(1), dim=-1)
