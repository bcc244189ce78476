"""The base of every program: steps, retrieval and their records."""

import asyncio
import time
from abc import abstractmethod
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import dspy
from dspy.utils.exceptions import DSPyError

from hoptimizer.common.concurrency import run_async
from hoptimizer.common.errors import RefusedQueryError, UserError, own_errors
from hoptimizer.models.engine.engine import is_local, seconds_since
from hoptimizer.models.lm import is_tuned, with_prompt_format
from hoptimizer.models.settings import LOCAL, PromptFormat
from hoptimizer.models.small.base import StepModel
from hoptimizer.programs.checks import predictor_of, solved
from hoptimizer.programs.neighbours import Neighbours
from hoptimizer.programs.record import StepRecord
from hoptimizer.programs.steps.asking import ask_language_model, ask_measured, ask_small_model
from hoptimizer.programs.steps.calls import StepCalls
from hoptimizer.programs.steps.searching import Search
from hoptimizer.programs.trace import StepTrace, asked_question, asking, current, recording
from hoptimizer.retrieval import Corpus, Passage, Retriever

FAILURES = (DSPyError, RefusedQueryError)
"""What a program raises where one question fails: other questions may not."""


class Program(dspy.Module):
    """A multi-hop question answering method whose steps are DSPy predictors.

    Subclasses write their method once, in :meth:`solve`, with :meth:`step` and :meth:`retrieve`; calls that do not
    depend on each other run together with :func:`~hoptimizer.programs.trace.gather_steps`.

    Args:
        retriever: where passages come from; ``None`` for programs that do not retrieve.
        k: passages per retrieval.

    Example:
        >>> from hoptimizer.programs import Program
        >>> from hoptimizer.retrieval import BM25Retriever, Corpus, Passage
        >>> curie = Passage("curie", "Marie Curie", "She was born in Warsaw.")
        >>> corpus = Corpus([curie, Passage("warsaw", "Warsaw", "It lies on the Vistula.")])
        >>> class Titles(Program):
        ...     async def solve(self, question):
        ...         passages = await self.retrieve(question)
        ...         return ", ".join(passage.title for passage in passages), passages
        >>> prediction = Titles(BM25Retriever(corpus), k=1)(question="Which city lies on the Vistula?")
        >>> prediction.answer, prediction.steps[0].outputs
        ('Warsaw', {'passages': ['warsaw']})
    """

    step_names: ClassVar[tuple[str, ...]] = ("reader",)
    """Names of the attributes that hold the predictors of its steps."""

    without: ClassVar[Mapping[str, str]] = {}
    """Steps that the default model does not take, and what the program does until they have a model of their own."""

    outcomes: ClassVar[tuple[str, ...]] = ()
    """By what a question can be settled, where the program records that."""

    def __init__(self, retriever: Retriever | None = None, k: int = 4) -> None:
        super().__init__()
        self.retriever = retriever
        self.k = k
        # What a page that a question is asked about is looked up in, where nothing is retrieved.
        self.corpus: Corpus | None = None
        # Language models of single steps, by the step's name. DSPy keeps such a choice on the predictor, where its
        # optimizers reset it. Fine-tuned ones are a part of the program's state.
        self.lms: dict[str, dspy.LM] = {}
        # How calls of local models are laid out, where an optimizer chose that; else as the model's settings say.
        self.prompt_format: PromptFormat | None = None
        # Small models that take steps over, by the step's name.
        self.models: dict[str, StepModel] = {}
        # Chooses, by the question, the demonstrations of predictors that have none.
        self.neighbours: Neighbours | None = None

    def __setattr__(self, name: str, value: Any) -> None:  # noqa: ANN401 - as of any object
        """As of any object. A ``dspy.ChainOfThought`` is the ``dspy.Predict`` that it holds, whose signature has the
        reasoning: that is what a step is."""
        super().__setattr__(name, value.predict if type(value) is dspy.ChainOfThought else value)

    @abstractmethod
    async def solve(self, question: str) -> tuple[str, list[Passage]]:
        """Answer a question: the method itself.

        Returns:
            The answer, and the passages that it was read from, or would be if the program had a reader.
        """

    async def aforward(self, question: str, main: str | None = None) -> dspy.Prediction:
        """Answer one question.

        Args:
            question: the question.
            main: id of the passage that the question is asked about, or the title of its page; programs with the option
                ``pages`` or ``page`` always show it.

        Returns:
            A prediction with ``answer: str``, ``passages: list[Passage]`` and ``steps: list[StepRecord]``.

        Raises:
            UserError: the question is no text; or, as a ``PartError``, a program of the user's has a mistake.
        """
        if not isinstance(question, str):
            raise UserError(f"question: expected text, got {question!r:.60}")
        with recording(StepTrace()) as trace, asking(question, main), own_errors(self, "solve", question, FAILURES):
            answer, passages = await solved(self, question)
        entries = trace.entries()
        _trace([traced for entry in entries for traced in entry.trace])
        return dspy.Prediction(answer=answer, passages=passages, steps=[entry.record for entry in entries])

    def forward(self, question: str, main: str | None = None) -> dspy.Prediction:
        """Like :meth:`aforward`, from code that is not async."""
        return run_async(self.aforward(question, main))

    async def step(
        self,
        name: str,
        *,
        measured: bool = False,
        sampling: Mapping[str, Any] | None = None,
        **inputs: Any,  # noqa: ANN401 - typed by its signature
    ) -> dspy.Prediction:
        """Take one step: ask the small model that takes it over, if there is one, else the predictor.

        Args:
            name: the attribute that holds the step's predictor.
            measured: whether the language model is to tell how likely its output is.
            sampling: how the language model samples, such as ``temperature``, where not as its settings say.
            inputs: the fields of its signature, and what :meth:`extra_inputs` names; passages are shown to the model
                as text.

        Returns:
            The prediction; every field is ``None`` if the model's output could not be parsed. ``probability`` is how
            sure a small model is or, if it was measured, the probability that the language model gave its output;
            ``None`` if the model does not tell.
        """
        predictor = predictor_of(self, name)
        shown = {key: _shown(value) for key, value in inputs.items()}
        asked = {key: _identified(value) for key, value in inputs.items()}
        trace: list[Any] | None = None if dspy.settings.trace is None else []
        start = time.perf_counter()
        if model := self.models.get(name):
            prediction, failure = await ask_small_model(model, predictor.signature, shown)
            outputs, calls = prediction.toDict(), StepCalls()
        else:
            cuttable = [key for key, value in inputs.items() if shown[key] is not value]
            options = {"config": dict(sampling)} if sampling else {}
            with dspy.context(trace=trace):
                lm, demos = self._lm(name, predictor), await self.shown_demos(name, shown)
                ask = partial(ask_language_model, predictor, lm, shown, demos, cuttable)
                answering = ask_measured(ask, lm, options) if measured else ask(options)
                prediction, calls, failure = await answering
            outputs = {field: prediction.get(field) for field in predictor.signature.output_fields}
            if measured:
                outputs["probability"] = prediction.probability
        seconds = seconds_since(start)
        kind: Literal["model", "lm"] = "model" if model else "lm"
        cost = {"calls": calls.number, **calls.cost}
        current().add(StepRecord(name, kind, asked, outputs, seconds=seconds, failure=failure, **cost), trace)
        return prediction

    async def shown_demos(self, step: str, shown: Mapping[str, Any]) -> list[Any]:
        """The demonstrations that a step shows: its own, or those of the questions that are like the one it is asked.
        Of that very question there is none, or its answer would be copied, wherever train questions are asked.

        Args:
            step: the step.
            shown: what it is asked.
        """
        demos = list(getattr(self, step).demos)
        if self.neighbours and not demos:
            question = shown.get("question") or shown.get("query") or asked_question()
            demos = await asyncio.to_thread(self.neighbours, step, question)
        asked = shown.get("question")
        return self.suitable_demos(step, [demo for demo in demos if not asked or demo.get("question") != asked])

    def suitable_demos(self, step: str, demos: list[Any]) -> list[Any]:
        """Those of a step's demonstrations that are shown: those that have its outputs, if a program says nothing else.

        DSPy would put "Not supplied for this particular example" in the place of one, which models repeat.

        Args:
            step: the step.
            demos: its demonstrations.
        """
        outputs = getattr(self, step).signature.output_fields
        return [demo for demo in demos if all(demo.get(name) is not None for name in outputs)]

    def extra_inputs(self, step: str) -> frozenset[str]:
        """What the model of a step asks for beside the fields of its signature; language models ask for nothing."""
        return getattr(self.models.get(step), "extra_inputs", frozenset())

    def has_own_model(self, step: str) -> bool:
        """Whether a model was named for a step, a small one or a language model, in place of the default one."""
        return step in self.models or step in self.lms

    def lm_calls(self, step: str) -> int:
        """Language model calls that taking a step costs: none where a small model takes it."""
        return 0 if step in self.models else 1

    def _lm(self, name: str, predictor: dspy.Predict) -> dspy.LM | None:
        lm = predictor.lm or self.lms.get(name) or dspy.settings.lm
        return with_prompt_format(lm, self.prompt_format) if lm and self.prompt_format else lm

    def set_lm(self, lm: dspy.LM) -> None:
        """Set the language model of all steps.

        DSPy's optimizers sample with copies of the default language model. If ``lm`` is such a copy, a step that has a
        language model of its own gets a copy of that one with the same settings for sampling.
        """
        super().set_lm(lm)
        if dspy.settings.lm and lm.model == dspy.settings.lm.model:
            sampling = {name: lm.kwargs[name] for name in ("rollout_id", "temperature") if name in lm.kwargs}
            for step, own in self.lms.items():
                getattr(self, step).lm = own.copy(**sampling)

    def language_models(self) -> dict[str, dspy.LM]:
        """The language model of each step that no small model takes over."""
        steps = {name: self._lm(name, predictor) for name, predictor in self.named_predictors()}
        return {name: lm for name, lm in steps.items() if lm and name not in self.models}

    def dump_state(self, json_mode: bool = True) -> dict[str, Any]:
        """The predictors' states by name, and the program's own state under ``program``.

        The latter holds the ``prompt_format``, the names of the steps that small ``models`` take over, and the names of
        fine-tuned ``lms`` by step. That of a local one is the name of its folder, which a variant keeps beside the
        state. Where demonstrations depend on the question, ``neighbours`` has all of them.
        """
        tuned = {step: lm for step, lm in self.lms.items() if is_tuned(lm)}
        names = {step: LOCAL + Path(lm.model).name if is_local(lm) else lm.model for step, lm in tuned.items()}
        own: dict[str, Any] = {
            "prompt_format": self.prompt_format,
            "models": sorted(self.models),
            "lms": dict(sorted(names.items())),
        }
        if self.neighbours:
            own["neighbours"] = self.neighbours.dump_state()
        return super().dump_state(json_mode) | {"program": own}

    def load_state(self, state: dict[str, Any], *, allow_unsafe_lm_state: bool = False) -> None:
        """Restore the state that :meth:`dump_state` gave; small models and language models are left as they are."""
        super().load_state(state, allow_unsafe_lm_state=allow_unsafe_lm_state)
        own = state["program"]
        self.prompt_format = own.get("prompt_format")
        self.neighbours = Neighbours.load_state(own["neighbours"]) if own.get("neighbours") else None

    async def retrieve(
        self, query: str, *, k: int | None = None, titles: Collection[str] | None = None
    ) -> list[Passage]:
        """Search the corpus.

        Args:
            query: a question or sentence.
            k: how many passages to find; the program's own ``k`` by default.
            titles: titles of the pages that passages may come from; by default they come from all pages.
        """
        if self.retriever is None:
            raise TypeError(f"{type(self).__name__} retrieves: give it a retriever")
        start = time.perf_counter()
        wanted = k or self.k
        asked: dict[str, Any] = {"query": query}
        if titles:
            asked["titles"] = list(titles)
        search = Search(self.retriever)
        await search.acall(query=query, k=wanted, titles=titles)
        ids = {"passages": [passage.id for passage in search.passages]}
        current().add(StepRecord("retrieve", "retrieval", asked, ids, seconds=seconds_since(start)))
        return search.passages


def _is_passages(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Passage)


def _shown(value: Any) -> Any:  # noqa: ANN401 - any field of any signature
    """A step's input as its model sees it."""
    if isinstance(value, Passage):
        return str(value)
    return [str(passage) for passage in value] if _is_passages(value) else value


def _identified(value: Any) -> Any:  # noqa: ANN401 - any field of any signature
    """A step's input as its record keeps it."""
    if isinstance(value, Passage):
        return value.id
    return [passage.id for passage in value] if _is_passages(value) else value


def _trace(traced: list[Any]) -> None:
    """Append what was traced to the trace that DSPy's optimizers read, up to the length that it may have."""
    trace, limit = dspy.settings.trace, dspy.settings.max_trace_size
    if trace is not None:
        trace.extend(traced)
        del trace[: max(0, len(trace) - limit)]
