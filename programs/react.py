"""ReAct: reasoning and acting in turn, with search as the one tool (Yao et al. 2023), by ``dspy.ReAct``."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import dspy
from pydantic import Field

from hoptimizer.programs.collection import each_once
from hoptimizer.programs.program import Program
from hoptimizer.retrieval import Passage, Retriever
from hoptimizer.signatures import AnswerBySearching

Positive = Annotated[int, Field(ge=1)]


class ReAct(Program):
    """Thinks, and searches or finishes, until it finishes; then answers from all that it saw (``dspy.ReAct``).

    Args:
        retriever: where passages come from.
        k: passages that each search shows.
        max_steps: the most actions.
        max_passages: the most different passages that all searches together show; further ones are left out.

    Example:
        >>> import dspy
        >>> from dspy.utils import DummyLM  # says what it is given, in the place of a language model
        >>> from hoptimizer.programs import ReAct
        >>> from hoptimizer.retrieval import BM25Retriever, Corpus, Passage
        >>> curie = Passage("curie", "Marie Curie", "She was born in Warsaw.")
        >>> corpus = Corpus([curie, Passage("warsaw", "Warsaw", "It lies on the Vistula.")])
        >>> def action(thought, name, **args):
        ...     return {"next_thought": thought, "next_tool_name": name, "next_tool_args": args}
        >>> said = [
        ...     action("I must know where she was born.", "search", query="Marie Curie born"),
        ...     action("I know it.", "finish"),
        ...     {"reasoning": "The passage says so.", "answer": "Warsaw"},
        ... ]
        >>> program = ReAct(BM25Retriever(corpus), k=1)
        >>> with dspy.context(lm=DummyLM(said)):
        ...     prediction = program(question="Where was Marie Curie born?")
        >>> prediction.answer, [passage.id for passage in prediction.passages]
        ('Warsaw', ['curie'])
        >>> [record.step for record in prediction.steps]
        ['act', 'retrieve', 'act', 'reader']
    """

    step_names: ClassVar[tuple[str, ...]] = ("act", "reader")

    def __init__(self, retriever: Retriever, k: int = 4, max_steps: Positive = 6, max_passages: Positive = 15) -> None:
        super().__init__(retriever, k)
        self.max_steps = max_steps
        self.max_passages = max_passages
        agent = self.agent([])
        self.act = agent.react
        self.reader = agent.extract.predict

    async def solve(self, question: str) -> tuple[str, list[Passage]]:
        passages: list[Passage] = []
        agent = self.agent(passages)
        agent.react, agent.extract = _Step(self, "act"), _Step(self, "reader")
        said = await agent.acall(question=question)
        return (said.answer or "").strip(), passages

    def suitable_demos(self, step: str, demos: list[Any]) -> list[Any]:
        """Those of an agent's runs: an annotated question has no actions to show."""
        return [demo for demo in demos if "trajectory" in demo]

    def agent(self, shown: list[Passage]) -> dspy.ReAct:
        """DSPy's agent for one question.

        Args:
            shown: where the passages that it is shown are collected.
        """

        async def search(query: str) -> list[str]:
            found = await self.retrieve(query)
            union = each_once([*shown, *found])[: self.max_passages]
            shown[:] = union
            return [str(passage) for passage in found if passage in union]

        tool = dspy.Tool(search, desc="Search for passages.", arg_desc={"query": "what to search for"})
        return dspy.ReAct(AnswerBySearching, tools=[tool], max_iters=self.max_steps)


@dataclass(frozen=True)
class _Step:
    """A step of the program, in the place of the predictor that ``dspy.ReAct`` would call."""

    program: Program
    name: str

    async def acall(self, **inputs: Any) -> dspy.Prediction:  # noqa: ANN401 - as Program.step
        said = await self.program.step(self.name, **inputs)
        if self.name == "act" and said.next_tool_name is None:
            # The agent takes it for no valid action, ends, and answers from what it has seen.
            raise ValueError("no action could be read")
        return said
