"""Demonstrations and rules from questions on which the program's runs differ."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import dspy
from dspy.utils.callback import BaseCallback
from pydantic import Field

from hoptimizer.models.errors import UserError
from hoptimizer.optimizers.few_shot import Count, Positive
from hoptimizer.optimizers.job import Job
from hoptimizer.optimizers.ledger import Ledger
from hoptimizer.optimizers.search import Search, Work, finished, prompt_model
from hoptimizer.programs import Program

Temperature = Annotated[float, Field(gt=0)]


@dataclass(frozen=True, kw_only=True)
class SIMBA(Search):
    """Self-reflective improvement on minibatches of the train set (``dspy.SIMBA``).

    Args:
        bsize: questions of a minibatch.
        num_candidates: programs that a step makes, and runs of each question.
        max_steps: minibatches.
        max_demos: demonstrations a step of the program keeps.
        temperature_for_sampling: how often lesser programs are run.
        temperature_for_candidates: how often lesser programs are changed.
    """

    bsize: Positive = 16
    num_candidates: Annotated[int, Field(ge=2)] = 4
    max_steps: Positive = 4
    max_demos: Count = 4
    temperature_for_sampling: Temperature = 0.2
    temperature_for_candidates: Temperature = 0.2

    def check(self, job: Job) -> None:
        super().check(job)
        if self.bsize > len(job.trainset):
            raise UserError(f"optimizer.bsize: {self.bsize} of {len(job.trainset)} train questions; take fewer")

    def work(self, job: Job) -> Work:
        each = self.bsize * (2 * self.num_candidates + 1)
        whole = (self.num_candidates + 1) * len(job.trainset)
        return Work(runs=self.max_steps * each + whole, proposals=self.max_steps * (self.num_candidates + 1) // 2)

    def search(self, job: Job, ledger: Ledger) -> Program:
        runs = _Runs(job.objective, ledger, (self.bsize, len(job.trainset)))
        optimizer = dspy.SIMBA(
            metric=runs.metric,
            bsize=self.bsize,
            num_candidates=self.num_candidates,
            max_steps=self.max_steps,
            max_demos=self.max_demos,
            prompt_model=prompt_model(job),
            num_threads=job.workers,
            temperature_for_sampling=self.temperature_for_sampling,
            temperature_for_candidates=self.temperature_for_candidates,
        )
        with dspy.context(callbacks=[*dspy.settings.callbacks, runs]):
            compiled = optimizer.compile(job.program, trainset=job.examples("train"), seed=job.seed)
        runs.tell()
        return finished(job, compiled)


class _Runs(BaseCallback):
    """Tells the ledger of candidates: SIMBA scores runs one by one, and tells DSPy's callbacks of no evaluation.

    It evaluates all candidates of a step at once. They are told of in an order of their own when the next step begins,
    so that it does not matter which of them was ready first.

    Args:
        objective: scores a run.
        ledger: is told of candidates that were run on so many questions.
        sizes: of a minibatch, and of the train set.
    """

    def __init__(self, objective: Callable[..., float], ledger: Ledger, sizes: tuple[int, int]) -> None:
        self._objective, self._ledger, self._sizes = objective, ledger, sizes
        self._running: dict[str, dict[str, Any]] = {}
        self._made: dict[int, tuple[dspy.Prediction, dict[str, Any]]] = {}
        self._candidates: dict[str, tuple[dict[str, Any], dict[str, float]]] = {}
        self._lock = threading.Lock()

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:  # noqa: ANN401 - DSPy's hook
        """A program starts on a question."""
        if not isinstance(instance, Program):
            return
        if any(predictor.lm for predictor in instance.predictors()):
            # A step begins with runs that are sampled, from language models of their own; they measure no program.
            self.tell()
        else:
            self._running[call_id] = instance.dump_state()

    def on_module_end(self, call_id: str, outputs: Any | None, exception: BaseException | None = None) -> None:  # noqa: ANN401 - DSPy's hook
        """It answered; its prediction is kept until it is scored, so that no other has its id."""
        if (state := self._running.pop(call_id, None)) and outputs is not None:
            self._made[id(outputs)] = (outputs, state)

    def metric(self, example: dspy.Example, prediction: dspy.Prediction | None, trace: Any = None) -> float:  # noqa: ANN401 - DSPy's
        """The objective, as SIMBA asks for it."""
        score = self._objective(example, prediction, trace)
        _, state = self._made.pop(id(prediction), (None, None))
        if state:
            with self._lock:
                _, scores = self._candidates.setdefault(str(state), (state, {}))
                scores[example.id] = score
        return score

    def tell(self) -> None:
        """Tell of those that were run on a whole minibatch, or on all questions."""
        with self._lock:
            for _, (state, scores) in sorted(self._candidates.items()):
                if len(scores) in self._sizes:
                    self._ledger.add(state, sum(scores[id] for id in sorted(scores)) / len(scores), len(scores))
