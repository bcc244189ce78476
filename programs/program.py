"""The base of every program: steps, retrieval and their records."""

import asyncio
import contextvars
import time
from abc import abstractmethod
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import dspy
from dspy.utils.exceptions import AdapterParseError, ContextWindowExceededError

from hoptimizer.models.lm import laid_out
from hoptimizer.models.settings import Layout
from hoptimizer.programs.record import StepRecord, Trail
from hoptimizer.retrieval import Passage, Retriever

_trail: contextvars.ContextVar[Trail] = contextvars.ContextVar("trail")


class Program(dspy.Module):
    """A multi-hop question answering method whose steps are DSPy predictors.

    Subclasses write their method once, in :meth:`solve`, with :meth:`step` and :meth:`retrieve`; calls that do not
    depend on each other run together with ``asyncio.gather``.

    Args:
        retriever: where passages come from; ``None`` for programs that do not retrieve.
        k: passages a retrieval.
    """

    step_names: ClassVar[tuple[str, ...]] = ("reader",)
    """The attributes that hold its steps' predictors."""

    def __init__(self, retriever: Retriever | None = None, k: int = 4) -> None:
        super().__init__()
        self.retriever = retriever
        self.k = k
        # Language models of single steps, by the step's name. DSPy keeps such a choice on the predictor, where its
        # optimizers reset it.
        self.lms: dict[str, dspy.LM] = {}
        # How calls of local models are laid out, where an optimizer chose that; else as the model's settings say.
        self.layout: Layout | None = None

    @abstractmethod
    async def solve(self, question: str) -> tuple[str, list[Passage]]:
        """The method itself: the answer, and the passages it was given to read (or would have been)."""

    async def aforward(self, question: str) -> dspy.Prediction:
        """Answer one question.

        Returns:
            a prediction with ``answer: str``, ``passages: list[Passage]`` and ``steps: list[StepRecord]``.
        """
        trail = Trail()
        token = _trail.set(trail)
        try:
            answer, passages = await self.solve(question)
        finally:
            _trail.reset(token)
        return dspy.Prediction(answer=answer, passages=passages, steps=trail.records)

    def forward(self, question: str) -> dspy.Prediction:
        """Like :meth:`aforward`, from code that is not async."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.aforward(question))
        # Inside a running loop (a notebook) the program gets a loop of its own in another thread, where DSPy's
        # settings, which are context variables, hold as they do here.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(contextvars.copy_context().run, asyncio.run, self.aforward(question)).result()

    async def step(self, name: str, *, depth: int = 0, **inputs: Any) -> dspy.Prediction:  # noqa: ANN401 - typed by its signature
        """Take one step.

        Args:
            name: the attribute that holds the step's predictor.
            depth: how deep in sub-questions the step stands.
            inputs: the fields of its signature; a list of passages is shown to the model as text.

        Returns:
            the predictor's prediction; every field is ``None`` where the model's output could not be parsed.
        """
        predictor: dspy.Predict = getattr(self, name)
        shown = {key: [str(p) for p in value] if _is_passages(value) else value for key, value in inputs.items()}
        start = time.perf_counter()
        prediction, calls, failure = await _fit(predictor, self._lm(name, predictor), shown)
        outputs = {field: prediction.get(field) for field in predictor.signature.output_fields}
        asked = {key: [p.id for p in value] if _is_passages(value) else value for key, value in inputs.items()}
        seconds = time.perf_counter() - start
        _trail.get().add(StepRecord(name, "lm", asked, outputs, depth, seconds, calls, failure))
        return prediction

    def _lm(self, name: str, predictor: dspy.Predict) -> dspy.LM | None:
        lm = predictor.lm or self.lms.get(name) or dspy.settings.lm
        return laid_out(lm, self.layout) if lm and self.layout else lm

    def dump_state(self, json_mode: bool = True) -> dict[str, Any]:
        """The predictors' states by name, and the program's own under ``program``."""
        return super().dump_state(json_mode) | {"program": {"layout": self.layout}}

    def load_state(self, state: dict[str, Any], *, allow_unsafe_lm_state: bool = False) -> None:
        """Take on the state that :meth:`dump_state` gave."""
        super().load_state(state, allow_unsafe_lm_state=allow_unsafe_lm_state)
        self.layout = state["program"]["layout"]

    async def retrieve(self, query: str, *, k: int | None = None, depth: int = 0) -> list[Passage]:
        """Search the corpus.

        Args:
            query: a question or sentence.
            k: passages, else the program's own ``k``.
            depth: how deep in sub-questions the search stands.
        """
        if self.retriever is None:
            raise TypeError(f"{type(self).__name__} retrieves: give it a retriever")
        start = time.perf_counter()
        passages = await self.retriever.asearch(query, k or self.k)
        found = {"passages": [passage.id for passage in passages]}
        _trail.get().add(
            StepRecord("retrieve", "retrieval", {"query": query}, found, depth, time.perf_counter() - start)
        )
        return passages


def _is_passages(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Passage)


async def _fit(
    predictor: dspy.Predict, lm: dspy.LM | None, inputs: dict[str, Any]
) -> tuple[dspy.Prediction, int, str | None]:
    """Call the predictor; where its prompt outgrows the model's context, drop demonstrations from the front, then
    halve the longest passage, and call again (IRCoT, appendix on prompts). The question is never cut."""
    demos = list(predictor.demos)
    for calls in range(1, 1_000):
        try:
            return await predictor.acall(lm=lm, demos=demos, **inputs), calls, None
        except AdapterParseError as error:
            blank = dict.fromkeys(predictor.signature.output_fields)
            return dspy.Prediction(**blank), calls, str(error.message or "unparsable output")
        except ContextWindowExceededError:
            if demos:
                demos = demos[1:]
            elif not (inputs := _halve_longest(inputs)):
                raise
    raise RuntimeError("a prompt could not be made to fit its model's context")


def _halve_longest(inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs with their longest passage cut to half its words; empty where no passage can be cut."""
    passages: list[str] = list(inputs.get("context", []))
    longest = max(range(len(passages)), key=lambda i: len(passages[i]), default=None)
    if longest is None or len(words := passages[longest].split()) < 2:
        return {}
    passages[longest] = " ".join(words[: len(words) // 2])
    return inputs | {"context": passages}
