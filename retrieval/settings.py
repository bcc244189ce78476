"""The ``retriever`` section of a config."""

from collections.abc import Callable
from functools import cache
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, field_serializer, field_validator, model_validator

from hoptimizer.common.options import Options, options_model
from hoptimizer.common.plugins import Registry, subclass_of
from hoptimizer.common.urls import names_host, without_secrets
from hoptimizer.retrieval.retriever import Retriever


class RetrieverOptions(Options):
    """Which retriever finds passages, and how many; the options of a user's own are the fields of a subclass.

    Attributes:
        name: ``colbert``, ``bm25``, an entry point of ``hoptimizer.retrievers``, or a dotted path.
        k: passages that a search returns; ``None`` for as many as the program takes by default.
    """

    k: int | None = Field(None, ge=1)


class RetrieverSettings(RetrieverOptions):
    """Our own retrievers.

    Attributes:
        name: ``colbert`` (late interaction; Khattab and Zaharia, 2020) or ``bm25`` (IRCoT's retriever).
        checkpoint: ``minilm``, the embedded one, or a ColBERT checkpoint's hub id or folder.
        index: ``exact`` scores every passage, ``plaid`` prunes first (Santhanam et al., 2022), ``auto`` chooses by the
            corpus' size.
        k: passages that a search returns; ``None`` for as many as the program takes by default.
        url: URL of a ColBERT server that searches instead, so that no index is built here; dumped without secrets.

    Example:
        >>> from hoptimizer.retrieval import RetrieverSettings
        >>> RetrieverSettings(name="bm25", k=6)
        RetrieverSettings(name='bm25', k=6, checkpoint='minilm', index='auto', url=None)
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Literal["colbert", "bm25"] = "colbert"
    checkpoint: str = Field("minilm", min_length=1)
    index: Literal["auto", "exact", "plaid"] = "auto"
    k: int | None = Field(None, ge=1)
    url: str | None = Field(None, pattern="^https?://")

    @field_validator("url")
    @classmethod
    def _is_a_url(cls, url: str | None) -> str | None:
        if url and not names_host(url):
            raise ValueError("expected a URL such as http://localhost:8893/api/search")
        return url

    @field_serializer("url")
    def _public(self, url: str | None) -> str | None:
        return url and without_secrets(url)

    @model_validator(mode="after")
    def _url_is_colberts(self) -> Self:
        if self.url and self.name != "colbert":
            raise ValueError(f"url is a ColBERT server's, but name is {self.name!r}: drop one of them")
        return self


OWN = ("colbert", "bm25")
# Ours are built from their settings; a user's own from the arguments of its constructor.
_REGISTRY: Registry[Any] = Registry(
    "retriever",
    "hoptimizer.retrievers",
    dict.fromkeys(OWN),
    subclass_of(Retriever),
    "a subclass of hoptimizer.retrieval.Retriever",
)


def retriever_class(name: str) -> Callable[..., Retriever]:
    """A user's own retriever, by its entry point of ``hoptimizer.retrievers`` or its dotted path.

    Raises:
        UserError: there is none.
    """
    return _REGISTRY.get(name, "retriever.name")


@cache
def settings_model(name: str) -> type[RetrieverOptions]:
    """The options of a retriever as a pydantic model.

    Raises:
        UserError: there is no retriever of that name.
    """
    if name in OWN:
        return RetrieverSettings
    own: Any = options_model(name, _REGISTRY.get(name, "retriever.name"), given=("corpus",), base=RetrieverOptions)
    return own
