"""What retrievers have in common whose index is on another machine."""

from collections import OrderedDict

from hoptimizer.retrieval.kept_rankings import KEPT
from hoptimizer.retrieval.passage import Corpus, Passage
from hoptimizer.retrieval.retriever import Retriever


class ElsewhereRetriever(Retriever):
    """A retriever over an index elsewhere, which may have passages that no corpus here has.

    Args:
        corpus: the passages that are known here; it may be empty.
    """

    computes = False
    elsewhere = True

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        # As many as are kept of rankings: a server searches for as long as it lives.
        self._strangers: OrderedDict[str, Passage] = OrderedDict()

    def passage(self, passage_id: str) -> Passage | None:
        return self._corpus[passage_id] if passage_id in self._corpus else self._strangers.get(passage_id)

    def keep_stranger(self, passage: Passage) -> None:
        """Remember a passage that was found and the corpus does not have; the one that was found first goes.

        Args:
            passage: the passage.
        """
        self._strangers[passage.id] = passage
        if len(self._strangers) > KEPT:
            self._strangers.popitem(last=False)
