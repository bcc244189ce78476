"""Late interaction in Qdrant: its multi-vectors, compared by MaxSim."""

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from hoptimizer.common.errors import UserError
from hoptimizer.common.paths import expanded
from hoptimizer.retrieval.engines.engine import NoAnswer
from hoptimizer.retrieval.engines.http import BUSY
from hoptimizer.retrieval.engines.late_interaction import LateInteractionRetriever
from hoptimizer.retrieval.engines.settings import QdrantSettings
from hoptimizer.retrieval.passage import Corpus, Passage

try:
    import httpx
    from qdrant_client import QdrantClient
    from qdrant_client.common.client_exceptions import QdrantException
    from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse
    from qdrant_client.models import (
        Distance,
        MultiVectorComparator,
        MultiVectorConfig,
        PointStruct,
        QueryRequest,
        VectorParams,
    )
except ImportError as error:
    raise UserError("retriever.name=qdrant: qdrant-client is missing; pip install 'hoptimizer[qdrant]'") from error

# Points are numbered or have a UUID: a passage's is made of its id.
_POINTS = uuid.UUID("6a7f2a3e-5c0c-4d57-9d0d-0d6f6f5f1a10")
# Of 300 tokens with 384 numbers as JSON each; a server takes 32 MB at a time.
_POINTS_AT_ONCE = 8
# Of each folder in use: a client locks its folder, for this process as well.
_clients: WeakValueDictionary[Path, QdrantClient] = WeakValueDictionary()


class QdrantRetriever(LateInteractionRetriever):
    """Searches a collection of Qdrant's, a server or a folder of its client, with a ColBERT checkpoint's queries.

    Args:
        settings: which collection, and which checkpoint.
        corpus: a found passage whose id it has is given as that passage.

    Raises:
        UserError: there is no such collection, or the checkpoint can't be had.
    """

    name = "qdrant"

    def __init__(self, settings: QdrantSettings, corpus: Corpus) -> None:
        super().__init__(settings, corpus)
        self._settings = settings
        self.computes = bool(settings.path)  # in a folder, vectors are compared here
        if settings.path:
            self._client = _client_of(settings.path)
        else:
            key = os.environ.get("QDRANT_API_KEY")
            # A port that the URL lacks is that of its scheme; the client would take its own.
            self._client = QdrantClient(
                url=settings.url,
                port=None,
                api_key=key,
                timeout=max(1, int(settings.timeout)),
                check_compatibility=False,
            )

    def ask(self, queries: Sequence[list[list[float]]], k: int) -> list[list[tuple[Mapping[str, Any], float]]]:
        requests = [
            QueryRequest(query=vectors, using=self._settings.vector, limit=k, with_payload=True) for vectors in queries
        ]
        with self._answering():
            answers = self._client.query_batch_points(self._settings.collection, requests)
        return [[(point.payload or {}, point.score) for point in answer.points] for answer in answers]

    def push(self, passages: Sequence[Passage]) -> int:
        name, vector = self._settings.collection, self._settings.vector
        ids = {passage.id: str(uuid.uuid5(_POINTS, passage.id)) for passage in passages}
        with self._answering():
            if not self._client.collection_exists(name):
                multi = MultiVectorConfig(comparator=MultiVectorComparator.MAX_SIM)
                vectors = VectorParams(size=self._encoder.dim, distance=Distance.DOT, multivector_config=multi)
                self._client.create_collection(name, vectors_config={vector: vectors} if vector else vectors)
            wanted = {one.id: self.fields_of(one) for one in passages}
            stored = {point.id: point.payload for point in self._client.retrieve(name, list(ids.values()))}
            lacking = [one for one in passages if stored.get(ids[one.id]) != wanted[one.id]]
            points = (
                PointStruct(id=ids[one.id], vector={vector: found} if vector else found, payload=wanted[one.id])
                for one, found in self.with_vectors(lacking)
            )
            while some := list(islice(points, _POINTS_AT_ONCE)):
                self._client.upsert(name, some)
        return len(lacking)

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Within it, the client's errors are those of engines."""
        try:
            yield
        except QdrantException as error:  # status 429 with a time to wait, which the client reads if it is a number
            raise NoAnswer("status 429", after=getattr(error, "retry_after_s", None)) from error
        except (ResponseHandlingException, httpx.HTTPError) as error:
            raise NoAnswer(str(error)) from error
        except UnexpectedResponse as error:
            said = (error.content or b"").decode("utf-8", "replace")
            if error.status_code in BUSY:
                raise NoAnswer(f"status {error.status_code}") from error
            raise self.refused(f"status {error.status_code} {said}") from error
        except ValueError as error:  # of the client's own collections: there is none, or vectors do not fit
            raise self.refused(str(error)) from error


def _client_of(folder: str) -> QdrantClient:
    """The client of a folder, which all retrievers of this process share.

    Raises:
        UserError: another process has one.
    """
    path = expanded(folder).resolve()
    client = _clients.get(path)
    if client is None:
        try:
            client = QdrantClient(path=str(path), force_disable_check_same_thread=True)
        except RuntimeError as error:
            raise UserError(f"retriever.path: {folder} is in use by another process") from error
        _clients[path] = client
    return client
