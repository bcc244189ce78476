"""A scripted retriever, beside DSPy's scripted language model, for tests of control flow alone."""

from hoptimizer.retrieval.passage import Passage
from hoptimizer.retrieval.retriever import Retriever


class ScriptedRetriever(Retriever):
    """Finds what the script says for a query, else nothing; remembers the queries."""

    name = "scripted"

    def __init__(self, script: dict[str, list[Passage]]):
        self.script = script
        self.queries: list[str] = []

    def search(self, queries, k):
        self.queries += queries
        return [self.script.get(query, [])[:k] for query in queries]


def passage(id: str, text: str = "") -> Passage:
    return Passage(id, id.title(), text or f"{id} " * 12)
