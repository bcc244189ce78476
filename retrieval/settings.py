"""The ``retriever`` section of a config."""

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveFloat,
    SerializeAsAny,
    WithJsonSchema,
    field_serializer,
    field_validator,
    model_validator,
)

from hoptimizer.common.errors import UserError
from hoptimizer.common.options import options_model, part_options
from hoptimizer.common.plugins import Registry, subclass_of
from hoptimizer.common.urls import names_host, without_secrets
from hoptimizer.retrieval.dense.settings import DenseSettings
from hoptimizer.retrieval.engines.settings import (
    NextPlaidSettings,
    OpenSearchSettings,
    PostgresSettings,
    QdrantSettings,
    WebSettings,
)
from hoptimizer.retrieval.hybrid import Fusion
from hoptimizer.retrieval.options import RetrieverOptions
from hoptimizer.retrieval.retriever import Retriever


class RetrieverSettings(RetrieverOptions):
    """ColBERT and BM25.

    Attributes:
        name: ``colbert`` (late interaction; Khattab and Zaharia, 2020) or ``bm25`` (IRCoT's retriever).
        checkpoint: ``minilm``, the embedded one, or a ColBERT checkpoint's hub id or folder.
        index: ``exact`` scores every passage, ``plaid`` prunes first (Santhanam et al., 2022), ``auto`` chooses by the
            corpus' size.
        bits: the most for each number of a vector in ``plaid``; with fewer it is smaller, and finds a little less.
        k: passages that a search returns; ``None`` for as many as the program takes by default.
        url: URL of a ColBERT server that searches instead, so that no index is built here; dumped without secrets.

    Example:
        >>> from hoptimizer.retrieval import RetrieverSettings
        >>> RetrieverSettings(name="bm25", k=6)
        RetrieverSettings(name='bm25', k=6, rerank=None, checkpoint='minilm', index='auto', bits=8, url=None)
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Literal["colbert", "bm25"] = "colbert"
    checkpoint: str = Field("minilm", min_length=1)
    index: Literal["auto", "exact", "plaid"] = "auto"
    bits: Literal[8, 4, 2] = 8
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

    @model_validator(mode="after")
    def _index_is_colberts(self) -> Self:
        given = [name for name in ("checkpoint", "index", "bits") if name in self.model_fields_set]
        given = [name for name in given if getattr(self, name) != type(self).model_fields[name].default]
        if given and (self.url or self.name != "colbert"):
            whose = "a server has an index of its own" if self.url else f"{self.name} has none of ColBERT's indexes"
            raise ValueError(f"{', '.join(given)}: {whose}; drop it")
        if self.bits != 8 and self.index == "exact":
            raise ValueError("bits is of the index plaid alone: drop it, or set retriever.index to plaid")
        return self

    @property
    def _found_by(self) -> str:
        if self.name != "colbert":
            return self.name
        return f"{self.name} {without_secrets(self.url) if self.url else self.checkpoint}"

    @property
    def urls(self) -> tuple[str, ...]:
        """The ColBERT server, if there is one."""
        return (self.url,) if self.url else ()


def _member(section: Any) -> RetrieverOptions:  # noqa: ANN401 - whatever the config holds
    if isinstance(section, RetrieverOptions):
        return section
    expected = "a retriever's name or a mapping with it"
    validated: Any = part_options(section, "retriever.of", expected, type(section).__name__, settings_model)
    if validated.name == "oracle":
        raise UserError("retriever.of: oracle finds what a question's annotation names, and is no part of another")
    if validated.k is not None:
        raise UserError(f"retriever.of: {validated.name}, as a part of another, has k; give one for all, retriever.k")
    return validated


_NAMED = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
Member = Annotated[
    SerializeAsAny[RetrieverOptions],
    BeforeValidator(_member),
    WithJsonSchema({"anyOf": [{"type": "string"}, _NAMED]}),
]
"""A retriever's name, or a mapping of its name and options."""


