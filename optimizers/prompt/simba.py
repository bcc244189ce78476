"""Demonstrations and rules from questions on which the program's runs score differently (SIMBA)."""

import threading
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple

import dspy
from dspy.utils.callback import BaseCallback
from pydantic import Field

from hoptimizer.common.errors import UserError
from hoptimizer.common.options import Positive
from hoptimizer.optimizers.candidates import SearchContext
from hoptimizer.optimizers.optimizer import CompileContext
from hoptimizer.optimizers.prompt.few_shot import Count
from hoptimizer.optimizers.prompt.scoring import score
from hoptimizer.optimizers.prompt.search import Search, WorkEstimate, finished, prompt_model
from hoptimizer.programs import Program

Temperature = Annotated[float, Field(gt=0)]


@dataclass(frozen=True, kw_only=True)
class SIMBA(Search):
    """Self-reflective improvement on minibatches of the train set (``dspy.SIMBA``).

    Args:
        bsize: the number of questions per minibatch.
        num_candidates: the number of programs that are made per minibatch, and of sampled runs per question.
        max_steps: the number of minibatches.
        max_demos: the most demonstrations that a step of the program keeps.
        temperature_for_sampling: the softmax temperature of choosing programs to run; the higher, the more often
            programs with lower scores are chosen.
        temperature_for_candidates: the softmax temperature of choosing programs to change.
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
        whole = (self.num_candidates + 1) * len(context.trainset) + (1 + self.max_steps) * len(context.devset)
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
        score(context, finished(context, compiled))  # which DSPy chose on train
        return context.recorder.restored(context.program)


class _Asked(NamedTuple):
    """What tells a question from others: its words, and the page that it is asked about."""

    question: str
    main: str | None


class _Runs(BaseCallback):
    """Records SIMBA's candidates, since SIMBA scores runs one by one and calls no evaluation callback of DSPy.

    SIMBA evaluates all candidates of a minibatch at once. They are recorded when the next minibatch begins, in an order
    that does not depend on which was ready first. The best of them is then scored on dev, where it can be compared with
    those of other minibatches.

    Args:
        context: the compile.
        sizes: the number of questions of a minibatch and of the train set; only candidates that ran on exactly one of
            these numbers of questions are recorded.
    """

    def __init__(self, context: SearchContext, sizes: tuple[int, int]) -> None:
        self._context, self._recorder, self._sizes = context, context.recorder, sizes
        self._ids = {_Asked(question.question, question.main): question.id for question in context.trainset}
        self._running: dict[str, tuple[dict[str, Any], _Asked]] = {}
        self._made: dict[int, tuple[dspy.Prediction, dict[str, Any]]] = {}
        self._tried: dict[str, _Tried] = {}
        self._lock = threading.Lock()

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:  # noqa: ANN401 - DSPy's hook
        """Note that a program starts on a question."""
        if not isinstance(instance, Program):
            return
        if any(predictor.lm for predictor in instance.predictors()):
            # A minibatch begins with runs that are sampled from separate language models; they score no candidate.
            self.tell()
        else:
            asked = _Asked(inputs["kwargs"]["question"], inputs["kwargs"].get("main"))
            self._running[call_id] = instance.dump_state(), asked

    def on_module_end(self, call_id: str, outputs: Any | None, exception: BaseException | None = None) -> None:  # noqa: ANN401 - DSPy's hook
        """Keep a prediction until it is scored, so that no other object can have its id."""
        if isinstance(outputs, dspy.Prediction) and "steps" in outputs:
            # SIMBA shows whole predictions when it asks for a rule; when a step ended, how long it took and whether a
            # cache answered would make each such prompt a new one, and a compile that is resumed would ask all anew.
            outputs.steps = [replace(record, seconds=0.0, ended=0.0, cached_calls=0) for record in outputs.steps]
        if call_id not in self._running:
            return
        state, asked = self._running.pop(call_id)
        if outputs is None:
            self._keep(state, asked, self._context.objective.worst, failures=1)
        else:
            self._made[id(outputs)] = outputs, state

    def metric(self, example: dspy.Example, prediction: dspy.Prediction | None, trace: Any = None) -> float:  # noqa: ANN401 - DSPy's
        """The objective of a run, which is kept for the record of its candidate.

        Args:
            example: the question.
            prediction: the program's prediction; ``None`` where it failed.
            trace: the run's trace.
        """
        objective = self._context.objective
        score = objective.worst if prediction is None else objective(example, prediction, trace)
        _, state = self._made.pop(id(prediction), (None, None))
        if state:
            self._keep(state, _Asked(example.question, example.get("main")), score)
        return score

    def _keep(self, state: dict[str, Any], asked: _Asked, score: float, failures: int = 0) -> None:
        with self._lock:
            tried = self._tried.setdefault(str(state), _Tried(state))
            tried.scores[self._ids[asked]] = score
            tried.failures += failures

    def tell(self) -> None:
        """Record the candidates that are new, and score the best of them on dev; other calls wait for the end of it."""
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
    """A candidate's state, its scores by the question's id, and the number of its failures."""

    state: dict[str, Any]
    scores: dict[str, float] = field(default_factory=dict)
    failures: int = 0
