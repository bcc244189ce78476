"""A ColBERT server that is searched by its URL."""

import os
import threading
from collections.abc import Container
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import requests
import tenacity
from pydantic import BaseModel, FiniteFloat, StringConstraints, ValidationError

from hoptimizer.common.errors import ServiceError, UserError
from hoptimizer.common.strict import read_json
from hoptimizer.common.urls import text_without_secrets, without_secrets
from hoptimizer.retrieval.elsewhere import ElsewhereRetriever
from hoptimizer.retrieval.passage import Corpus, Passage

_TIMEOUT = 60  # seconds
_KEY = "COLBERT_API_KEY"
_UNAUTHORIZED = (401, 403)
_TRIES = 4
_BUSY = (429, 500, 502, 503, 504)
_BACKOFF = tenacity.wait_random_exponential(multiplier=1, max=10)


class _Found(BaseModel):
    """A passage as a server answers it; texts with constraints have to be valid Unicode."""

    text: Annotated[str, StringConstraints(min_length=0)]
    pid: int | Annotated[str, StringConstraints(min_length=0)]
    score: FiniteFloat | None = None


class ColBERTServer(ElsewhereRetriever):
    """Searches through the JSON protocol of ColBERT servers, the one that ``dspy.ColBERTv2`` speaks.

    ``GET URL?query=…&k=…`` answers ``{"topk": [{"text": "Title | text", "pid": …, "score": …}, …]}``. Unlike
    ``dspy.ColBERTv2`` nothing is kept for longer than a command, for a server's index may change, and ``k`` may exceed
    100.

    Args:
        url: the URL of the search, such as ``http://localhost:8893/api/search``. The environment's ``COLBERT_API_KEY``
            is its key (``Authorization: Bearer``).
        corpus: a found passage whose title and text it holds is given as that passage, so that ids agree; any other
            passage keeps the server's ``pid`` as its id.

    Example:
        >>> from hoptimizer.retrieval import ColBERTServer, Corpus
        >>> retriever = ColBERTServer("http://localhost:1/api/search", Corpus([]))
        >>> retriever.search(["Who designed the bridge?"], k=4)
        Traceback (most recent call last):
        hoptimizer.common.errors.ServiceError: retriever.url: no answer from http://localhost:1/api/search ...
    """

    name = "colbert"
    batch = 1  # the protocol knows no more
    at_once = 32

    def __init__(self, url: str, corpus: Corpus) -> None:
        super().__init__(corpus)
        self._url, self._shown = url, without_secrets(url)
        # Places by hashes: the texts themselves would be a second corpus, in memory.
        self._places: dict[int, int] = {}
        self._twins: dict[int, list[int]] = {}  # the further places of a text that is there several times
        for place, passage in enumerate(corpus):
            key = hash(_plain(served_text(passage)))
            if self._places.setdefault(key, place) != place:
                self._twins.setdefault(key, []).append(place)
        # However many search, the server gets so many requests at once, over as many connections.
        self._threads = ThreadPoolExecutor(self.at_once, thread_name_prefix="colbert-server")
        self._connections = threading.local()

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        return list(self._threads.map(lambda query: self._search(query, k), queries))

    def _search(self, query: str, k: int) -> list[Passage]:
        try:
            found = read_json(self._answer(query, k).content)["topk"][:k]
            return self._passages([_Found.model_validate(item) for item in found])
        except requests.RequestException as error:
            response = error.response
            if response is not None and response.status_code not in _BUSY:
                said = text_without_secrets(" ".join(response.text.split()))[:200]
                if response.status_code in _UNAUTHORIZED:
                    said = f"{said}; a key comes from the environment's {_KEY}"
                raise UserError(f"retriever.url: {self._shown} refuses ({response.status_code}): {said}") from error
            reason = type(error).__name__ if response is None else str(response.status_code)
            raise ServiceError(
                f"retriever.url: no answer from {self._shown} ({reason}): is the ColBERT server up?"
            ) from error
        except (KeyError, TypeError, ValidationError) as error:
            raise UserError(
                f"retriever.url: {self._shown} answered without 'topk' passages of 'text', 'pid' and 'score': "
                "give a ColBERT server's search URL"
            ) from error
        except ValueError as error:
            raise UserError(
                f"retriever.url: {self._shown} answered no JSON: give a ColBERT server's search URL"
            ) from error

    def _answer(self, query: str, k: int) -> requests.Response:
        """What the server answers, which is asked again where it is out of reach or busy for a moment."""
        for attempt in tenacity.Retrying(
            retry=tenacity.retry_if_exception(_may_pass),
            stop=tenacity.stop_after_attempt(_TRIES),
            wait=_BACKOFF,
            reraise=True,
        ):
            with attempt:
                key = os.environ.get(_KEY)
                response = self._connection().get(
                    self._url,
                    params={"query": query, "k": str(k)},
                    headers={"Authorization": f"Bearer {key}"} if key else {},
                    timeout=_TIMEOUT,
                )
                response.raise_for_status()
        return response

    def _connection(self) -> requests.Session:
        """This thread's own, which stays open from one search to the next."""
        if not hasattr(self._connections, "session"):
            self._connections.session = requests.Session()
        return self._connections.session

    def _passages(self, found: list[_Found]) -> list[Passage]:
        """What was found, each passage once: of several that are alike it is not known which one the server means."""
        given: dict[str, Passage] = {}
        for one in found:
            passage = self._passage(one, given)
            given.setdefault(passage.id, passage)
        return list(given.values())

    def _passage(self, found: _Found, given: Container[str]) -> Passage:
        text, id = _plain(found.text), str(found.pid)
        key = hash(text)
        places = [self._places[key], *self._twins.get(key, ())] if key in self._places else []
        # Where the corpus has a passage twice, the server may call it by the id that it has there.
        named = [self._corpus[id]] if id in self._corpus else []
        fitting = (*named, *map(self._corpus.passages.__getitem__, places))
        alike = [one for one in fitting if _plain(served_text(one)) == text]
        known = next((one for one in alike if one.id not in given), alike[0] if alike else None)
        if known is None:
            title, bar, rest = found.text.partition(" | ")
            # It counts its passages by itself: its 17 is not the corpus' passage of that id.
            known = Passage(f"server/{id}" if named else id, title if bar else "", rest if bar else found.text)
            self.keep_stranger(known)
        return known if found.score is None else known.scored(found.score)


def _may_pass(error: BaseException) -> bool:
    """Whether a failed request may succeed when it is made again."""
    if isinstance(error, requests.HTTPError):
        return error.response is not None and error.response.status_code in _BUSY
    return isinstance(error, requests.ConnectionError | requests.Timeout | requests.exceptions.ChunkedEncodingError)


def served_text(passage: Passage) -> str:
    """A passage as servers of this protocol write it."""
    return f"{passage.title} | {passage.text}"


def _plain(text: str) -> str:
    return " ".join(text.split()).removeprefix("| ")
