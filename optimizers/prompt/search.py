"""The parts that every search over prompts shares: budget, record of candidates, and prompt format."""

import logging
import math
import sys
import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import dspy
from dspy.utils.exceptions import AdapterParseError, DSPyError

from hoptimizer.common.errors import UserError
from hoptimizer.eval.runner import evaluate
from hoptimizer.models.engine.engine import is_local
from hoptimizer.models.failures import one_line
from hoptimizer.models.settings import PromptFormat
from hoptimizer.models.usage import BudgetExhausted, CallCache, Usage, UsageMeter
from hoptimizer.optimizers.candidates import CandidateRecorder, SearchContext
from hoptimizer.optimizers.optimizer import CompileContext, Optimizer
from hoptimizer.optimizers.prompt.budget import Budget
from hoptimizer.optimizers.prompt.prompt_format import PROMPT_FORMATS, choose_prompt_format
from hoptimizer.optimizers.prompt.scoring import score
from hoptimizer.programs import Program

PROBE = 8
"""The number of dev questions that the cost of a question is estimated from."""
# The least number of seconds between two reports of what was spent.
_PAUSE = 0.2
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkEstimate:
    """An estimate of how much a search has to do.

    Attributes:
        runs: the number of times that the program runs on a question.
        proposals: the number of calls that propose instructions or rules.
    """

    runs: int
    proposals: int = 0


@dataclass(frozen=True, kw_only=True)
class Search(Optimizer):
    """A search over prompts with one of DSPy's optimizers.

    A compile that was killed is resumed by making the same calls again: the run's own cache holds those that were
    already made. When the budget is exhausted, the result is the best program so far.

    Args:
        prompt_formats: the prompt formats that are tried on dev with local language models.
        budget: the limits ``lm_calls``, ``minutes`` and ``usd``; none by default.
    """

    prompt_formats: tuple[PromptFormat, ...] = PROMPT_FORMATS
    budget: Budget | None = None

    makes_candidates: ClassVar[bool] = True
    """Whether the search chooses among several programs, one of which is what it starts from; false where it makes only
    one."""

    @abstractmethod
    def search(self, context: SearchContext) -> Program:
        """The compiled program.

        Args:
            context: the compile; the prompt format of its program is chosen, and its recorder records every evaluation
                by DSPy.
        """

    @abstractmethod
    def work(self, context: CompileContext) -> WorkEstimate:
        """An estimate of how much there is to do, apart from the choice of the prompt format.

        Args:
            context: the compile.
        """

    def check(self, context: CompileContext) -> None:
        if self.budget is None:
            return
        if self.budget.lm_calls is not None and self.budget.lm_calls < len(context.devset):
            raise self._too_small(f"a call or more for each of the {len(context.devset)} dev questions")
        if self.budget.usd is not None and all(is_local(lm) for lm in self._lms(context)):
            raise UserError("optimizer.budget.usd: a local model has no price; give lm_calls or minutes")

    @staticmethod
    def _lms(context: CompileContext) -> list[dspy.LM]:
        """The language models that a compile may ask, each once."""
        judge = context.objective.judge if context.objective.is_judged else None
        named = [*context.program.language_models().values()]
        named += [lm for lm in (context.teacher_lm, context.reflection_lm, judge) if lm]
        return list({id(lm): lm for lm in named}.values())

    def compile(self, context: CompileContext) -> Program:
        if isinstance(context, SearchContext):  # this is a part of another search, and uses its budget and recorder
            return self._search(context)
        limit = self.budget.ends if self.budget else lambda _: False
        seconds = dspy.cache.seconds if isinstance(dspy.cache, CallCache) else 0.0
        meter = UsageMeter(limit, seconds=seconds)
        dev = [question.id for question in context.devset]
        recorder = CandidateRecorder(meter, dev, context.objective.worst, context.listener)
        searching = SearchContext(**vars(context), recorder=recorder)
        # A question on which a candidate fails gets the worst score, and the compile goes on.
        callbacks = [*dspy.settings.callbacks, recorder]
        with dspy.context(meter=meter, callbacks=callbacks, max_errors=sys.maxsize):
            try:
                meter.told = self._reporter(searching, self._probe(searching, meter))
                return self._search(searching)
            except BudgetExhausted:
                if not recorder.best:
                    raise self._too_small("more than that") from None
                kept = recorder.restored(context.program)
                unchanged = kept.dump_state() == context.program.dump_state()
                _log.warning(
                    "optimizer.budget: %s ended the search; candidates that were scored on dev: %d; kept is %s",
                    self.budget,
                    len(recorder.ranking),
                    "what it started from" if unchanged else "the best of them",
                )
                return kept
            finally:
                context.listener.record("spent", meter.spent.figures(), meter.spent.calls)

    def _search(self, context: SearchContext) -> Program:
        start = context.program
        context = choose_prompt_format(context, self.prompt_formats, self.sketch)
        # Not all of DSPy's optimizers score it; and the budget may end before another program is scored.
        if self.makes_candidates or (self.budget and not context.recorder.best):
            score(context, start)
        try:
            program = self.search(context)
        except AdapterParseError as error:
            raise UserError(
                f"optimizer: a proposal can't be parsed ({' '.join(str(error).split())[:200]}); name a model that "
                "keeps to the format in lm.reflection"
            ) from error
        except DSPyError as error:  # from a proposal: a question on which the program fails has a score
            raise UserError(
                f"optimizer: the language model that proposes failed: {one_line(error)}; check the lm section, and "
                "give the same command again"
            ) from error
        scored = score(context, program)  # the optimizer may not have scored it, or only on other questions
        # What it started from may be better, or one of the trials of a prompt format.
        best = context.recorder.alike(program)[0]
        return context.recorder.restored(program, best) if self.makes_candidates and best.score > scored else program

    def _too_small(self, takes: str) -> UserError:
        return UserError(
            f"optimizer.budget: {self.budget} do not finish one candidate, which takes {takes}; give more, or take "
            "fewer questions with data.dev"
        )

    def _probe(self, context: SearchContext, meter: UsageMeter) -> Usage:
        """An estimate of what the whole search takes, from what a few questions take.

        Raises:
            UserError: the budget does not cover one candidate, or the language model has no known price.
        """
        some = context.devset[:PROBE]
        before = meter.spent
        judge = context.objective.judge if context.objective.is_judged else None
        evaluate(self.sketch(context) or context.program, some, workers=context.workers, judge=judge)
        work = self.work(context)
        # These questions are answered in the model's own prompt format, and so are a part of the trial of that.
        chooses = len(self.prompt_formats) > 1 and is_local(dspy.settings.lm)
        runs = work.runs + (len(self.prompt_formats) * len(context.devset) if chooses else len(some))
        whole = _scaled(before, meter.spent, runs / len(some), work.proposals)
        context.listener.record("estimate", whole.figures(), 0)
        candidate = replace(
            _scaled(before, meter.spent, len(context.devset) / len(some)),
            # On a server that is fast enough, as many questions as there are workers take the time of one.
            seconds=(meter.spent.seconds - before.seconds)
            * math.ceil(len(context.devset) / max(context.workers, len(some))),
        )
        if self.budget and not self.budget.covers(candidate):
            raise self._too_small(f"about {self.budget.told(candidate)}")
        if self.budget and self.budget.usd is not None and not meter.spent.usd:
            served = [lm for lm in self._lms(context) if not is_local(lm)]
            unknown = f"optimizer.budget.usd: no price is known for {dspy.settings.lm.model}"
            if served == [dspy.settings.lm]:
                raise UserError(f"{unknown}; give lm_calls or minutes")
            _log.warning("%s, so that the others' calls alone count; give lm_calls or minutes as well", unknown)
        return whole

    def _reporter(self, context: SearchContext, whole: Usage) -> Callable[[Usage], None]:
        """A function that reports the calls made, the calls expected and the best score, at most every ``_PAUSE`` s."""
        recorder, total = context.recorder, whole.calls
        stage = f"searching: about {_told(whole)}" if total else "searching"
        if self.budget:
            total = min(total, self.budget.lm_calls or total)
            stage += f"; at most {self.budget}"
        last = 0.0

        def told(spent: Usage) -> None:
            nonlocal last
            if (now := time.monotonic()) - last < _PAUSE:
                return
            last = now
            best = recorder.best
            score = f"best {best.score:.3f} of {len(recorder.candidates)}" if best else ""
            context.listener.progress(
                stage, min(spent.calls, total), total, " ".join([score, f"${spent.usd:.2f}"] if spent.usd else [score])
            )

        return told


