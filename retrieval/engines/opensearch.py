"""BM25 of OpenSearch or Elasticsearch, over their common search API."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import requests
from pydantic import BaseModel, Field, FiniteFloat

from hoptimizer.common.errors import UserError
from hoptimizer.common.strict import read_json
from hoptimizer.retrieval.engines.engine import EngineRetriever, NoAnswer
from hoptimizer.retrieval.engines.http import BUSY, UNAUTHORIZED, respond
from hoptimizer.retrieval.engines.settings import OpenSearchSettings
from hoptimizer.retrieval.passage import Corpus, Passage


class _Hit(BaseModel):
    id: str = Field(alias="_id")
    score: FiniteFloat = Field(alias="_score")
    source: dict[str, Any] = Field(alias="_source", default={})


class _Hits(BaseModel):
    hits: list[_Hit]


class _Shards(BaseModel):
    failed: int = 0


class _Answer(BaseModel):
    hits: _Hits | None = None
    timed_out: bool = False
    shards: _Shards = Field(alias="_shards", default=_Shards())
    error: Any = None
    status: int = 200


class _Answers(BaseModel):
    responses: list[_Answer]


class _Stored(BaseModel):
    status: int
    result: str = ""
    error: Any = None


class _AllStored(BaseModel):
    items: list[dict[str, _Stored]]


class OpenSearchRetriever(EngineRetriever):
    """Searches an index of OpenSearch or Elasticsearch with ``multi_match`` over title and text (``_msearch``).

    Args:
        settings: which index.
        corpus: a found passage whose id it has is given as that passage.
    """

    name = "opensearch"
    at_once = 4

    def __init__(self, settings: OpenSearchSettings, corpus: Corpus) -> None:
        super().__init__(settings, corpus)
        self._settings = settings
        self._url = f"{settings.url.rstrip('/')}/{settings.index}"
        self._headers, self._login = {"Content-Type": "application/x-ndjson"}, None
        if key := os.environ.get("OPENSEARCH_API_KEY"):
            self._headers["Authorization"] = f"ApiKey {key}"
        elif user := os.environ.get("OPENSEARCH_USER"):
            self._login = (user, os.environ.get("OPENSEARCH_PASSWORD", ""))

    def ask(self, queries: Sequence[str], k: int) -> list[list[tuple[Mapping[str, Any], float]]]:
        fields = [self._settings.title_field, self._settings.text_field]
        lines = []
        for query in queries:
            match = {"query": query, "fields": fields, "type": "most_fields"}
            lines += [{}, {"query": {"multi_match": match}, "size": k}]
        return self._read(self._post("_msearch", lines), len(queries))

    def push(self, passages: Sequence[Passage]) -> int:
        lines: list[dict[str, Any]] = []
        for one in passages:
            lines += [{"update": {"_id": one.id}}, {"doc": self.fields_of(one), "doc_as_upsert": True}]
        content = self._post("_bulk", lines)
        try:
            items = _AllStored.model_validate(read_json(content)).items
        except ValueError as error:  # pydantic's are such, too
            raise self._stranger() from error
        stored = [done for item in items for done in item.values()]
        for done in stored:
            if done.status in BUSY:
                raise NoAnswer(f"status {done.status}")
            if done.error:
                raise self.refused(f"status {done.status} {json.dumps(done.error)}")
        if len(stored) != len(passages):
            raise self._stranger()
        return sum(done.result != "noop" for done in stored)

    def _post(self, api: str, lines: Sequence[dict[str, Any]]) -> bytes:
        """What an API answers to a body of JSON lines.

        Raises:
            NoAnswer: there is none at the moment.
            UserError: the engine refuses.
        """
        body = "".join(json.dumps(line) + "\n" for line in lines)
        options = {"headers": self._headers, "auth": self._login, "timeout": self._settings.timeout}
        response = respond(self, "POST", f"{self._url}/{api}", data=body.encode("utf-8"), **options)
        if response.status_code in BUSY:
            raise NoAnswer(f"status {response.status_code}")
        if response.status_code in UNAUTHORIZED:
            raise self.refused(
                f"status {response.status_code}; set OPENSEARCH_API_KEY, or OPENSEARCH_USER and OPENSEARCH_PASSWORD"
            )
        if response.status_code != requests.codes.ok:
            raise self.refused(f"status {response.status_code} {response.text}")
        return response.content

    def _read(self, content: bytes, queries: int) -> list[list[tuple[Mapping[str, Any], float]]]:
        try:
            answers = _Answers.model_validate(read_json(content)).responses
        except ValueError as error:  # pydantic's are such, too
            raise self._stranger() from error
        found: list[list[tuple[Mapping[str, Any], float]]] = []
        for answer in answers:
            if answer.status in BUSY:
                raise NoAnswer(f"status {answer.status}")
            if answer.hits is None:
                raise self.refused(f"status {answer.status} {json.dumps(answer.error)}")
            if answer.timed_out or answer.shards.failed:  # the best of the other shards are not the best of all
                raise NoAnswer("timed out" if answer.timed_out else f"{answer.shards.failed} shards failed")
            found.append([({"id": hit.id} | hit.source, hit.score) for hit in answer.hits.hits])
        if len(found) != queries:
            raise self._stranger()
        return found

    def _stranger(self) -> UserError:
        return self.refused("no answer of its API: give the address of OpenSearch or Elasticsearch")
