"""The ``retriever`` section of a config for search engines that run elsewhere."""

import os
import re
from typing import Annotated, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, PositiveFloat, StringConstraints, field_serializer, field_validator, model_validator

from hoptimizer.common.urls import names_host, says_secret, without_secrets
from hoptimizer.retrieval.options import RetrieverOptions


class EngineSettings(RetrieverOptions):
    """What all engines have in common.

    Attributes:
        url: the engine's address, without a name and a password: these come from the environment.
        id_field: the field with a passage's id. One that the corpus knows is given as the corpus has it.
        title_field: the field with its title.
        text_field: the field with its text.
        timeout: seconds for an answer; a search that had none is made three times more.
    """

    _EXAMPLE: ClassVar[str]
    _LOGIN: ClassVar[tuple[str, ...]] = ()

    url: str = ""
    id_field: str = Field("id", min_length=1)
    title_field: str = Field("title", min_length=1)
    text_field: str = Field("text", min_length=1)
    timeout: PositiveFloat = 30.0

    @field_validator("url")
    @classmethod
    def _is_a_url_without_a_secret(cls, url: str) -> str:
        if without_secrets(url) != url:
            raise ValueError(f"{without_secrets(url)}: name, password and key come from the environment, not the URL")
        if url and not cls._fits(url):
            raise ValueError(f"expected a URL such as {cls._EXAMPLE}")
        return url

    @classmethod
    def _fits(cls, url: str) -> bool:
        return names_host(url)

    @model_validator(mode="after")
    def _is_somewhere(self) -> Self:
        if not self.url:
            raise ValueError(f"url is missing, such as {self._EXAMPLE}")
        return self

    @field_serializer("url")
    def _public(self, url: str) -> str:
        return without_secrets(url)

    @property
    def urls(self) -> tuple[str, ...]:
        """The engine."""
        return (self.url,) if self.url else ()

    @property
    def elsewhere(self) -> bool:
        """Always: the passages are in the engine."""
        return True

    @property
    def login(self) -> tuple[str, ...]:
        """The values of the environment's variables that say who asks."""
        return tuple(os.environ.get(name, "") for name in self._LOGIN)


class LateInteractionSettings(EngineSettings):
    """What engines that compare the vectors of tokens have in common.

    Attributes:
        checkpoint: ``minilm``, or a ColBERT checkpoint's hub id or folder, which encodes the queries.
    """

    checkpoint: str = Field("minilm", min_length=1)


class QdrantSettings(LateInteractionSettings):
    """Multi-vectors in Qdrant, compared by MaxSim (late interaction; Khattab and Zaharia, 2020).

    The environment's ``QDRANT_API_KEY`` is the key.

    Attributes:
        name: ``qdrant``.
        collection: the collection; its points have the vectors of ``checkpoint``, and the fields as their payload.
        vector: the name of the multi-vector; ``None`` for the unnamed one.
        path: a folder in which qdrant-client keeps a collection itself, instead of ``url``.

    Example:
        >>> from hoptimizer.retrieval.engines.settings import QdrantSettings
        >>> QdrantSettings(url="http://localhost:6333", collection="wiki").shown
        'qdrant wiki at http://localhost:6333'
    """

    _EXAMPLE: ClassVar[str] = "http://localhost:6333"
    _LOGIN: ClassVar[tuple[str, ...]] = ("QDRANT_API_KEY",)

    name: Literal["qdrant"] = "qdrant"
    collection: str = Field(min_length=1)
    vector: str | None = None
    path: str | None = None

    @model_validator(mode="after")
    def _is_somewhere(self) -> Self:
        if bool(self.url) == bool(self.path):
            raise ValueError("give either url, of a server, or path, a folder of qdrant-client")
        return self

    @property
    def _found_by(self) -> str:
        return f"{self.name} {self.collection} at {self.url or self.path}"


class NextPlaidSettings(LateInteractionSettings):
    """PLAID in NextPlaid's server (late interaction; Santhanam et al., 2022).

    The environment's ``NEXT_PLAID_API_KEY`` is the key that a proxy before it may want (``Authorization: Bearer``).

    Attributes:
        name: ``next_plaid``.
        index: the index; its documents have the vectors of ``checkpoint``, and the fields as their metadata.

    Example:
        >>> from hoptimizer.retrieval.engines.settings import NextPlaidSettings
        >>> NextPlaidSettings(url="http://localhost:8080", index="wiki").shown
        'next_plaid wiki at http://localhost:8080'
    """

    _EXAMPLE: ClassVar[str] = "http://localhost:8080"
    _LOGIN: ClassVar[tuple[str, ...]] = ("NEXT_PLAID_API_KEY",)

    name: Literal["next_plaid"] = "next_plaid"
    index: str = Field(pattern=r"^[^\s/?#]+$")

    @property
    def _found_by(self) -> str:
        return f"{self.name} {self.index} at {self.url}"