def _told(whole: Usage) -> str:
    tokens = whole.prompt_tokens + whole.completion_tokens
    return f"{whole.calls:,} calls, {tokens:,} tokens" + (f", ${whole.usd:.2f}" if whole.usd else "")


def _scaled(before: Usage, after: Usage, by: float, more: int = 0) -> Usage:
    """What was spent from ``before`` to ``after``, times ``by``, plus ``more`` calls."""
    return Usage(
        calls=round((after.calls - before.calls) * by) + more,
        prompt_tokens=round((after.prompt_tokens - before.prompt_tokens) * by),
        completion_tokens=round((after.completion_tokens - before.completion_tokens) * by),
        usd=(after.usd - before.usd) * by,
        seconds=(after.seconds - before.seconds) * by,
    )


def finished(context: CompileContext, compiled: dspy.Module) -> Program:
    """The context's program with the instructions and demonstrations of a compiled one.

    DSPy attaches candidates and logs to the program that it returns, which every copy would carry along. What the state
    holds is exactly what a saved variant will have.

    Args:
        context: the compile.
        compiled: the program that an optimizer of DSPy returned.
    """
    program = context.program.deepcopy()
    program.load_state(compiled.dump_state())
    return program


def prompt_model(context: CompileContext) -> dspy.LM:
    """The language model that proposes instructions: ``lm.reflection`` if it is named, else the default one.

    Args:
        context: the compile.
    """
    return context.reflection_lm or dspy.settings.lm
