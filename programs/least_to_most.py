"""Least-to-most prompting: sub-questions in order, each with the earlier answers in view (Zhou et al. 2023)."""

from typing import Any, ClassVar

import dspy

from hoptimizer.common.options import Positive
from hoptimizer.programs.collection import in_turn
from hoptimizer.programs.program import Program
from hoptimizer.programs.question_tree import UNKNOWN
from hoptimizer.programs.reader import given_answer
from hoptimizer.programs.steps.splitting import split
from hoptimizer.retrieval import Passage, Retriever
from hoptimizer.signatures import AnswerWithFindings, DecomposeInOrder, ReadWithFindings


class LeastToMost(Program):
    """Splits the question up, answers its parts in order, and last of all the question itself (section 2).

    Each is answered with the questions before it and their answers in view. A sub-question may name an earlier answer,
    as ``#1``, which is filled in before it is looked up.

    Args:
        retriever: where passages come from; ``None`` without ``retrieval``.
        k: passages that each sub-question finds, from which it is answered, and the question itself.
        max_subquestions: the most sub-questions; further ones are dropped.
        max_passages: the most passages that the question itself is answered from, of those that it and its
            sub-questions found: the best one of each, then the second best ones, and so on.
        retrieval: look all of them up; off: answer all from memory (RA-ISF, table 2).

    Example:
        >>> import dspy
        >>> from dspy.utils import DummyLM  # says what it is given, in the place of a language model
        >>> from hoptimizer.programs import LeastToMost
        >>> from hoptimizer.retrieval import BM25Retriever, Corpus, Passage
        >>> curie = Passage("curie", "Marie Curie", "She was born in Warsaw.")
        >>> corpus = Corpus([curie, Passage("warsaw", "Warsaw", "It lies on the Vistula.")])
        >>> parts = {"ordered_subquestions": '["Where was Marie Curie born?", "Which river does #1 lie on?"]'}
        >>> said = [parts, {"answer": "Warsaw"}, {"answer": "the Vistula"}, {"answer": "the Vistula"}]
        >>> program = LeastToMost(BM25Retriever(corpus), k=1)
        >>> with dspy.context(lm=DummyLM(said)):
        ...     prediction = program(question="Which river flows through Marie Curie's place of birth?")
        >>> prediction.answer, [passage.id for passage in prediction.passages]
        ('the Vistula', ['curie', 'warsaw'])
        >>> [record.inputs["query"] for record in prediction.steps if record.step == "retrieve"][:2]
        ['Where was Marie Curie born?', 'Which river does Warsaw lie on?']
    """

    step_names: ClassVar[tuple[str, ...]] = ("decompose", "reader")

    def __init__(
        self,
        retriever: Retriever | None,
        k: int = 4,
        max_subquestions: Positive = 5,
        max_passages: Positive = 15,
        retrieval: bool = True,
    ) -> None:
        super().__init__(retriever, k)
        self.max_subquestions = max_subquestions
        self.max_passages = max_passages
        self.retrieval = retrieval
        self.decompose = dspy.Predict(DecomposeInOrder)
        self.reader = dspy.Predict(ReadWithFindings if retrieval else AnswerWithFindings)

    async def solve(self, question: str) -> tuple[str, list[Passage]]:
        parts = await split(self, question, self.max_subquestions)
        answers: list[str] = []
        findings: list[str] = []
        found: list[list[Passage]] = []
        for part in parts:
            needed = {n: answers[at] for n, at in part.references.items() if at is not None}
            if UNKNOWN in needed.values():  # nobody can look that up
                answers.append(UNKNOWN)
                continue
            asked = part.filled_in(needed)
            found.append(await self.look_up(asked))
            answers.append(given_answer(await self.answer(asked, findings, found[-1])) or UNKNOWN)
            findings = [*findings, f"{asked} {answers[-1]}"]
        passages = in_turn([await self.look_up(question), *found], self.max_passages)
        return await self.answer(question, findings, passages), passages

    async def look_up(self, question: str) -> list[Passage]:
        """The passages that are found for a question; none without retrieval."""
        return await self.retrieve(question) if self.retrieval else []

    async def answer(self, question: str, findings: list[str], passages: list[Passage]) -> str:
        """Answer a question with the answers to earlier ones in view; empty if the output can't be understood."""
        inputs: dict[str, Any] = {"findings": findings, "question": question}
        if self.retrieval:
            inputs["context"] = passages
        return ((await self.step("reader", **inputs)).answer or "").strip()
