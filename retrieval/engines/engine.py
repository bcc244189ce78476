"""What engines have in common: tries, their end, passages from an engine's fields, and sending it a corpus."""

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import tenacity

from hoptimizer.common.errors import ServiceError, UserError
from hoptimizer.common.progress import Progress
from hoptimizer.common.urls import line_without_secrets, text_without_secrets
from hoptimizer.retrieval.elsewhere import ElsewhereRetriever
from hoptimizer.retrieval.engines.settings import EngineSettings
from hoptimizer.retrieval.passage import Corpus, Passage

_TRIES = 4
# Passages that an engine is sent at a time: with vectors, some tens of megabytes at most.
_SENT = 64
_log = logging.getLogger(__name__)
_PAUSES = tenacity.wait_random_exponential(multiplier=0.5, max=5)
# An engine that asks to be left alone for longer is as good as away.
_LONGEST_PAUSE = 60.0  # seconds
Answer = TypeVar("Answer")


class NoAnswer(Exception):
    """An engine gave no answer, and may give one when it is asked again.

    Args:
        reason: in a few words.
        after: seconds after which it asks to be asked again, where it says so.
    """

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


class EngineRetriever(ElsewhereRetriever):
    """A search in an engine that has its own index of the passages.

    Args:
        settings: which engine, and the names of its fields.
        corpus: a found passage whose id and text it has is given as that passage; any other one as the engine has it.
    """

    def __init__(self, settings: EngineSettings, corpus: Corpus) -> None:
        super().__init__(corpus)
        self._shown = settings.shown
        self._told = False
        self._fields = (settings.id_field, settings.title_field, settings.text_field)

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        rankings: list[list[Passage]] = []
        for start in range(0, len(queries), self.batch):  # a request with all questions of a split may be refused
            asked = self.encoded(queries[start : start + self.batch])
            found = self._tried(partial(self.ask, asked, k))
            rankings += [[self._passage(fields, score) for fields, score in ranking[:k]] for ranking in found]
        return rankings

    def fill(self, progress: Progress = lambda done, total: None) -> int:
        """Send the engine those passages of the corpus that it lacks, or has with another text.

        It is made where there is none. Passages that the corpus lacks stay in it. Whatever ends this, the same call
        again goes on.

        Args:
            progress: called with the passages that the engine has, and all there are.

        Returns:
            How many were sent.

        Raises:
            ServiceError: the engine gives no answer.
            UserError: it refuses.
        """
        total, sent = len(self._corpus), 0
        for start in range(0, total, _SENT):
            some = self._corpus.passages[start : start + _SENT]
            sent += self._tried(partial(self.push, some))
            progress(min(start + _SENT, total), total)
        return sent

    def _tried(self, call: Callable[[], Answer]) -> Answer:
        """What a call gives that may have to be made several times.

        Raises:
            ServiceError: it got no answer.
        """
        try:
            return tenacity.Retrying(
                retry=tenacity.retry_if_exception_type(NoAnswer),
                stop=tenacity.stop_after_attempt(_TRIES),
                wait=_pause,
                reraise=True,
            )(call)
        except NoAnswer as error:
            reason = line_without_secrets(error)
            raise ServiceError(
                f"retriever: no answer from {self._shown} ({reason}), asked {_TRIES} times: is it up?"
            ) from error

    def encoded(self, queries: list[str]) -> Sequence[Any]:
        """The queries in the form that the engine is asked in: made once, however often it is asked."""
        return queries

    @abstractmethod
    def ask(self, queries: Sequence[Any], k: int) -> list[list[tuple[Mapping[str, Any], float]]]:
        """The fields and scores of the best passages of each encoded query, best first.

        Raises:
            NoAnswer: there is none at the moment.
            UserError: the engine refuses, or is another one.
        """

    @abstractmethod
    def push(self, passages: Sequence[Passage]) -> int:
        """Store those of some passages that the engine lacks, or has with another text, and make its index, collection
        or table where there is none. A second time, it changes nothing.

        Args:
            passages: with ids that are always those of the same passages.

        Returns:
            How many were stored.

        Raises:
            NoAnswer: there is none at the moment.
            UserError: the engine refuses, or is another one.
        """

    def fields_of(self, passage: Passage) -> dict[str, str]:
        """A passage by the names of the engine's fields."""
        return dict(zip(self._fields, (passage.id, passage.title, passage.text), strict=True))

    def refused(self, reason: str) -> UserError:
        """The error for an engine that answers, and refuses."""
        return UserError(f"retriever: {self._shown} refuses: {text_without_secrets(' '.join(reason.split()))[:300]}")

    def _passage(self, fields: Mapping[str, Any], score: float) -> Passage:
        id_field, title_field, text_field = self._fields
        id, title, text = fields.get(id_field), fields.get(title_field) or "", fields.get(text_field)
        if id is None or not isinstance(title, str) or not isinstance(text, str):
            given = ", ".join(sorted(map(str, fields))) or "none"
            raise UserError(
                f"retriever: {self._shown} found a passage without {id_field!r} or without {text_field!r} as text (its "
                f"fields: {given}); name them with id_field, title_field and text_field"
            )
        found = Passage(str(id), title, text)
        if str(id) not in self._corpus:
            self.keep_stranger(found)
            return found.scored(float(score))
        known = self._corpus[str(id)]
        if known.text.split() == text.split():
            return known.scored(float(score))
        if not self._told:
            self._told = True
            _log.warning(
                "retriever: passage %s of %s has another text than in %s; it was indexed from others, which are read",
                id,
                self._shown,
                self._corpus.name,
            )
        return found.scored(float(score))


def _pause(state: tenacity.RetryCallState) -> float:
    """Seconds before an engine is asked again: as many as it asks for, or drawn."""
    error = state.outcome.exception() if state.outcome else None
    asked = error.after if isinstance(error, NoAnswer) else None
    return _PAUSES(state) if asked is None else min(asked, _LONGEST_PAUSE)
