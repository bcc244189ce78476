"""Programs that answer together by a vote."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import dspy

from hoptimizer.programs.program import Program
from hoptimizer.programs.trace import gather_steps
from hoptimizer.retrieval import Passage


class Ensemble(Program):
    """Gives the answer that most of its programs give, and of several such answers the first (``dspy.majority``).

    Args:
        members: programs of one kind; at least one.

    Example:
        >>> from hoptimizer.programs import RAG, Ensemble
        >>> from hoptimizer.retrieval import BM25Retriever, Corpus, Passage
        >>> curie = Passage("curie", "Marie Curie", "She was born in Warsaw.")
        >>> corpus = Corpus([curie, Passage("warsaw", "Warsaw", "It lies on the Vistula.")])
        >>> retriever = BM25Retriever(corpus)
        >>> program = Ensemble([RAG(retriever, k=1, reader="none"), RAG(retriever, k=2, reader="none")])
        >>> [passage.id for passage in program(question="Where was Marie Curie born?").passages]
        ['curie', 'warsaw']
    """

    def __init__(self, members: Sequence[Program]) -> None:
        super().__init__(members[0].retriever, members[0].k)
        self.members = list(members)

    async def solve(self, question: str) -> tuple[str, list[Passage]]:
        found = await gather_steps(partial(member.solve, question) for member in self.members)
        vote = dspy.majority([dspy.Prediction(answer=answer) for answer, _ in found])
        passages = {passage.id: passage for _, read in found for passage in read}
        return vote.answer, list(passages.values())

    def dump_state(self, json_mode: bool = True) -> dict[str, Any]:
        """The states of its programs."""
        return {"program": {"members": [member.dump_state(json_mode) for member in self.members]}}

    def language_models(self) -> dict[str, dspy.LM]:
        """The language models of its programs' steps, which are the same in all of them."""
        return self.members[0].language_models()

    def load_state(self, state: dict[str, Any], *, allow_unsafe_lm_state: bool = False) -> None:
        """Restore the state that :meth:`dump_state` gave."""
        for member, kept in zip(self.members, state["program"]["members"], strict=True):
            member.load_state(kept, allow_unsafe_lm_state=allow_unsafe_lm_state)
