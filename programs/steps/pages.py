"""Questions that are asked about a page: it is always shown, and searches are scoped (IRCoT, appendix B)."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from rapidfuzz import fuzz, process, utils

from hoptimizer.common.errors import UserError
from hoptimizer.programs.program import Program
from hoptimizer.programs.trace import main_page
from hoptimizer.retrieval import Corpus, Passage

_compared: WeakKeyDictionary[Corpus, dict[str, str]] = WeakKeyDictionary()
_lock = threading.Lock()


@dataclass(frozen=True)
class Pages:
    """Where the passages of a question come from.

    Attributes:
        pinned: the passage that the question is asked about, which is always shown; empty for other questions.
        titles: the titles of the pages that searches are scoped to; ``None`` for searches of the whole corpus.
    """

    pinned: tuple[Passage, ...] = ()
    titles: tuple[str, ...] | None = None


async def find_pages(program: Program, question: str, number: int | None) -> Pages:
    """Take the program's step ``titles``, and match what it says to the pages of the corpus.

    Args:
        program: a program whose attribute ``titles`` is a predictor of ``ProposeTitles``.
        question: the question.
        number: how many titles are proposed; ``None`` for a program that does not take this step.

    Returns:
        The pages; none for a question that is not asked about a page.

    Raises:
        UserError: the retriever has no corpus, or its corpus lacks the page that the question is asked about.
    """
    if number is None or main_page() is None:
        return Pages()
    corpus = getattr(program.retriever, "corpus", None)
    if not corpus:
        raise UserError("program.pages: the retriever does not tell its corpus; take bm25, dense, colbert or hybrid")
    main = page_passage(corpus, main_page() or "")
    said = await program.step("titles", page=main, question=question, number=number)
    # Comparing with the titles of a large corpus takes a while, in which other questions go on.
    titles = await asyncio.to_thread(nearest_titles, (said.titles or [])[:number], corpus)
    return Pages((main,), titles or None)


def nearest_titles(proposed: Sequence[str], corpus: Corpus) -> tuple[str, ...]:
    """The title in a corpus that is most similar to each proposed one, each once.

    >>> corpus = Corpus([Passage(title, title, "") for title in ("Leonardo da Vinci", "Mona Lisa", "Venus")])
    >>> nearest_titles(["mona lisa", "Leonardo Da Vinci (painter)"], corpus)
    ('Mona Lisa', 'Leonardo da Vinci')
    """
    known = _compared_titles(corpus)
    best = (
        process.extractOne(utils.default_process(title), known, scorer=fuzz.ratio)
        for title in proposed
        if title.strip()
    )
    return tuple(dict.fromkeys(match[2] for match in best if match))


def _compared_titles(corpus: Corpus) -> dict[str, str]:
    """The titles of a corpus, each with what others are compared with: made once, however many questions wait."""
    with _lock:
        if corpus not in _compared:
            _compared[corpus] = {title: utils.default_process(title) for title in corpus.pages}
        return _compared[corpus]


class UnknownPageError(UserError):
    """A question is asked about a page that the corpus has not."""


def page_passage(corpus: Corpus, main: str) -> Passage:
    """The passage that a question is asked about.

    Args:
        corpus: the corpus.
        main: the passage's id, or the title of a page, whose first passage it is.

    Raises:
        UnknownPageError: the corpus has neither.
    """
    if main in corpus:
        return corpus[main]
    if main in corpus.pages:
        return corpus.passages[corpus.pages[main][0]]
    raise UnknownPageError(
        f"main: {main!r} is neither a passage's id nor a page's title in {corpus.name}; correct the data"
    )