class HybridSettings(RetrieverOptions):
    """Several retrievers, whose rankings are fused.

    Attributes:
        name: ``hybrid``.
        of: the retrievers, each a name or a mapping of its name and options.
        depth: passages of each that are fused; at least ``k`` are.
        fusion: ``ranks``, ``scores`` or ``parts`` (`HybridRetriever` says how).
        weights: what each counts, in the order of ``of``; ``None`` if all count alike.
        k: passages that a search returns; ``None`` for as many as the program takes by default.

    Example:
        >>> from hoptimizer.retrieval import HybridSettings
        >>> HybridSettings(of=["bm25", {"name": "colbert", "checkpoint": "minilm"}], depth=50).shown
        'hybrid of bm25, colbert minilm'
    """

    name: Literal["hybrid"] = "hybrid"
    of: tuple[Member, ...] = Field(("bm25", "colbert"), min_length=2, validate_default=True)
    depth: int = Field(100, ge=1)
    fusion: Fusion = "ranks"
    weights: tuple[PositiveFloat, ...] | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.weights is not None and len(self.weights) != len(self.of):
            raise ValueError(
                f"weights has {len(self.weights)} numbers for {len(self.of)} retrievers; give one for each"
            )
        if self.fusion == "parts" and not all(member.urls for member in self.of):
            raise ValueError("parts are searched by servers: give each of retriever.of the url of its own")
        if self.fusion == "parts" and {"depth", "weights"} & self.model_fields_set:
            raise ValueError("depth and weights have no meaning for parts, whose scores are compared: drop them")
        return self

    @property
    def _found_by(self) -> str:
        weights = [f"{weight:g} " for weight in self.weights or ()] or [""] * len(self.of)
        members = (weight + member.shown for weight, member in zip(weights, self.of, strict=True))
        return f"{self.name}{'' if self.fusion == 'ranks' else f' by {self.fusion}'} of {', '.join(members)}"

    @property
    def urls(self) -> tuple[str, ...]:
        """The servers of all of them."""
        return tuple(url for member in self.of for url in member.urls)

    @property
    def elsewhere(self) -> bool:
        """Whether passages of one of them are elsewhere."""
        return any(member.elsewhere for member in self.of)

    @property
    def indexed_here(self) -> bool:
        """Whether one of them has an index that is built on this machine."""
        return any(member.indexed_here for member in self.of)

    @property
    def login(self) -> tuple[str, ...]:
        """What the environment says of who asks each."""
        return tuple(value for member in self.of for value in member.login)

    @property
    def encoders(self) -> tuple[str, ...]:
        """The models of all of them."""
        return (*super().encoders, *(one for member in self.of for one in member.encoders))


class OracleSettings(RetrieverOptions):
    """The supporting passages that the data set names.

    Attributes:
        name: ``oracle``.
        others: passages that support nothing and are shown among them.
        of: the retriever that finds those, and answers queries that are no question of the data set.
        k: the most passages that a search returns; ``None`` for as many as the program takes by default.

    Example:
        >>> from hoptimizer.retrieval.settings import OracleSettings
        >>> OracleSettings(others=5).shown
        'oracle and 5 of bm25'
    """

    name: Literal["oracle"] = "oracle"
    others: int = Field(0, ge=0)
    of: Member = Field("bm25", validate_default=True)

    @property
    def _found_by(self) -> str:
        return f"{self.name} and {self.others} of {self.of.shown}" if self.others else self.name

    @property
    def urls(self) -> tuple[str, ...]:
        """The other retriever's servers."""
        return self.of.urls

    @property
    def elsewhere(self) -> bool:
        """Whether the other retriever's passages are elsewhere."""
        return self.of.elsewhere

    @property
    def indexed_here(self) -> bool:
        """Whether the other retriever has an index that is built on this machine."""
        return self.of.indexed_here

    @property
    def login(self) -> tuple[str, ...]:
        """What the environment says of who asks it."""
        return self.of.login

    @property
    def encoders(self) -> tuple[str, ...]:
        """The other retriever's models."""
        return (*super().encoders, *self.of.encoders)


_SETTINGS: dict[str, type[RetrieverOptions]] = {
    "colbert": RetrieverSettings,
    "bm25": RetrieverSettings,
    "dense": DenseSettings,
    "hybrid": HybridSettings,
    "oracle": OracleSettings,
    "qdrant": QdrantSettings,
    "next_plaid": NextPlaidSettings,
    "opensearch": OpenSearchSettings,
    "postgres": PostgresSettings,
    "web": WebSettings,
}
OWN = tuple(_SETTINGS)
# Ours are built from their settings; a user's own from the arguments of its constructor.
_REGISTRY: Registry[Any] = Registry(
    "retriever",
    "hoptimizer.retrievers",
    dict.fromkeys(OWN),
    subclass_of("hoptimizer.retrieval.retriever:Retriever"),
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
