"""Vectors of passages and queries by an encoder of transformers (Reimers and Gurevych, 2019)."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import BatchEncoding

from hoptimizer.models.engine.loading import device_and_dtype
from hoptimizer.models.engine.packed import pack
from hoptimizer.models.small.encoder import ROWS, WIDTH, by_length
from hoptimizer.retrieval.dense.model import DenseModel
from hoptimizer.retrieval.encoders.cut import cut_rows
from hoptimizer.retrieval.encoders.sentence_modules import load_projections
from hoptimizer.retrieval.encoders.text_encoder import load_text_encoder, readable_tokens
from hoptimizer.retrieval.encoders.windows import EncodedWindow, PassageEncoder


class DenseEncoder(PassageEncoder[Tensor]):
    """An encoder in the hardware's best precision, with the pooling and the projections of its model.

    Args:
        model: the encoder's files and how they are used.

    Raises:
        UserError: it can't be loaded, its weights are incomplete, or it does not read so many tokens.

    Attributes:
        dim: length of a vector.
        max_tokens: the tokens that are read of a text, those included that mark it.
        device: where it runs.
    """

    def __init__(self, model: DenseModel) -> None:
        self.device, dtype = device_and_dtype()
        loaded, self._tokenizer, config = load_text_encoder(model.encoder, "retriever.model")
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._model = loaded.to(self.device, dtype)
        self._projections, self.dim = load_projections(model.projections, config.hidden_size)
        self._projections.to(self.device)
        pack(self._model)
        pack(self._projections)
        self._encoding = model.encoding
        most = min(model.encoding.max_tokens, self._tokenizer.model_max_length)
        self.max_tokens = readable_tokens(self._model, most)

    def window(self, texts: list[str]) -> EncodedWindow[Tensor]:
        """Encode one window of passages: the rows of some, and their vectors ``(passages, dim)``, fp16, on the CPU."""
        encoded = self._tokenize([self._encoding.passage_prefix + text for text in texts])
        return EncodedWindow(self._batches(_rows(encoded)), cut_rows(encoded, self.max_tokens))

    @torch.inference_mode()
    def _batches(self, rows: list[dict[str, list[int]]]) -> Iterator[tuple[list[int], Tensor]]:
        for places in by_length(rows):
            yield places, self._vectors([rows[i] for i in places]).half().cpu()

    @torch.inference_mode()
    def queries(self, texts: Sequence[str]) -> Tensor:
        """Encode queries: vectors ``(queries, dim)``, fp32, on the encoder's device, each by its own text alone."""
        vectors = torch.empty(len(texts), self.dim, dtype=torch.float32, device=self.device)
        if not texts:
            return vectors
        encoded = self._tokenize([self._encoding.query_prefix + text for text in texts])
        self.tell_cut_queries([texts[row] for row in cut_rows(encoded, self.max_tokens)], self.max_tokens)
        rows = _rows(encoded)
        # On a GPU, other queries in the batch would change the last digits, and with them close rankings.
        size = ROWS if self.device.type == "cpu" else 1
        for places in by_length(rows, size):
            vectors[places] = self._vectors([rows[i] for i in places])
        return vectors

    def _tokenize(self, texts: list[str]) -> BatchEncoding:
        texts = [text.strip() for text in texts]
        if self._encoding.lower:
            texts = [text.lower() for text in texts]
        return self._tokenizer(texts, truncation=True, max_length=self.max_tokens)

    def _vectors(self, rows: list[dict[str, list[int]]]) -> Tensor:
        """Vectors of tokenized texts in one batch, fp32."""
        inputs = self._tokenizer.pad(rows, pad_to_multiple_of=WIDTH, return_tensors="pt").to(self.device)
        hidden = self._model(**inputs).last_hidden_state.float()  # [texts, tokens, hidden]
        vectors = self._projections(self._pooled(hidden, inputs["attention_mask"]))
        return torch.nn.functional.normalize(vectors, dim=-1) if self._encoding.normalize else vectors

    def _pooled(self, hidden: Tensor, mask: Tensor) -> Tensor:
        if self._encoding.pooling == "cls":
            return hidden[:, 0]
        if self._encoding.pooling == "last":
            return hidden[torch.arange(len(hidden)), mask.sum(1) - 1]
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * weights).sum(1) / weights.sum(1)


def _rows(encoded: BatchEncoding) -> list[dict[str, list[int]]]:
    """What a tokenizer made of texts, by the text."""
    return [{key: encoded[key][i] for key in encoded} for i in range(len(encoded["input_ids"]))]
