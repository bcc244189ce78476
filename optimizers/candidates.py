"""Every candidate of a search with its score, whatever optimizer made it."""

import copy
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback

from hoptimizer.common.errors import UserError
from hoptimizer.eval.failures import SYSTEMIC, one_line
from hoptimizer.models.usage import LMUnusable, Usage, UsageMeter
from hoptimizer.optimizers.optimizer import CompileContext, CompileListener
from hoptimizer.programs import Ensemble, Program


@dataclass(frozen=True)
class Candidate:
    """A program that was scored.

    Attributes:
        number: from 0, in the order in which candidates were scored first.
        state: instructions and demonstrations, as the program dumps them.
        score: the mean of the objective.
        n: questions it was scored on.
        is_whole: whether those were all of dev, and not a part of it, or train questions.
        failures: questions on which it failed.
        spent: by the compile, when it was scored.
    """

    number: int
    state: dict[str, Any]
    score: float
    n: int
    is_whole: bool
    failures: int
    spent: Usage


class CandidateRecorder(BaseCallback):
    """Hears from DSPy what is evaluated, with what result.

    A program is kept as its state, not as the object: optimizers change it afterwards, and some share its signatures
    among their candidates.

    Args:
        meter: counts the calls.
        dev: the ids of the dev questions.
        worst: what a question counts on which a candidate fails.
        listener: is told of each candidate, again where it is scored on more questions, and of the constructor and
            compile parameters of each of DSPy's optimizers that runs.
    """

    def __init__(self, meter: UsageMeter, dev: Collection[str], worst: float, listener: CompileListener) -> None:
        self.meter = meter
        self.candidates: list[Candidate] = []
        self._dev, self._worst, self._listener = frozenset(dev), worst, listener
        self._evaluated: dict[str, dict[str, Any]] = {}
        self._compiling = 0
        self._lock = threading.RLock()

    def add(self, state: dict[str, Any], scores: Mapping[str, float], failures: int = 0) -> float:
        """A program was scored.

        Args:
            state: as it dumps it.
            scores: the objective by the question's id.
            failures: questions on which it failed.

        Returns:
            the mean of the objective.
        """
        # In an order of its own: which question was ready first must not show in the last digit.
        mean = sum(scores[id] for id in sorted(scores)) / len(scores)
        is_whole = self._dev <= scores.keys()
        with self._lock:
            known = self.find(state)
            number = len(self.candidates) if known is None else known.number
            candidate = Candidate(number, state, mean, len(scores), is_whole, failures, self.meter.spent)
            if known is None:
                self.candidates.append(candidate)
            elif (is_whole, len(scores)) > (known.is_whole, known.n):
                self.candidates[number] = candidate
            else:
                return mean
        self._listener.candidate(candidate)
        return mean

    def find(self, state: dict[str, Any]) -> Candidate | None:
        """The candidate of a state, if it was scored."""
        return next((candidate for candidate in self.candidates if candidate.state == state), None)

    @property
    def ranking(self) -> list[Candidate]:
        """Those that were scored on all of dev, the best first; of equals the one that was scored first."""
        whole = [candidate for candidate in self.candidates if candidate.is_whole]
        return sorted(whole, key=lambda candidate: -candidate.score)

    @property
    def best(self) -> Candidate | None:
        """The first of the ranking, where anything was scored."""
        return next(iter(self.ranking), None)

    def alike(self, program: Program) -> list[Candidate]:
        """Those of the ranking that a program can become: their steps are on the same models, language models and small
        ones, which a state names and does not hold."""
        models = _models(program.dump_state())
        return [candidate for candidate in self.ranking if _models(candidate.state) == models]

    def restored(self, program: Program, candidate: Candidate | None = None) -> Program:
        """A candidate as a program, by default the best of those on the same models; the program as it is where none
        was scored.

        Args:
            program: of the same steps, on the same models.
            candidate: of this recorder.
        """
        chosen = candidate or next(iter(self.alike(program)), None)
        return _with(program, chosen.state) if chosen else program.deepcopy()

    def on_evaluate_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:  # noqa: ANN401 - DSPy's hook
        """An evaluation begins; the program may be changed once it ended."""
        self._evaluated[call_id] = inputs["program"].dump_state()
        instance.failure_score = self._worst  # no optimizer of DSPy's passes one on

    def on_evaluate_end(self, call_id: str, outputs: Any | None, exception: BaseException | None = None) -> None:  # noqa: ANN401 - DSPy's hook
        """An evaluation ended."""
        state = self._evaluated.pop(call_id)
        if outputs is None or exception is not None:
            return
        scores = {example.id: float(score) for example, _, score in outputs.results}
        # What raised is an empty prediction in DSPy's results.
        failures = sum(isinstance(given, dspy.Prediction) and not given.keys() for _, given, _ in outputs.results)
        self.add(state, scores, failures)

    def on_compile_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:  # noqa: ANN401 - DSPy's hook
        """One of DSPy's optimizers starts; the settings of those that it starts in turn follow from its own."""
        self._compiling += 1
        if self._compiling == 1:
            given = vars(instance) | {key: value for key, value in inputs.items() if value is not None}
            name = type(instance).__name__
            self._listener.settle({f"{name}.{key}": value for key, value in given.items() if _is_setting(key, value)})

    def on_compile_end(self, call_id: str, outputs: Any | None, exception: Exception | None = None) -> None:  # noqa: ANN401 - DSPy's hook
        """It ended."""
        self._compiling -= 1

    def on_lm_end(self, call_id: str, outputs: Any | None, exception: BaseException | None = None) -> None:  # noqa: ANN401 - DSPy's hook
        """A call ended.

        Raises:
            LMUnusable: no call can succeed.
        """
        if isinstance(exception, SYSTEMIC):
            reason = f"the language model can't be used: {one_line(exception)}; check the lm section"
            raise LMUnusable(UserError(reason))


@dataclass(frozen=True)
class SearchContext(CompileContext):
    """The compile that a search over prompts works on, and all searches that it is made of.

    Attributes:
        recorder: hears of every candidate.
    """

    recorder: CandidateRecorder = field(kw_only=True)


def _models(state: Mapping[str, Any]) -> tuple[Any, ...]:
    """The small models and the fine-tuned language models of a program's state."""
    if members := state["program"].get("members"):
        return _models(members[0])
    return state["program"]["models"], state["program"]["lms"]


def _with(program: Program, state: dict[str, Any]) -> Program:
    """A copy of a program that has a state."""
    if members := state["program"].get("members"):
        return Ensemble([_with(program, member) for member in members])
    restored = program.deepcopy()
    restored.load_state(copy.deepcopy(state))
    return restored


def _is_setting(name: str, value: object) -> bool:
    return not name.startswith("_") and isinstance(value, (bool, int, float, str))
