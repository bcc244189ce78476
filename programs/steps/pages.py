"""Questions that are asked about a page: it is always shown, and searches are scoped (IRCoT, appendix B)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rapidfuzz import fuzz, process, utils

from hoptimizer.common.errors import UserError
from hoptimizer.programs.program import Program
from hoptimizer.programs.trace import main_page
from hoptimizer.retrieval import Corpus, Passage


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
    titles = nearest_titles((said.titles or [])[:number], corpus.pages.keys())
    return Pages((main,), titles or None)


def nearest_titles(proposed: Sequence[str], known: Collection[str]) -> tuple[str, ...]:
    """The known title that is most similar to each proposed one, each once.

    >>> nearest_titles(["mona lisa", "Leonardo Da Vinci (painter)"], ["Leonardo da Vinci", "Mona Lisa", "Venus"])
    ('Mona Lisa', 'Leonardo da Vinci')
    """
    best = (
        process.extractOne(title, known, scorer=fuzz.ratio, processor=utils.default_process)
        for title in proposed
        if title.strip()
    )
    return tuple(dict.fromkeys(match[0] for match in best if match))


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
        return corpus.passages[corpus.pages[main]]
    raise UnknownPageError(
        f"main: {main!r} is neither a passage's id nor a page's title in {corpus.name}; correct the data"
    )
