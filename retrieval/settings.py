"""The ``retriever`` section of a config."""

from collections.abc import Callable
from functools import cache
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, field_serializer, model_validator

from hoptimizer.common.options import Options, options_model
from hoptimizer.common.plugins import Registry, subclass_of
from hoptimizer.common.urls import without_secrets
from hoptimizer.retrieval.retriever import Retriever

DENSE = "all-minilm-l6-v2"
"""The encoder of the weights store that a dense retriever takes by default."""

Pooling = Literal["mean", "cls", "last"]


class RetrieverOptions(Options):
    """Which retriever finds passages, and how many; the options of a user's own are the fields of a subclass.

    Attributes:
        name: ``colbert``, ``bm25``, ``dense``, an entry point of ``hoptimizer.retrievers``, or a dotted path.
        k: passages that a search returns; ``None`` for as many as the program takes by default.
    """

    k: int | None = Field(None, ge=1)

    @property
    def shown(self) -> str:
        """What is searched with, in a few words without secrets."""
        return self.name


class RetrieverSettings(RetrieverOptions):
    """ColBERT and BM25.

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

    @field_serializer("url")
    def _public(self, url: str | None) -> str | None:
        return url and without_secrets(url)

    @model_validator(mode="after")
    def _url_is_colberts(self) -> Self:
        if self.url and self.name != "colbert":
            raise ValueError(f"url is a ColBERT server's, but name is {self.name!r}: drop one of them")
        return self

    @property
    def shown(self) -> str:
        """The name and, for ColBERT, the checkpoint or the server."""
        if self.name != "colbert":
            return self.name
        return f"{self.name} {without_secrets(self.url) if self.url else self.checkpoint}"


class DenseSettings(RetrieverOptions):
    """One vector for a passage (Karpukhin et al., 2020), such as Contriever's, E5's, BGE's or MiniLM's.

    Where an option is ``None``, the files of sentence-transformers in the model's folder say it; where there are none,
    vectors are the mean of all hidden states with length 1, and texts are up to 512 tokens without a prefix.

    Attributes:
        name: ``dense``.
        model: the encoder: a name of the weights store, a hub id or a folder, in the format of transformers or
            sentence-transformers, with weights as safetensors.
        pooling: which hidden states a text's vector is made of: the ``mean`` of all, the first (``cls``) or the
            ``last``.
        normalize: whether vectors have length 1, so that scores are cosines.
        query_prefix: stands before every query, such as E5's ``"query: "``.
        passage_prefix: stands before every passage.
        max_tokens: the most tokens of a text; the encoder may read fewer.
        k: passages that a search returns; ``None`` for as many as the program takes by default.

    Example:
        >>> from hoptimizer.retrieval import DenseSettings
        >>> DenseSettings(model="intfloat/e5-base-v2", query_prefix="query: ", passage_prefix="passage: ").shown
        'dense intfloat/e5-base-v2'
    """

    name: Literal["dense"] = "dense"
    model: str = Field(DENSE, min_length=1)
    pooling: Pooling | None = None
    normalize: bool | None = None
    query_prefix: str | None = None
    passage_prefix: str | None = None
    max_tokens: int | None = Field(None, ge=8)

    @property
    def shown(self) -> str:
        """The name and the encoder."""
        return f"{self.name} {self.model}"


_SETTINGS: dict[str, type[RetrieverOptions]] = {
    "colbert": RetrieverSettings,
    "bm25": RetrieverSettings,
    "dense": DenseSettings,
}
OWN = tuple(_SETTINGS)
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
    if name in _SETTINGS:
        return _SETTINGS[name]
    own: Any = options_model(name, _REGISTRY.get(name, "retriever.name"), given=("corpus",), base=RetrieverOptions)
    return own
