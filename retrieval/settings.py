"""The retriever's section of the config."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class RetrieverSettings(BaseModel):
    """Which retriever finds passages, and how many.

    Attributes:
        name: ``colbert`` (late interaction; Khattab and Zaharia, 2020) or ``bm25`` (IRCoT's retriever).
        checkpoint: ``minilm``, the embedded one, or a ColBERT checkpoint's hub id or folder.
        index: ``exact`` scores every passage, ``plaid`` prunes first (Santhanam et al., 2022), ``auto`` chooses by the
            corpus' size.
        k: passages that a search returns.
        url: URL of a ColBERT server that searches instead, so that no index is built here.

    Example:
        >>> from hoptimizer.retrieval import RetrieverSettings
        >>> RetrieverSettings(name="bm25", k=6)
        RetrieverSettings(name='bm25', checkpoint='minilm', index='auto', k=6, url=None)
    """

    model_config = ConfigDict(extra="forbid")

    name: Literal["colbert", "bm25"] = "colbert"
    checkpoint: str = Field("minilm", min_length=1)
    index: Literal["auto", "exact", "plaid"] = "auto"
    k: int = Field(4, ge=1)
    url: str | None = Field(None, pattern="^https?://")

    @model_validator(mode="after")
    def _url_is_colberts(self) -> Self:
        if self.url and self.name != "colbert":
            raise ValueError(f"url is a ColBERT server's, but name is {self.name!r}: drop one of them")
        return self
