"""Every candidate of a search with its score, whichever optimizer made it."""

import copy
import math
import statistics
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback

from hoptimizer.models.usage import Usage, UsageMeter
from hoptimizer.optimizers.optimizer import CompileContext, CompileListener
from hoptimizer.programs import Ensemble, Program


@dataclass(frozen=True)
class Candidate:
    """A program that was scored.

    Attributes:
        number: its number, from 0, in the order in which candidates were first scored.
        state: instructions and demonstrations, as the program dumps them.
        scores: the objective by the question's id.
        is_whole: whether those were all dev questions; false for a part of them and for train questions.
        failures: the number of questions on which it failed.
        spent: what the compile had spent when the candidate was scored.
    """

    number: int
    state: dict[str, Any]
    scores: Mapping[str, float]
    is_whole: bool
    failures: int
    spent: Usage

    @property
    def n(self) -> int:
        """The number of questions that it was scored on."""
        return len(self.scores)

    @cached_property
    def score(self) -> float:
        """The mean of the objective over the questions."""
        # Which question was answered first must not change the last digit.
        return math.fsum(self.scores.values()) / self.n

    def is_above(self, other: "Candidate") -> bool:
        """Whether its score is higher than another's by more than a standard error of their paired difference.

        It is not where a single question makes the difference.

        Args:
            other: a candidate that was scored on the same questions.
        """
        differences = [self.scores[id] - other.scores[id] for id in self.scores.keys() & other.scores.keys()]
        if len(differences) < 2:
            return False
        mean, error = statistics.mean(differences), statistics.stdev(differences) / math.sqrt(len(differences))
        return mean > error and not math.isclose(mean, error)


class CandidateRecorder(BaseCallback):
    """A DSPy callback that records every program that is evaluated, with its score.

    A program is kept as its state, not as an object: optimizers change the object afterwards, and some share its
    signatures among their candidates.

    Args:
        meter: counts the calls.
        dev: the ids of the dev questions.
        worst: the score of a question on which a candidate fails.
        listener: is told of each candidate, again when it is scored on more questions, and of the constructor and
            compile parameters of each optimizer of DSPy that runs.
    """

    def __init__(self, meter: UsageMeter, dev: Collection[str], worst: float, listener: CompileListener) -> None:
        self.meter = meter
        self.candidates: list[Candidate] = []
        self._dev, self._worst, self._listener = frozenset(dev), worst, listener
        self._evaluated: dict[str, dict[str, Any]] = {}
        self._compiling = 0
        self._lock = threading.RLock()

    def add(self, state: dict[str, Any], scores: Mapping[str, float], failures: int = 0) -> Candidate:
        """Record that a program was scored.

        Args:
            state: the program's state, as it dumps it.
            scores: the objective by the question's id.
            failures: the number of questions on which the program failed.

        Returns:
            the candidate with these scores, also where it is kept with those of more questions.
        """
        is_whole = self._dev <= scores.keys()
        with self._lock:
            known = self.find(state)
            number = len(self.candidates) if known is None else known.number
            candidate = Candidate(number, state, dict(scores), is_whole, failures, self.meter.spent)
            if known is None:
                self.candidates.append(candidate)
            elif (is_whole, len(scores)) > (known.is_whole, known.n):
                self.candidates[number] = candidate
            else:
                return candidate
        self._listener.candidate(candidate)
        return candidate

    def find(self, state: dict[str, Any]) -> Candidate | None:
        """The candidate with a state; ``None`` where no such program was scored.

        Args:
            state: a program's state, as it dumps it.
        """
        return next((candidate for candidate in self.candidates if candidate.state == state), None)

    @property
    def ranking(self) -> list[Candidate]:
        """The candidates that were scored on all dev questions, the best first; ties keep the order of scoring."""
        whole = [candidate for candidate in self.candidates if candidate.is_whole]
        return sorted(whole, key=lambda candidate: -candidate.score)

    @property
    def best(self) -> Candidate | None:
        """The first of the ranking; ``None`` where it is empty."""
        return next(iter(self.ranking), None)

    def alike(self, program: Program) -> list[Candidate]:
        """The candidates of the ranking whose steps use the same language models and small models as a program.

        A state names its models without holding them, so that only these can be restored from the program.

        Args:
            program: the program.
        """
        models = _models(program.dump_state())
        return [candidate for candidate in self.ranking if _models(candidate.state) == models]

    def restored(self, program: Program, candidate: Candidate | None = None) -> Program:
        """A candidate as a program; a copy of the given program where there is none.

        Args:
            program: a program with the same steps and the same models as the candidate.
            candidate: a candidate of this recorder; by default the best with the program's models.
        """
        chosen = candidate or next(iter(self.alike(program)), None)
        return _with(program, chosen.state) if chosen else program.deepcopy()

    def on_evaluate_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:  # noqa: ANN401 - DSPy's hook
        """Keep the state of a program whose evaluation begins, since it may be changed once the evaluation ended."""
        self._evaluated[call_id] = inputs["program"].dump_state()
        instance.failure_score = self._worst  # no optimizer of DSPy passes one on

    def on_evaluate_end(self, call_id: str, outputs: Any | None, exception: BaseException | None = None) -> None:  # noqa: ANN401 - DSPy's hook
        """Record the result of an evaluation that ended."""
        state = self._evaluated.pop(call_id)
        if outputs is None or exception is not None:
            return
        scores = {example.id: float(score) for example, _, score in outputs.results}
        # DSPy's results hold an empty prediction for a question on which the program raised.
        failures = sum(isinstance(given, dspy.Prediction) and not given.keys() for _, given, _ in outputs.results)
        self.add(state, scores, failures)

    def on_compile_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:  # noqa: ANN401 - DSPy's hook
        """Tell the listener the settings of an optimizer of DSPy that starts.

        The settings of the optimizers that it starts in turn follow from its own.
        """
        self._compiling += 1
        if self._compiling == 1:
            given = vars(instance) | {key: value for key, value in inputs.items() if value is not None}
            name = type(instance).__name__
            self._listener.settle({f"{name}.{key}": value for key, value in given.items() if _is_setting(key, value)})

    def on_compile_end(self, call_id: str, outputs: Any | None, exception: Exception | None = None) -> None:  # noqa: ANN401 - DSPy's hook
        """Note that an optimizer of DSPy ended."""
        self._compiling -= 1


@dataclass(frozen=True)
class SearchContext(CompileContext):
    """The context of a search over prompts, which the searches that it consists of share.

    Attributes:
        recorder: records every candidate.
    """

    recorder: CandidateRecorder = field(kw_only=True)


def _models(state: Mapping[str, Any]) -> tuple[Any, ...]:
    """The small models and the fine-tuned language models that a program's state names."""
    if members := state["program"].get("members"):
        return _models(members[0])
    return state["program"]["models"], state["program"]["lms"]


def _with(program: Program, state: dict[str, Any]) -> Program:
    """A copy of a program with the given state."""
    if members := state["program"].get("members"):
        return Ensemble([_with(program, member) for member in members])
    restored = program.deepcopy()
    restored.load_state(copy.deepcopy(state))
    return restored


def _is_setting(name: str, value: object) -> bool:
    return not name.startswith("_") and isinstance(value, (bool, int, float, str))
