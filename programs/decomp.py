"""Decomposed prompting: sub-tasks one after the other, each for a handler of its own (Khot et al. 2023)."""

from typing import ClassVar, Literal

import dspy

from hoptimizer.common.options import Positive
from hoptimizer.programs.program import Program
from hoptimizer.programs.question_tree import UNKNOWN, asked_for, is_repeated, normalized
from hoptimizer.programs.reader import make_reader
from hoptimizer.programs.steps.looking_up import look_up
from hoptimizer.retrieval import Passage, Retriever
from hoptimizer.signatures import Combine, NextTask


class DecomP(Program):
    """Names the next sub-task and its handler, has it handled, and goes on until the last answer is the answer.

    The handlers (section 3.1) are ``search``, which retrieves for the sub-question and reads, and ``combine``, which
    answers it from the answers so far: a comparison, a count.

    Args:
        retriever: where passages come from.
        k: passages that each search finds, from which its sub-question is answered.
        max_steps: the most sub-tasks.
        max_passages: the most different passages that all searches together find. Once there are so many, the last
            answer is the answer.
        reader: answers what is searched for: ``direct`` at once, ``cot`` or ``phrase`` with a chain of thought.

    Example:
        >>> import dspy
        >>> from dspy.utils import DummyLM  # says what it is given, in the place of a language model
        >>> from hoptimizer.programs import DecomP
        >>> from hoptimizer.retrieval import BM25Retriever, Corpus, Passage
        >>> curie = Passage("curie", "Marie Curie", "She was born in 1867.")
        >>> corpus = Corpus([curie, Passage("tesla", "Nikola Tesla", "He was born in 1856.")])
        >>> said = [
        ...     {"task_question": "When was Marie Curie born?", "task": "search"},
        ...     {"answer": "1867"},
        ...     {"task_question": "When was Nikola Tesla born?", "task": "search"},
        ...     {"answer": "1856"},
        ...     {"task_question": "Which year is earlier, 1867 or 1856?", "task": "combine"},
        ...     {"answer": "1856, Nikola Tesla"},
        ...     {"task_question": "", "task": "end"},
        ... ]
        >>> with dspy.context(lm=DummyLM(said)):
        ...     prediction = DecomP(BM25Retriever(corpus), k=1)(question="Who is older, Curie or Tesla?")
        >>> prediction.answer, [passage.id for passage in prediction.passages]
        ('1856, Nikola Tesla', ['curie', 'tesla'])
        >>> [record.step for record in prediction.steps]
        ['plan', 'retrieve', 'reader', 'plan', 'retrieve', 'reader', 'plan', 'combine', 'plan']
    """

    step_names: ClassVar[tuple[str, ...]] = ("plan", "reader", "combine")

    def __init__(
        self,
        retriever: Retriever,
        k: int = 4,
        max_steps: Positive = 6,
        max_passages: Positive = 15,
        reader: Literal["direct", "cot", "phrase"] = "direct",
    ) -> None:
        super().__init__(retriever, k)
        self.max_steps = max_steps
        self.max_passages = max_passages
        self.plan = dspy.Predict(NextTask)
        self.reader = make_reader(reader, passages=True)
        self.combine = dspy.Predict(Combine)

    async def solve(self, question: str) -> tuple[str, list[Passage]]:
        passages: list[Passage] = []
        findings: list[str] = []
        asked: set[str] = set()
        answer = ""
        while len(findings) < self.max_steps and len(passages) < self.max_passages:
            said = await self.step("plan", question=question, answered=findings)
            subquestion = asked_for(said.task_question)
            # A question that was asked before has its answer.
            if said.task in (None, "end") or not subquestion or is_repeated(subquestion, asked):
                break
            asked.add(normalized(subquestion))
            if said.task == "search":
                answer, passages = await look_up(self, subquestion, passages, self.max_passages)
            else:
                prediction = await self.step("combine", question=subquestion, findings=findings)
                answer = (prediction.answer or "").strip()
            findings = [*findings, f"{subquestion} {answer or UNKNOWN}"]
        if not findings:  # a question without parts is its only sub-task
            return await look_up(self, question, [], self.max_passages)
        return answer, passages
