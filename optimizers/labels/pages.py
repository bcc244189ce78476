"""What a data set says of the pages that a question needs (IRCoT, appendix B)."""

from hoptimizer.eval.datasets.question import Question
from hoptimizer.optimizers.labels.decomposition import Annotated
from hoptimizer.programs.steps.pages import page_passage
from hoptimizer.retrieval import Corpus, Passage

# The paper's demonstrations name so many at most.
_MOST = 3


def is_about_page(question: Annotated) -> bool:
    """Whether a question is asked about a page, and its supporting passages are known."""
    return bool(question.main and question.passages)


def page_of(question: Question, corpus: Corpus) -> Passage | None:
    """The passage that a question is asked about; ``None`` where it is not asked about one."""
    return page_passage(corpus, question.main) if question.main else None


def page_titles(question: Question, corpus: Corpus) -> list[str]:
    """The titles of the pages, other than the one that it is asked about, whose passages support a question.

    Args:
        question: the question.
        corpus: the corpus with its supporting passages.

    >>> corpus = Corpus([Passage("mill", "Mill", "Ada built it."), Passage("ada", "Ada", "She is of Bern.")])
    >>> asked = Question(id="1", question="Who built it?", answers=["Ada"], passages=["mill", "ada"], main="mill")
    >>> page_titles(asked, corpus)
    ['Ada']
    """
    main = page_of(question, corpus)
    if main is None:
        return []
    titles = dict.fromkeys(corpus[id].title for id in question.passages)
    return [title for title in titles if title and title != main.title][:_MOST]
