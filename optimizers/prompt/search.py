"""What every search over prompts shares: the budget, the record of its candidates, and the prompt format."""

import math
import sys
import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

import dspy
from dspy.utils.exceptions import AdapterParseError, DSPyError

from hoptimizer.common.errors import UserError
from hoptimizer.eval.failures import one_line
from hoptimizer.eval.runner import evaluate
from hoptimizer.models.lm import is_local
from hoptimizer.models.settings import PromptFormat
from hoptimizer.models.usage import BudgetExhausted, CallCache, LMUnusable, Usage, UsageMeter
from hoptimizer.optimizers.candidates import CandidateRecorder, SearchContext
from hoptimizer.optimizers.optimizer import CompileContext, Optimizer
from hoptimizer.optimizers.prompt.budget import Budget
from hoptimizer.optimizers.prompt.prompt_format import PROMPT_FORMATS, choose_prompt_format
from hoptimizer.optimizers.prompt.scoring import score
from hoptimizer.programs import Program

# Dev questions that tell what a question costs.
_PROBE = 8
# Seconds between two reports of what was spent.
_PAUSE = 0.2


@dataclass(frozen=True)
class WorkEstimate:
    """How much a search has to do, approximately.

    Attributes:
        runs: of the program on a question.
        proposals: calls that propose instructions or rules.
    """

    runs: int
    proposals: int = 0


@dataclass(frozen=True, kw_only=True)
class Search(Optimizer):
    """A search over prompts, by one of DSPy's optimizers.

    A compile that was killed makes the same calls again, finds those that were made in the run's own cache, and so goes
    on where it was. Where the budget ends, the best program so far is the compiled one.

    Args:
        prompt_formats: those that are tried on dev, on local language models.
        budget: what may be spent: ``lm_calls``, ``minutes`` or ``usd``; no limit by default.
    """

    prompt_formats: tuple[PromptFormat, ...] = PROMPT_FORMATS
    budget: Budget | None = None

    makes_candidates: ClassVar[bool] = True
    """Whether it chooses among programs, and does not make just one."""

    @abstractmethod
    def search(self, context: SearchContext) -> Program:
        """The compiled program.

        Args:
            context: its program has its prompt format, and its recorder hears of every evaluation of DSPy's.
        """

    @abstractmethod
    def work(self, context: CompileContext) -> WorkEstimate:
        """How much there is to do, the choice of the prompt format apart."""

    def check(self, context: CompileContext) -> None:
        if self.budget is None:
            return
        if self.budget.lm_calls is not None and self.budget.lm_calls < len(context.devset):
            raise self._too_small(f"a call or more for each of the {len(context.devset)} dev questions")
        others = [
            context.teacher_lm,
            context.reflection_lm,
            context.objective.judge if context.objective.is_judged else None,
        ]
        lms = [*context.program.language_models().values(), *(lm for lm in others if lm)]
        if self.budget.usd is not None and all(is_local(lm) for lm in lms):
            raise UserError("optimizer.budget.usd: a local model has no price; give lm_calls or minutes")

    def compile(self, context: CompileContext) -> Program:
        if isinstance(context, SearchContext):  # a part of another search, whose budget and record of candidates hold
            return self._search(context)
        limit = self.budget.ends if self.budget else lambda _: False
        seconds = dspy.cache.seconds if isinstance(dspy.cache, CallCache) else 0.0
        meter = UsageMeter(limit, seconds=seconds)
        dev = [question.id for question in context.devset]
        recorder = CandidateRecorder(meter, dev, context.objective.worst, context.listener)
        searching = SearchContext(**vars(context), recorder=recorder)
        # A question on which a candidate fails scores the worst. That no question can succeed, the recorder says.
        with dspy.context(meter=meter, callbacks=[recorder], max_errors=sys.maxsize):
            try:
                meter.told = self._reporter(searching, self._probe(searching, meter))
                return self._search(searching)
            except LMUnusable as unusable:
                raise unusable.reason from None
            except BudgetExhausted:
                if not recorder.best:
                    raise self._too_small("more than that") from None
                return recorder.restored(context.program)
            finally:
                context.listener.record("spent", asdict(meter.spent), meter.spent.calls)

    def _search(self, context: SearchContext) -> Program:
        context = choose_prompt_format(context, self.prompt_formats)
        if self.budget and not context.recorder.best:  # which may end before the first one is scored
            score(context, context.program)
        try:
            program = self.search(context)
        except AdapterParseError as error:
            raise UserError(
                f"optimizer: a proposal can't be parsed ({' '.join(str(error).split())[:200]}); name a model that "
                "keeps to the format in lm.reflection"
            ) from error
        except DSPyError as error:  # of a proposal: where the program fails, its question has a score
            raise UserError(
                f"optimizer: the language model that proposes failed: {one_line(error)}; check the lm section, and "
                "give the same command again"
            ) from error
        score(context, program)  # which an optimizer may not have, or on other questions alone
        return program

    def _too_small(self, takes: str) -> UserError:
        return UserError(
            f"optimizer.budget: {self.budget} do not finish one candidate, which takes {takes}; give more, or take "
            "fewer questions with data.dev"
        )

    def _probe(self, context: SearchContext, meter: UsageMeter) -> Usage:
        """What the whole will take, by what some questions take."""
        some = context.devset[:_PROBE]
        before = meter.spent
        evaluate(context.program, some, workers=context.workers)
        work = self.work(context)
        prompt_formats = (
            len(self.prompt_formats) * len(context.devset)
            if len(self.prompt_formats) > 1 and is_local(dspy.settings.lm)
            else 0
        )
        whole = _scaled(before, meter.spent, (work.runs + prompt_formats) / len(some), work.proposals)
        context.listener.record("estimate", asdict(whole), 0)
        candidate = replace(
            _scaled(before, meter.spent, len(context.devset) / len(some)),
            # As many questions as there are workers take the time of one, on a server that is fast enough.
            seconds=(meter.spent.seconds - before.seconds)
            * math.ceil(len(context.devset) / max(context.workers, len(some))),
        )
        if self.budget and not self.budget.covers(candidate):
            raise self._too_small(f"about {self.budget.told(candidate)}")
        if self.budget and self.budget.usd is not None and not meter.spent.usd and not is_local(dspy.settings.lm):
            raise UserError(
                f"optimizer.budget.usd: no price is known for {dspy.settings.lm.model}; give lm_calls or minutes"
            )
        return whole

    def _reporter(self, context: SearchContext, whole: Usage) -> Callable[[Usage], None]:
        """Tells of the calls that were made, of those that are to be, and of the best score."""
        recorder, total = context.recorder, whole.calls
        stage = f"searching: about {_told(whole)}"
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
    """What was spent between two moments times a number, and ``more`` calls."""
    return Usage(
        calls=round((after.calls - before.calls) * by) + more,
        prompt_tokens=round((after.prompt_tokens - before.prompt_tokens) * by),
        completion_tokens=round((after.completion_tokens - before.completion_tokens) * by),
        usd=(after.usd - before.usd) * by,
        seconds=(after.seconds - before.seconds) * by,
    )


def finished(context: CompileContext, compiled: dspy.Module) -> Program:
    """The job's program with the instructions and demonstrations of a compiled one.

    DSPy hangs candidates and logs on what it returns, which would be copied with it ever after; and what is taken from
    the state is what a saved variant will have.
    """
    program = context.program.deepcopy()
    program.load_state(compiled.dump_state())
    return program


def prompt_model(context: CompileContext) -> dspy.LM:
    """What proposes instructions: ``lm.reflection`` where it is named, else the program's own language model."""
    return context.reflection_lm or dspy.settings.lm
