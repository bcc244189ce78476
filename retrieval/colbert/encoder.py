"""Token vectors of passages and queries by a ColBERT checkpoint (Khattab and Zaharia, 2020, section 3.2)."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from hoptimizer.models.engine.loading import device_and_dtype, loading
from hoptimizer.retrieval.colbert.checkpoint import Checkpoint
from hoptimizer.retrieval.colbert.shim import adapt_colbert_ai
from hoptimizer.retrieval.encoders.cut import cut_rows
from hoptimizer.retrieval.encoders.windows import EncodedWindow, PassageEncoder

# Passages per batch.
_BATCH = 32


@dataclass(frozen=True)
class Tokens:
    """A padded batch of texts; each tensor has the shape ``(texts, tokens)``.

    Attributes:
        ids: token ids.
        mask: 1 where the model attends.
        kept: which tokens' vectors count.
    """

    ids: torch.Tensor
    mask: torch.Tensor
    kept: torch.Tensor

    def rows(self, rows: torch.Tensor) -> "Tokens":
        """Some of the texts, by their row numbers, with no more padding than they need."""
        ids, mask, kept = self.ids[rows], self.mask[rows], self.kept[rows]
        longest = int((mask.bool() | kept).sum(1).max())
        return Tokens(ids[:, :longest], mask[:, :longest], kept[:, :longest])


PassageTokenEncoder = PassageEncoder[list[torch.Tensor]]
"""What gives the tokens of passages their vectors, here or in other processes."""


class TokenEncoder(PassageTokenEncoder):
    """A checkpoint that gives each token of a text a vector, run in the hardware's best precision.

    Passages are encoded in the order of their lengths, so that a batch holds hardly any padding. colbert-ai's own
    encoder takes them as they come and in fp32, which takes several times as long on a CPU that has bf16.

    Attributes:
        folder: the checkpoint's folder.
        dim: length of a token vector.
        max_tokens: the tokens that are read of a passage, its mark and the ends included.
        max_query_tokens: those that are read of a query, likewise.
        device: where it runs.
        model: the encoder under the projection.
        config: the checkpoint's settings, as colbert-ai's ``ColBERTConfig``.
    """

    folder: Path
    dim: int
    max_tokens: int
    max_query_tokens: int
    device: torch.device
    model: PreTrainedModel
    config: Any

    def window(self, texts: list[str]) -> EncodedWindow[list[torch.Tensor]]:
        """Encode one window of passages; those that are too long are cut at ``max_tokens``.

        Returns:
            The rows of a batch's passages, and for each passage its vectors ``(tokens, dim)``: fp16, of length 1, on
            the CPU, without those of punctuation.
        """
        tokens, cut = self.tokenize_passages(texts)
        return EncodedWindow(self._batches(tokens), cut)

    @torch.inference_mode()
    def _batches(self, tokens: Tokens) -> Iterator[tuple[list[int], list[torch.Tensor]]]:
        for rows in tokens.kept.sum(1).cpu().argsort(stable=True).split(_BATCH):
            batch = tokens.rows(rows)
            vectors, kept = self.vectors(batch).half().cpu(), batch.kept.cpu()
            yield rows.tolist(), [vector[keep] for vector, keep in zip(vectors, kept, strict=True)]

    @torch.inference_mode()
    def queries(self, texts: list[str]) -> list[torch.Tensor]:
        """Encode queries, cut at the checkpoint's ``query_maxlen``.

        A checkpoint with a mask token of its own has each query filled up to that length with it (ColBERT's query
        augmentation).

        Returns:
            For each query its vectors ``(tokens, dim)``: fp32, of length 1, on the encoder's device.
        """
        each, cut = [], []
        for text in texts:
            tokens, rows = self.tokenize_queries([text])
            each.append(tokens)
            cut += [text] * len(rows)
        self.tell_cut_queries(cut, self.max_query_tokens)
        found: dict[int, torch.Tensor] = {}
        order = sorted(range(len(texts)), key=lambda i: each[i].ids.shape[1])
        for _, alike in groupby(order, key=lambda i: each[i].ids.shape[1]):
            places = list(alike)
            # Padding would change the last digits of scores, and with them close rankings. So would other queries in
            # the batch, on a GPU.
            size = _BATCH if self.device.type == "cpu" else 1
            for start in range(0, len(places), size):
                batch = places[start : start + size]
                ids, mask = (
                    torch.cat(parts) for parts in zip(*((each[i].ids, each[i].mask) for i in batch), strict=True)
                )
                hidden = self.model(ids, attention_mask=mask)[0]
                for row, place in enumerate(batch):
                    found[place] = self._projected(hidden[row])[each[place].kept[0]]
        return [found[place] for place in range(len(texts))]

    @abstractmethod
    def tokenize_passages(self, texts: list[str]) -> tuple[Tokens, list[int]]:
        """Passages as the checkpoint reads them, and the rows of those that were cut; punctuation is read, but its
        vectors are not kept."""

    @abstractmethod
    def tokenize_queries(self, texts: list[str]) -> tuple[Tokens, list[int]]:
        """Queries as the checkpoint reads them, and the rows of those that were cut."""

    def vectors(self, tokens: Tokens) -> torch.Tensor:
        """Vectors ``(texts, tokens, dim)`` of length 1, fp32; only those of kept tokens have a meaning."""
        return self._projected(self.model(tokens.ids, attention_mask=tokens.mask)[0])

    def _projected(self, hidden: torch.Tensor) -> torch.Tensor:
        """Token vectors of length 1 from hidden states ``(..., tokens, hidden)``."""
        return torch.nn.functional.normalize(self.projection(hidden.float()), dim=-1)

    @property
    @abstractmethod
    def projection(self) -> torch.nn.Module:
        """What makes token vectors of hidden states, in fp32."""


class ColBERTEncoder(TokenEncoder):
    """A checkpoint's model and tokenizers as colbert-ai loads them."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        adapt_colbert_ai()
        from colbert.infra import ColBERTConfig
        from colbert.modeling.checkpoint import Checkpoint as ColBERTCheckpoint

        self.folder = checkpoint.folder
        folder = str(checkpoint.folder)
        with loading(folder, "a ColBERT checkpoint"):
            # The settings of the checkpoint may name another model, whose classes would be taken.
            here = ColBERTConfig(checkpoint=folder, model_name=folder)
            self.config = ColBERTConfig.from_existing(ColBERTConfig.load_from_checkpoint(folder), here)
            self._colbert = ColBERTCheckpoint(folder, colbert_config=self.config, verbose=0)
        self.device = self._colbert.device
        self.dim, self.max_tokens = self.config.dim, self.config.doc_maxlen
        self.max_query_tokens = self.config.query_maxlen
        self.model = self._colbert.bert
        self._colbert.model.to(device_and_dtype()[1])
        self.projection.float()
        skipped = {i for i in self._colbert.skiplist if isinstance(i, int)} if self.config.mask_punctuation else set()
        self._skipped = torch.tensor([self._colbert.pad_token, *sorted(skipped)])

    @property
    def projection(self) -> torch.nn.Linear:
        """The layer from hidden states to token vectors, in fp32."""
        return self._colbert.linear

    def tokenize_passages(self, texts: list[str]) -> tuple[Tokens, list[int]]:
        """Passages as the checkpoint reads them, and the rows of those that were cut; punctuation is read, but its
        vectors are not kept."""
        # As colbert-ai's tensorize, which does not tell what was cut.
        reader, most = self._colbert.doc_tokenizer, self.max_tokens - 1
        encoded = reader.tok(texts, padding="longest", truncation=True, return_tensors="pt", max_length=most)
        ids, mask = self._marked(encoded, reader.D_marker_token_id)
        return Tokens(ids, mask, ~torch.isin(ids, self._skipped.to(self.device))), cut_rows(encoded, most)

    def tokenize_queries(self, texts: list[str]) -> tuple[Tokens, list[int]]:
        """Queries as the checkpoint reads them, and the rows of those that were cut."""
        reader, most = self._colbert.query_tokenizer, self.max_query_tokens - 1
        encoded = reader.tok(texts, padding="max_length", truncation=True, return_tensors="pt", max_length=most)
        ids, mask = self._marked(encoded, reader.Q_marker_token_id)
        ids[ids == reader.pad_token_id] = reader.mask_token_id
        if self.config.attend_to_mask_tokens:
            mask[ids == reader.mask_token_id] = 1
        tokens = Tokens(ids, mask, ids != self._colbert.pad_token)
        return tokens.rows(torch.arange(len(ids))), cut_rows(encoded, most)

    def _marked(self, encoded: Any, mark: int) -> Iterator[torch.Tensor]:  # noqa: ANN401 - of transformers
        """Ids and attention mask ``(texts, tokens)`` of texts, with a mark after the first token."""
        for part, value in ((encoded["input_ids"], mark), (encoded["attention_mask"], 1)):
            yield torch.cat([part[:, :1], torch.full_like(part[:, :1], value), part[:, 1:]], dim=1).to(self.device)
