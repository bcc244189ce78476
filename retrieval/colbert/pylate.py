"""ColBERT checkpoints in PyLate's layout: an encoder of transformers, projections, and settings beside them."""

import string
from functools import cached_property
from typing import Any

import torch
from pydantic import BaseModel, Field, ValidationError

from hoptimizer.common.errors import UserError
from hoptimizer.common.validation import explain
from hoptimizer.models.engine.loading import device_and_dtype
from hoptimizer.retrieval.colbert.checkpoint import Checkpoint
from hoptimizer.retrieval.colbert.encoder import TokenEncoder, Tokens
from hoptimizer.retrieval.colbert.shim import adapt_colbert_ai
from hoptimizer.retrieval.encoders.cut import cut_rows
from hoptimizer.retrieval.encoders.sentence_modules import SETTINGS, load_projections, read_settings
from hoptimizer.retrieval.encoders.text_encoder import load_text_encoder

_KEY = "retriever.checkpoint"


class _Settings(BaseModel):
    """What ``config_sentence_transformers.json`` says of queries and passages; PyLate's defaults.

    Attributes:
        query_prefix, document_prefix: the token that stands after the first one; empty for none.
        query_length, document_length: the most tokens of a text, that token included.
        do_query_expansion: whether a query is filled up with mask tokens, whose vectors count.
        attend_to_expansion_tokens: whether its other tokens attend to these.
        skiplist_words: tokens of passages whose vectors are not kept.
        prompts: texts by name.
        default_prompt_name: the one that stands before every text.
    """

    query_prefix: str = "[Q] "
    document_prefix: str = "[D] "
    query_length: int = Field(32, ge=4)
    document_length: int = Field(180, ge=4)
    do_query_expansion: bool = True
    attend_to_expansion_tokens: bool = False
    skiplist_words: list[str] = list(string.punctuation)
    prompts: dict[str, str] | None = None
    default_prompt_name: str | None = None


class PyLateEncoder(TokenEncoder):
    """A checkpoint that PyLate wrote, such as ``lightonai/GTE-ModernColBERT-v1``.

    Args:
        checkpoint: its modules are an encoder and one projection or several.

    Raises:
        UserError: it can't be loaded, or its files do not fit each other.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.folder = checkpoint.folder
        file = self.folder / SETTINGS
        try:
            self._settings = settings = _Settings.model_validate(read_settings(file))
        except ValidationError as error:
            raise UserError(f"{file}: {explain(error, _Settings)}; take the file as it was published") from error
        transformer, *projections = checkpoint.modules
        self.max_tokens, self.max_query_tokens = settings.document_length, settings.query_length
        self.device, dtype = device_and_dtype()
        model, self._tokenizer, config = load_text_encoder(transformer.folder, _KEY)
        self.model = model.to(self.device, dtype)
        self._projection, self.dim = load_projections([module.folder for module in projections], config.hidden_size)
        self._projection.to(self.device)
        self._lower = read_settings(transformer.folder / "sentence_bert_config.json").get("do_lower_case") is True
        self._prompt = (settings.prompts or {}).get(settings.default_prompt_name or "", "")
        self._query_id, self._passage_id = (self._id(p) for p in (settings.query_prefix, settings.document_prefix))
        self._filling = self._tokenizer.mask_token_id or self._tokenizer.eos_token_id or self._tokenizer.pad_token_id
        known = (self._tokenizer.convert_tokens_to_ids(word) for word in settings.skiplist_words)
        self._skipped = torch.tensor(sorted({i for i in known if i is not None}), dtype=torch.long)
        ids = [i for i in (self._query_id, self._passage_id, self._filling) if i is not None]
        if self._filling is None or max(ids) >= self.model.get_input_embeddings().num_embeddings:
            raise UserError(
                f"{_KEY}: the tokenizer in {transformer.folder} has tokens that its model does not know; "
                "copy both from the same checkpoint"
            )

    @property
    def projection(self) -> torch.nn.Module:
        """The layers from hidden states to token vectors, in fp32."""
        return self._projection

    @cached_property
    def config(self) -> Any:  # noqa: ANN401 - colbert-ai's class
        """The checkpoint's settings, as colbert-ai's ``ColBERTConfig``, which PLAID searches with."""
        adapt_colbert_ai()
        from colbert.infra import ColBERTConfig

        lengths = {"query_maxlen": self._settings.query_length, "doc_maxlen": self._settings.document_length}
        return ColBERTConfig(checkpoint=str(self.folder), dim=self.dim, **lengths)

    def tokenize_passages(self, texts: list[str]) -> tuple[Tokens, list[int]]:
        ids, mask, cut = self._tokenize(texts, self._passage_id, self.max_tokens, fill=False)
        return Tokens(ids, mask, mask.bool() & ~torch.isin(ids, self._skipped.to(ids.device))), cut

    def tokenize_queries(self, texts: list[str]) -> tuple[Tokens, list[int]]:
        fill = self._settings.do_query_expansion
        ids, mask, cut = self._tokenize(texts, self._query_id, self.max_query_tokens, fill)
        kept = torch.ones_like(mask, dtype=torch.bool) if fill else mask.bool()
        if fill and self._settings.attend_to_expansion_tokens:
            mask = torch.ones_like(mask)
        return Tokens(ids, mask, kept), cut

    def _id(self, prefix: str) -> int | None:
        """The token of a prefix; ``None`` where there is none."""
        if not prefix:
            return None
        known: int | None = self._tokenizer.get_vocab().get(prefix)
        if known is None:
            raise UserError(
                f"{_KEY}: the tokenizer in {self.folder} has no token {prefix!r:.40}, which {SETTINGS} names; take the "
                "folder as it was published"
            )
        return known

    def _tokenize(
        self, texts: list[str], prefix: int | None, longest: int, fill: bool
    ) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        """Ids and attention mask ``(texts, tokens)``, and the rows of those that were cut.

        Args:
            texts: the texts.
            prefix: the token to set after the first one.
            longest: the most tokens, and with ``fill`` the number of tokens.
            fill: whether texts are filled up.
        """
        texts = [self._prompt + text.strip() for text in texts]
        texts = [text.lower() for text in texts] if self._lower else texts
        most = longest - (prefix is not None)
        encoded = self._tokenizer(texts, truncation=True, max_length=most)
        rows = [row if prefix is None else [*row[:1], prefix, *row[1:]] for row in encoded["input_ids"]]
        width = longest if fill else max(len(row) for row in rows)
        ids = torch.tensor([row + [self._filling] * (width - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        return ids.to(self.device), mask.to(self.device), cut_rows(encoded, most)
