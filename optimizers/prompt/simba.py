"""Demonstrations and rules from questions on which the program's runs differ."""

import threading
from dataclasses import dataclass, field
from typing import Annotated, Any

import dspy
from dspy.utils.callback import BaseCallback
from pydantic import Field

from hoptimizer.common.errors import UserError
from hoptimizer.optimizers.candidates import SearchContext
from hoptimizer.optimizers.optimizer import CompileContext
from hoptimizer.optimizers.prompt.few_shot import Count, Positive
from hoptimizer.optimizers.prompt.scoring import score
from hoptimizer.optimizers.prompt.search import Search, WorkEstimate, finished, prompt_model
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

    def check(self, context: CompileContext) -> None:
        super().check(context)
        if self.bsize > len(context.trainset):
            raise UserError(f"optimizer.bsize: {self.bsize} of {len(context.trainset)} train questions; take fewer")

    def work(self, context: CompileContext) -> WorkEstimate:
        each = self.bsize * (2 * self.num_candidates + 1)
        whole = (self.num_candidates + 1) * len(context.trainset) + self.max_steps * len(context.devset)
        return WorkEstimate(
            runs=self.max_steps * each + whole, proposals=self.max_steps * (self.num_candidates + 1) // 2
        )

    def search(self, context: SearchContext) -> Program:
        runs = _Runs(context, (self.bsize, len(context.trainset)))
        optimizer = dspy.SIMBA(
            metric=runs.metric,
            bsize=self.bsize,
            num_candidates=self.num_candidates,
            max_steps=self.max_steps,
            max_demos=self.max_demos,
            prompt_model=prompt_model(context),
            num_threads=context.workers,
            temperature_for_sampling=self.temperature_for_sampling,
            temperature_for_candidates=self.temperature_for_candidates,
        )
        with dspy.context(callbacks=[*dspy.settings.callbacks, runs]):
            compiled = optimizer.compile(context.program, trainset=context.examples("train"), seed=context.seed)
        runs.tell()
        return finished(context, compiled)


class _Runs(BaseCallback):
    """Tells the recorder of candidates: SIMBA scores runs one by one, and tells DSPy's callbacks of no evaluation.

    It evaluates all candidates of a step at once. They are told of in an order of their own when the next step begins,
    so that it does not matter which of them was ready first; the best one is then scored on dev, where it can be
    compared with those of other steps.

    Args:
        context: the compile.
        sizes: of a minibatch and of the train set: candidates that were run on a whole one are told of.
    """

    def __init__(self, context: SearchContext, sizes: tuple[int, int]) -> None:
        self._context, self._recorder, self._sizes = context, context.recorder, sizes
        self._ids = {question.question: question.id for question in context.trainset}
        self._running: dict[str, tuple[dict[str, Any], str]] = {}
        self._made: dict[int, tuple[dspy.Prediction, dict[str, Any]]] = {}
        self._tried: dict[str, _Tried] = {}
        self._lock = threading.Lock()

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:  # noqa: ANN401 - DSPy's hook
        """A program starts on a question."""
        if not isinstance(instance, Program):
            return
        if any(predictor.lm for predictor in instance.predictors()):
            # A step begins with runs that are sampled, from language models of their own; they measure no program.
            self.tell()
        else:
            self._running[call_id] = instance.dump_state(), inputs["kwargs"]["question"]

    def on_module_end(self, call_id: str, outputs: Any | None, exception: BaseException | None = None) -> None:  # noqa: ANN401 - DSPy's hook
        """It answered; its prediction is kept until it is scored, so that no other has its id."""
        if call_id not in self._running:
            return
        state, question = self._running.pop(call_id)
        if outputs is None:
            self._keep(state, question, self._context.objective.worst, failures=1)
        else:
            self._made[id(outputs)] = outputs, state

    def metric(self, example: dspy.Example, prediction: dspy.Prediction | None, trace: Any = None) -> float:  # noqa: ANN401 - DSPy's
        """The objective, as SIMBA asks for it."""
        score = self._context.objective(example, prediction, trace)
        _, state = self._made.pop(id(prediction), (None, None))
        if state:
            self._keep(state, example.question, score)
        return score

    def _keep(self, state: dict[str, Any], question: str, score: float, failures: int = 0) -> None:
        with self._lock:
            tried = self._tried.setdefault(str(state), _Tried(state))
            tried.scores[self._ids[question]] = score
            tried.failures += failures

    def tell(self) -> None:
        """Tell of those that are new; what else begins waits for it."""
        with self._lock:
            tried = [tried for _, tried in sorted(self._tried.items()) if len(tried.scores) in self._sizes]
            new = [one for one in tried if self._recorder.find(one.state) is None]
            for one in tried:
                self._recorder.add(one.state, one.scores, one.failures)
            if scored := [candidate for one in new if (candidate := self._recorder.find(one.state))]:
                best = max(scored, key=lambda candidate: candidate.score)
                program = self._recorder.restored(self._context.program, best)
                with dspy.context(callbacks=[other for other in dspy.settings.callbacks if other is not self]):
                    score(self._context, program)


@dataclass(eq=False)
class _Tried:
    """A candidate, its scores by the question's id, and how often it failed."""

    state: dict[str, Any]
    scores: dict[str, float] = field(default_factory=dict)
    failures: int = 0
