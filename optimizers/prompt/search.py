"""What every search over prompts shares: the budget, the ledger of its candidates, and the layout."""

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
from hoptimizer.models.settings import Layout
from hoptimizer.models.usage import CallCache, Meter, Spent, Stopped
from hoptimizer.optimizers.candidates import Ledger
from hoptimizer.optimizers.optimizer import Job, Optimizer
from hoptimizer.optimizers.prompt.budget import Budget
from hoptimizer.optimizers.prompt.prompt_format import LAYOUTS, choose_layout
from hoptimizer.optimizers.prompt.scoring import score
from hoptimizer.programs import Program

# Dev questions that tell what a question costs.
_PROBE = 8
# Seconds between two reports of what was spent.
_PAUSE = 0.2


@dataclass(frozen=True)
class Work:
    """How much a search has to do, about.

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
        layouts: layouts of prompts that are tried on dev, on local language models.
        budget: what may be spent: ``lm_calls``, ``minutes`` or ``usd``; no limit by default.
    """

    layouts: tuple[Layout, ...] = LAYOUTS
    budget: Budget | None = None

    makes_candidates: ClassVar[bool] = True
    """Whether it chooses among programs, and does not make just one."""

    @abstractmethod
    def search(self, job: Job, ledger: Ledger) -> Program:
        """The compiled program.

        Args:
            job: its program has its layout.
            ledger: hears of every evaluation of DSPy's.
        """

    @abstractmethod
    def work(self, job: Job) -> Work:
        """How much there is to do, the choice of the layout apart."""

    def check(self, job: Job) -> None:
        if self.budget is None:
            return
        if self.budget.lm_calls is not None and self.budget.lm_calls < len(job.devset):
            raise self._too_small(f"a call or more for each of the {len(job.devset)} dev questions")
        others = [job.teacher_lm, job.reflection_lm, job.objective.judge if job.objective.is_judged else None]
        lms = [*job.program.language_models().values(), *(lm for lm in others if lm)]
        if self.budget.usd is not None and all(is_local(lm) for lm in lms):
            raise UserError("optimizer.budget.usd: a local model has no price; give lm_calls or minutes")

    def compile(self, job: Job) -> Program:
        if ledger := dspy.settings.get("ledger"):  # a part of another search, whose budget holds
            return self._search(job, ledger)
        limit = self.budget.ends if self.budget else lambda _: False
        seconds = dspy.cache.seconds if isinstance(dspy.cache, CallCache) else 0.0
        meter = Meter(limit, seconds=seconds)
        ledger = Ledger(meter, [question.id for question in job.devset], job.objective.worst, job.record, job.settle)
        # A question on which a candidate fails scores the worst. That no question can succeed is the ledger's to tell.
        with dspy.context(meter=meter, ledger=ledger, callbacks=[ledger], max_errors=sys.maxsize):
            try:
                meter.told = self._reporter(job, ledger, self._probe(job, meter))
                return self._search(job, ledger)
            except Stopped:
                if ledger.error:
                    raise ledger.error from None
                if self.budget and not ledger.best:
                    raise self._too_small("more than that") from None
                return ledger.restored(job.program)
            finally:
                job.log("spent", asdict(meter.spent), meter.spent.calls)

    def _search(self, job: Job, ledger: Ledger) -> Program:
        laid_out = choose_layout(job, self.layouts, ledger)
        if self.budget and not ledger.best:  # which may end before the first one is scored
            score(laid_out, laid_out.program, ledger)
        try:
            program = self.search(laid_out, ledger)
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
        score(laid_out, program, ledger)  # which an optimizer may not have, or on other questions alone
        return program

    def _too_small(self, takes: str) -> UserError:
        return UserError(
            f"optimizer.budget: {self.budget} do not finish one candidate, which takes {takes}; give more, or take "
            "fewer questions with data.dev"
        )

    def _probe(self, job: Job, meter: Meter) -> Spent:
        """What the whole will take, by what some questions take."""
        some = job.devset[:_PROBE]
        before = meter.spent
        evaluate(job.program, some, workers=job.workers)
        work = self.work(job)
        layouts = len(self.layouts) * len(job.devset) if len(self.layouts) > 1 and is_local(dspy.settings.lm) else 0
        whole = _scaled(before, meter.spent, (work.runs + layouts) / len(some), work.proposals)
        job.log("estimate", asdict(whole), 0)
        candidate = replace(
            _scaled(before, meter.spent, len(job.devset) / len(some)),
            # As many questions as there are workers take the time of one, on a server that is fast enough.
            seconds=(meter.spent.seconds - before.seconds) * math.ceil(len(job.devset) / max(job.workers, len(some))),
        )
        if self.budget and not self.budget.covers(candidate):
            raise self._too_small(f"about {self.budget.told(candidate)}")
        if self.budget and self.budget.usd is not None and not meter.spent.usd and not is_local(dspy.settings.lm):
            raise UserError(
                f"optimizer.budget.usd: no price is known for {dspy.settings.lm.model}; give lm_calls or minutes"
            )
        return whole

    def _reporter(self, job: Job, ledger: Ledger, whole: Spent) -> Callable[[Spent], None]:
        """Tells of the calls that were made, of those that are to be, and of the best score."""
        total = whole.calls
        stage = f"searching: about {_told(whole)}"
        if self.budget:
            total = min(total, self.budget.lm_calls or total)
            stage += f"; at most {self.budget}"
        last = 0.0

        def told(spent: Spent) -> None:
            nonlocal last
            if (now := time.monotonic()) - last < _PAUSE:
                return
            last = now
            best = ledger.best
            score = f"best {best.score:.3f} of {len(ledger.candidates)}" if best else ""
            job.report(
                stage, min(spent.calls, total), total, " ".join([score, f"${spent.usd:.2f}"] if spent.usd else [score])
            )

        return told


def _told(whole: Spent) -> str:
    tokens = whole.prompt_tokens + whole.written_tokens
    return f"{whole.calls:,} calls, {tokens:,} tokens" + (f", ${whole.usd:.2f}" if whole.usd else "")


def _scaled(before: Spent, after: Spent, by: float, more: int = 0) -> Spent:
    """What was spent between two moments times a number, and ``more`` calls."""
    return Spent(
        calls=round((after.calls - before.calls) * by) + more,
        prompt_tokens=round((after.prompt_tokens - before.prompt_tokens) * by),
        written_tokens=round((after.written_tokens - before.written_tokens) * by),
        usd=(after.usd - before.usd) * by,
        seconds=(after.seconds - before.seconds) * by,
    )


def finished(job: Job, compiled: dspy.Module) -> Program:
    """The job's program with the instructions and demonstrations of a compiled one.

    DSPy hangs candidates and logs on what it returns, which would be copied with it ever after; and what is taken from
    the state is what a saved variant will have.
    """
    program = job.program.deepcopy()
    program.load_state(compiled.dump_state())
    return program


def prompt_model(job: Job) -> dspy.LM:
    """What proposes instructions: ``lm.reflection`` where it is named, else the program's own language model."""
    return job.reflection_lm or dspy.settings.lm