class OpenSearchSettings(EngineSettings):
    """BM25 of OpenSearch or Elasticsearch, over title and text.

    The environment's ``OPENSEARCH_API_KEY`` is the key (``Authorization: ApiKey``), or ``OPENSEARCH_USER`` and
    ``OPENSEARCH_PASSWORD`` are name and password.

    Attributes:
        name: ``opensearch``.
        index: the index or its alias.

    Example:
        >>> from hoptimizer.retrieval.engines.settings import OpenSearchSettings
        >>> OpenSearchSettings(url="http://localhost:9200", index="wiki").shown
        'opensearch wiki at http://localhost:9200'
    """

    _EXAMPLE: ClassVar[str] = "http://localhost:9200"
    _LOGIN: ClassVar[tuple[str, ...]] = ("OPENSEARCH_API_KEY", "OPENSEARCH_USER", "OPENSEARCH_PASSWORD")

    name: Literal["opensearch"] = "opensearch"
    index: str = Field(pattern=r"^[^\s/?#,\\*]+$")

    @property
    def _found_by(self) -> str:
        return f"{self.name} {self.index} at {self.url}"


class PostgresSettings(EngineSettings):
    """PostgreSQL's full-text search over title and text, ranked by ``ts_rank_cd``.

    A passage is found by any of the query's words. libpq's variables ``PGUSER``, ``PGPASSWORD`` and ``PGPASSFILE`` say
    who asks.

    Attributes:
        name: ``postgres``.
        table: the table or view, with its schema where it has one; the fields are its columns.
        language: the text-search configuration.

    Example:
        >>> from hoptimizer.retrieval.engines.settings import PostgresSettings
        >>> PostgresSettings(url="postgresql://db/wiki", table="passages").shown
        'postgres passages at postgresql://db/wiki'
    """

    _EXAMPLE: ClassVar[str] = "postgresql://localhost/wiki"
    _LOGIN: ClassVar[tuple[str, ...]] = ("PGUSER", "PGPASSWORD", "PGPASSFILE")

    name: Literal["postgres"] = "postgres"
    table: str = Field(pattern=r"^[^.]+(\.[^.]+)?$")
    language: str = Field("english", min_length=1)

    @classmethod
    def _fits(cls, url: str) -> bool:
        return urlsplit(url).scheme in ("postgresql", "postgres")

    @property
    def _found_by(self) -> str:
        return f"{self.name} {self.table} at {self.url}"


_Path = Annotated[str, StringConstraints(pattern=r"^[^.]+(\.[^.]+)*$")]


class WebSettings(EngineSettings):
    """A search of the web: any search API that is asked by ``GET`` and answers JSON.

    Attributes:
        name: ``web``.
        url: the address of the search, without its parameters.
        query_param: the parameter that the query stands in.
        count_param: the parameter that says how many pages are wanted; ``None`` if the API has none.
        pages: how many that is (20 in Lazaridou et al., 2022).
        params: further parameters and their values, such as a format or a language.
        key_header: the header that the key stands in, such as ``X-Subscription-Token``.
        key_env: the environment's variable with the key, which is sent as it is, so with ``Bearer `` before it where
            the API wants that.
        results: the keys that lead to the list of pages in the answer, with dots between them.
        words: the most words of a passage; a longer page is divided.
        id_field: the field with a page's address.

    Example:
        >>> from hoptimizer.retrieval.engines.settings import WebSettings
        >>> WebSettings(url="http://localhost:8888/search", params={"format": "json"}, text_field="content").shown
        'web http://localhost:8888/search'
    """

    _EXAMPLE: ClassVar[str] = "https://api.search.brave.com/res/v1/web/search"

    name: Literal["web"] = "web"
    query_param: str = Field("q", min_length=1)
    count_param: str | None = Field(None, min_length=1)
    pages: int = Field(20, ge=1)
    params: dict[str, str] = Field({})
    key_header: str | None = Field(None, pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")
    key_env: str | None = None
    results: _Path = "results"
    words: int = Field(200, ge=10)
    id_field: str = Field("url", min_length=1)

    # Of the whole section: what stands in a wrong place may be a key, and a section is not shown in errors.
    @model_validator(mode="after")
    def _has_no_key_in_it(self) -> Self:
        if secret := next((name for name in self.params if says_secret(name)), None):
            raise ValueError(f"params.{secret}: a key comes from the environment, by key_header and key_env")
        if (self.key_header is None) != (self.key_env is None):
            raise ValueError("key_header and key_env belong together: give both, or drop both")
        if self.key_env is not None and not re.fullmatch("[A-Z][A-Z0-9_]*", self.key_env):
            raise ValueError("key_env: expected the name of a variable of the environment, such as BRAVE_API_KEY")
        return self

    @property
    def login(self) -> tuple[str, ...]:
        """The value of the environment's variable with the key."""
        return (os.environ.get(self.key_env, ""),) if self.key_env else ()

    @property
    def _found_by(self) -> str:
        return f"{self.name} {self.url}"
