"""A search of the web (Lazaridou et al., 2022), or of anything else that is asked by ``GET`` and answers JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

import requests

from hoptimizer.common.errors import UserError
from hoptimizer.common.strict import checked, read_json
from hoptimizer.models.reading import writable
from hoptimizer.retrieval.bm25 import bm25_scores
from hoptimizer.retrieval.engines.engine import EngineRetriever, NoAnswer
from hoptimizer.retrieval.engines.http import BUSY, UNAUTHORIZED, respond
from hoptimizer.retrieval.engines.settings import WebSettings
from hoptimizer.retrieval.passage import Corpus, Passage

_Found = tuple[dict[str, Any], float]


class WebRetriever(EngineRetriever):
    """Asks a search API for pages; the passages are what its answer says of them. No page is fetched.

    Where a page's text is longer than a passage, it is divided, and the passages of all pages are ranked by BM25 (in
    the paper, by TF-IDF). Otherwise they stay in the order of the search, and the score of the n-th is 1/n.

    Args:
        settings: which API, and where things stand in its answers.
        corpus: a found passage whose id it has is given as that passage.

    Raises:
        UserError: the environment has no key.
    """

    name = "web"
    batch = 1  # such APIs know no more
    at_once = 4

    def __init__(self, settings: WebSettings, corpus: Corpus) -> None:
        super().__init__(settings, corpus)
        self._settings = settings
        self._key = "".join(settings.login)
        if settings.key_env and not (self._key and self._key.isascii() and self._key.isprintable()):
            raise UserError(f"retriever.key_env: the environment's {settings.key_env} holds no key; set it")
        self._headers = {"Accept": "application/json"}
        if settings.key_header:
            self._headers[settings.key_header] = self._key
        self._known = False

    def ask(self, queries: Sequence[str], k: int) -> list[list[tuple[Mapping[str, Any], float]]]:
        return [list(self._passages(query, self._pages(self._answer(query)))) for query in queries]

    def push(self, passages: Sequence[Passage]) -> int:
        raise UserError("retriever=web: a search API takes no passages; an engine of one's own does")

    def _answer(self, query: str) -> bytes:
        settings = self._settings
        params = settings.params | {settings.query_param: query}
        if settings.count_param:
            params[settings.count_param] = str(settings.pages)
        options = {"headers": self._headers, "timeout": settings.timeout}
        response = respond(self, "GET", settings.url, params=params, **options)
        if response.status_code in BUSY:
            after = response.headers.get("Retry-After", "")
            raise NoAnswer(f"status {response.status_code}", float(after) if after.isdecimal() else None)
        if response.status_code != requests.codes.ok:
            hint = "; key_header and key_env say which key is sent" if response.status_code in UNAUTHORIZED else ""
            said = response.text.replace(self._key, "***") if self._key else response.text
            raise self.refused(f"status {response.status_code}{hint} {said}")
        return response.content

    def _pages(self, content: bytes) -> list[dict[str, Any]]:
        """The pages in an answer that have a text."""
        path, text_field = self._settings.results, self._settings.text_field
        try:
            answer = found = checked(writable(read_json(content)))
        except ValueError as error:
            raise self.refused(f"no JSON ({error}): give the address of its search API") from error
        for key in path.split("."):
            found = found.get(key) if isinstance(found, dict) else None
        if found is None and self._known:  # many leave the list out where they find nothing
            return []
        if not isinstance(found, list) or not all(isinstance(page, dict) for page in found):
            keys = ", ".join(sorted(answer)) if isinstance(answer, dict) else "none"
            raise self.refused(f"no list of pages at {path!r} in its answer (keys: {keys}); results says where it is")
        self._known = True
        if not any(text_field in page for page in found):
            return found  # refused by what the fields of passages are checked by
        return [page for page in found if page.get(text_field)]

    def _passages(self, query: str, pages: list[dict[str, Any]]) -> list[_Found]:
        """The passages of all pages with their scores, best first."""
        id_field, title_field, text_field = self._fields
        passages: dict[str, dict[str, Any]] = {}
        divided = False
        for page in pages:
            id, parts = page.get(id_field), self._parts(page.get(text_field))
            if id is None or len(parts) <= 1:
                passages.setdefault(str(id), page)
                continue
            divided = True
            for number, part in enumerate(parts, start=1):
                passages.setdefault(f"{id}#{number}", page | {id_field: f"{id}#{number}", text_field: part})
        found = list(passages.values())
        if not divided:
            return [(one, 1 / place) for place, one in enumerate(found, start=1)]
        scores = bm25_scores(query, [f"{one.get(title_field) or ''} {one.get(text_field)}" for one in found])
        return sorted(zip(found, map(float, scores), strict=True), key=lambda pair: -pair[1])

    def _parts(self, text: object) -> list[str]:
        words, size = text.split() if isinstance(text, str) else [], self._settings.words
        return [" ".join(words[start : start + size]) for start in range(0, len(words), size)]
