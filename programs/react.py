"""ReAct: reasoning and acting in turn, with search as the one tool (Yao et al. 2023), by ``dspy.ReAct``."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import dspy

from hoptimizer.common.options import Positive
from hoptimizer.programs.collection import each_once
from hoptimizer.programs.program import Program
from hoptimizer.retrieval import Passage, Retriever
from hoptimizer.signatures import AnswerBySearching


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
        agent = _agent(_Run(self).search, max_steps)
        self.act = agent.react
        self.reader = agent.extract.predict

    async def solve(self, question: str) -> tuple[str, list[Passage]]:
        run = _Run(self)
        agent = _agent(run.search, self.max_steps)
        agent.react, agent.extract = _Step(run, "act"), _Step(run, "reader")
        said = await agent.acall(question=question)
        return (said.answer or "").strip(), run.passages

    def suitable_demos(self, step: str, demos: list[Any]) -> list[Any]:
        """Those of an agent's runs: an annotated question has no actions to show."""
        return [demo for demo in super().suitable_demos(step, demos) if "trajectory" in demo]


@dataclass
class _Run:
    """An agent's work on one question.

    Attributes:
        program: the program.
        passages: what the agent was shown.
        failure: why the corpus could not be searched, or ``None``.
    """

    program: ReAct
    passages: list[Passage] = field(default_factory=list)
    failure: Exception | None = None

    async def search(self, query: str) -> list[str]:
        """The agent's tool."""
        if not query.strip():
            return []
        try:
            found = await self.program.retrieve(query)
        except Exception as error:
            self.failure = error
            raise
        self.passages = each_once([*self.passages, *found])[: self.program.max_passages]
        shown = {passage.id for passage in self.passages}
        return [str(passage) for passage in found if passage.id in shown]


@dataclass(frozen=True)
class _Step:
    """A step of the program, in the place of the predictor that ``dspy.ReAct`` would call."""

    run: _Run
    name: str

    async def acall(self, **inputs: Any) -> dspy.Prediction:  # noqa: ANN401 - as Program.step
        if self.run.failure:
            # The agent would tell the model of it, as of any error of a tool, and go on.
            raise self.run.failure
        said = await self.run.program.step(self.name, **inputs)
        if self.name != "act":
            return said
        if said.next_tool_name is None:
            # The agent takes it for no valid action, ends, and answers from what it has seen.
            raise ValueError("no action could be read")
        # Of arguments that a tool does not take, the agent would show the model a traceback.
        given = said.next_tool_args.get("query") if isinstance(said.next_tool_args, dict) else None
        named = given.strip() if isinstance(given, str) else ""
        query = named or _text(said.next_tool_args) or said.next_thought or ""
        args = {"query": query} if said.next_tool_name == "search" else {}
        return dspy.Prediction(**{**said, "next_tool_args": args})


def _agent(search: Callable[[str], Awaitable[list[str]]], max_steps: int) -> dspy.ReAct:
    # No example and no description of the query: small models copy them.
    desc = "Finds passages. The query is a short question with names."
    tool = dspy.Tool(search, name="search", desc=desc, args={"query": {"type": "string"}})
    return dspy.ReAct(AnswerBySearching, tools=[tool], max_iters=max_steps)


def _text(args: object) -> str:
    """The longest text among the arguments, however they are nested; small models fill the tool's schema in."""
    if isinstance(args, str):
        return args.strip()
    named = args.items() if isinstance(args, dict) else enumerate(args) if isinstance(args, list) else ()
    return max((_text(value) for name, value in named if name != "type"), key=len, default="")
