"""Every candidate of a compile with its score, whatever optimizer made it."""

import copy
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback

from hoptimizer.eval.failures import SYSTEMIC, one_line
from hoptimizer.models.calls import Meter, Spent, Stopped
from hoptimizer.models.errors import UserError
from hoptimizer.programs import Program


@dataclass(frozen=True)
class Candidate:
    """A program that was scored.

    Attributes:
        number: from 0, in the order in which candidates were scored first.
        state: instructions and demonstrations, as the program dumps them.
        score: the mean of the objective.
        n: questions it was scored on.
        failures: questions on which it failed.
        spent: by the compile, when it was scored.
    """

    number: int
    state: dict[str, Any]
    score: float
    n: int
    failures: int
    spent: Spent


class Ledger(BaseCallback):
    """Hears from DSPy what is evaluated, with what result.

    A program is kept as its state, not as the object: optimizers change it afterwards, and some share its signatures
    among their candidates.

    Args:
        meter: counts the calls.
        record: is told of each candidate, and again where it is scored on more questions.
        settle: is told the constructor and compile parameters of each of DSPy's optimizers that runs.
    """

    def __init__(
        self,
        meter: Meter,
        record: Callable[[Candidate], None],
        settle: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self.meter = meter
        self.candidates: list[Candidate] = []
        self.error: UserError | None = None
        """Why no call can succeed, where that is so."""
        self._record, self._settle = record, settle
        self._evaluated: dict[str, dict[str, Any]] = {}
        self._compiling = 0
        self._lock = threading.RLock()

    def add(self, state: dict[str, Any], score: float, n: int, failures: int = 0) -> None:
        """A program was scored.

        Args:
            state: as it dumps it.
            score: the mean of the objective.
            n: questions.
            failures: questions on which it failed.
        """
        with self._lock:
            known = next((i for i, candidate in enumerate(self.candidates) if candidate.state == state), None)
            number = len(self.candidates) if known is None else known
            candidate = Candidate(number, state, score, n, failures, self.meter.spent)
            if known is None:
                self.candidates.append(candidate)
            elif n > self.candidates[known].n:
                self.candidates[known] = candidate
            else:
                return
        self._record(candidate)

    @property
    def ranking(self) -> list[Candidate]:
        """Those that were scored on the most questions, the best first; of equals the one that was scored first."""
        most = max((candidate.n for candidate in self.candidates), default=0)
        whole = [candidate for candidate in self.candidates if candidate.n == most]
        return sorted(whole, key=lambda candidate: -candidate.score)

    @property
    def best(self) -> Candidate | None:
        """The first of the ranking, where anything was scored."""
        return next(iter(self.ranking), None)

    def restored(self, program: Program, candidate: Candidate | None = None) -> Program:
        """A candidate as a program, by default the best; the program as it is where nothing was scored.

        Args:
            program: of the same steps.
            candidate: of this ledger.
        """
        restored = program.deepcopy()
        if chosen := candidate or self.best:
            restored.load_state(copy.deepcopy(chosen.state))
        return restored

    def on_evaluate_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:  # noqa: ANN401 - DSPy's hook
        """An evaluation begins; the program may be changed once it ended."""
        self._evaluated[call_id] = inputs["program"].dump_state()

    def on_evaluate_end(self, call_id: str, outputs: Any | None, exception: BaseException | None = None) -> None:  # noqa: ANN401 - DSPy's hook
        """An evaluation ended."""
        state = self._evaluated.pop(call_id)
        if outputs is None or exception is not None:
            return
        scores = [float(score) for _, _, score in outputs.results]
        # What raised is an empty prediction in DSPy's results.
        failures = sum(isinstance(given, dspy.Prediction) and not given.keys() for _, given, _ in outputs.results)
        self.add(state, sum(scores) / len(scores), len(scores), failures)

    def on_compile_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:  # noqa: ANN401 - DSPy's hook
        """One of DSPy's optimizers starts; the settings of those that it starts in turn follow from its own."""
        self._compiling += 1
        if self._compiling == 1:
            given = {**vars(instance), **inputs}
            name = type(instance).__name__
            self._settle({f"{name}.{key}": value for key, value in given.items() if _is_setting(key, value)})

    def on_compile_end(self, call_id: str, outputs: Any | None, exception: Exception | None = None) -> None:  # noqa: ANN401 - DSPy's hook
        """It ended."""
        self._compiling -= 1

    def on_lm_end(self, call_id: str, outputs: Any | None, exception: BaseException | None = None) -> None:  # noqa: ANN401 - DSPy's hook
        """A call ended.

        Raises:
            Stopped: no call can succeed.
        """
        if isinstance(exception, SYSTEMIC):
            self.error = UserError(f"the language model can't be used: {one_line(exception)}; check the lm section")
            raise Stopped


def _is_setting(name: str, value: object) -> bool:
    return not name.startswith("_") and isinstance(value, (bool, int, float, str))
