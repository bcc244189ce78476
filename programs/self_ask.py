"""Self-ask: follow-up questions, one after the other, before the answer (Press et al. 2023)."""

from typing import ClassVar, Literal

import dspy

from hoptimizer.common.options import Positive
from hoptimizer.programs.program import Program
from hoptimizer.programs.question_tree import UNKNOWN, asked_for, is_repeated, normalized
from hoptimizer.programs.reader import make_reader
from hoptimizer.programs.steps.looking_up import look_up
from hoptimizer.retrieval import Passage, Retriever
from hoptimizer.signatures import AskFollowUp, Combine


class SelfAsk(Program):
    """Asks itself follow-up questions, looks each up, and answers from their answers (section 3, with a search engine).

    Args:
        retriever: where passages come from.
        k: passages that each follow-up question finds, from which it is answered.
        max_steps: the most follow-up questions.
        max_passages: the most different passages that are found for all of them together. Once there are so many, the
            answer is due.
        reader: answers the follow-up questions: ``direct`` at once, ``cot`` or ``phrase`` with a chain of thought.

    Example:
        >>> import dspy
        >>> from dspy.utils import DummyLM  # says what it is given, in the place of a language model
        >>> from hoptimizer.programs import SelfAsk
        >>> from hoptimizer.retrieval import BM25Retriever, Corpus, Passage
        >>> curie = Passage("curie", "Marie Curie", "She was born in Warsaw.")
        >>> corpus = Corpus([curie, Passage("warsaw", "Warsaw", "It lies on the Vistula.")])
        >>> said = [
        ...     {"next_question": "Where was Marie Curie born?"},
        ...     {"answer": "Warsaw"},
        ...     {"next_question": "Which river does Warsaw lie on?"},
        ...     {"answer": "the Vistula"},
        ...     {"next_question": ""},
        ...     {"answer": "the Vistula"},
        ... ]
        >>> program = SelfAsk(BM25Retriever(corpus), k=1)
        >>> with dspy.context(lm=DummyLM(said)):
        ...     prediction = program(question="Which river flows through Marie Curie's place of birth?")
        >>> prediction.answer, [passage.id for passage in prediction.passages]
        ('the Vistula', ['curie', 'warsaw'])
        >>> prediction.steps[-1].inputs["findings"]
        ['Where was Marie Curie born? Warsaw', 'Which river does Warsaw lie on? the Vistula']
    """

    step_names: ClassVar[tuple[str, ...]] = ("ask", "reader", "combine")

    def __init__(
        self,
        retriever: Retriever,
        k: int = 4,
        max_steps: Positive = 4,
        max_passages: Positive = 15,
        reader: Literal["direct", "cot", "phrase"] = "direct",
    ) -> None:
        super().__init__(retriever, k)
        self.max_steps = max_steps
        self.max_passages = max_passages
        self.ask = dspy.Predict(AskFollowUp)
        self.reader = make_reader(reader, passages=True)
        self.combine = dspy.Predict(Combine)

    async def solve(self, question: str) -> tuple[str, list[Passage]]:
        passages: list[Passage] = []
        findings: list[str] = []
        asked: set[str] = set()
        while len(findings) < self.max_steps and len(passages) < self.max_passages:
            follow_up = await self.follow_up(question, findings)
            # A question that was asked before has its answer.
            if not follow_up or is_repeated(follow_up, asked):
                break
            asked.add(normalized(follow_up))
            answer, passages = await look_up(self, follow_up, passages, self.max_passages)
            findings = [*findings, f"{follow_up} {answer or UNKNOWN}"]
        answer = (await self.step("combine", question=question, findings=findings)).answer
        return (answer or "").strip(), passages

    async def follow_up(self, question: str, findings: list[str]) -> str:
        """The next follow-up question; empty where none is needed, or where the output can't be understood."""
        return asked_for((await self.step("ask", question=question, answered=findings)).next_question)
