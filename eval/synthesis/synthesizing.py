"""A data set whose questions a teacher writes about a corpus."""

import asyncio
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import dspy
from dspy.utils.exceptions import DSPyError

from hoptimizer.common.concurrency import all_of, run_async
from hoptimizer.common.errors import UserError
from hoptimizer.common.progress import Report, in_notebook
from hoptimizer.eval.datasets.folder import write_folder
from hoptimizer.eval.datasets.question import Question
from hoptimizer.eval.datasets.settings import free_data_folder
from hoptimizer.eval.splits import check_sizes, divided
from hoptimizer.eval.synthesis.checks import DroppedError, is_new
from hoptimizer.eval.synthesis.links import find_links
from hoptimizer.eval.synthesis.teacher import BRIDGE_CALLS, MORE_CALLS, SINGLE_CALLS, QuestionWriter
from hoptimizer.models.failures import answered_or_ended, one_line
from hoptimizer.retrieval import Corpus, Passage, RetrieverSettings, build_retriever

Candidate = TypeVar("Candidate")

ATTEMPTS = 8
"""For each question that is wanted, so many are written at most."""

# Words of a passage about which something can be asked.
_LEAST_WORDS = 8
# Attempts that are under way at once, at least: so many calls an engine answers together.
_LEAST_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Synthesized:
    """What a teacher made.

    Attributes:
        folder: the data set's folder.
        splits: questions by split.
        types: questions by type, ``single`` and ``bridge``.
        passages: of the corpus.
        attempts: questions that were begun.
        dropped: attempts that failed a check, by the reason.
    """

    folder: Path
    splits: dict[str, int]
    types: dict[str, int]
    passages: int
    attempts: int
    dropped: dict[str, int]


@dataclass(frozen=True, slots=True)
class ExpectedSynthesis:
    """What writing questions would take.

    Attributes:
        singles: passages about which something can be asked.
        links: pairs of them that a name links.
        calls: of the teacher, if every question passes the checks.
        most_calls: of the teacher, at most, if it names enough that the passages can be asked for.
    """

    singles: int
    links: int
    calls: int
    most_calls: int


def expected_synthesis(
    corpus: Corpus,
    *,
    n: int = 100,
    multi: float = 0.5,
    sizes: Mapping[str, float] | None = None,
    seed: int = 0,
    lm_calls: int | None = None,
) -> ExpectedSynthesis:
    """What :func:`synthesize` would ask of a teacher; nothing is asked.

    Args:
        corpus: the passages, like the other arguments as of :func:`synthesize`.
        n: questions that are wanted.
        multi: the share of questions over two passages.
        sizes: of the splits.
        seed: of what is asked about.
        lm_calls: the limit of calls.

    Raises:
        UserError: ``multi`` is no share, or ``sizes`` are not those of ``n`` questions.

    Example:
        >>> from hoptimizer.eval.synthesis.synthesizing import expected_synthesis
        >>> from hoptimizer.retrieval import Corpus, Passage
        >>> corpus = Corpus([Passage("alma", "Alma", "The ferry Alma was built in 1988 at the Brekke Yard.")])
        >>> expected_synthesis(corpus, n=1, multi=0)
        ExpectedSynthesis(singles=1, links=0, calls=4, most_calls=25)
    """
    _check(n, multi, sizes)
    passages = _askable(corpus)
    links, wanted = len(find_links(passages, seed)), round(n * multi)
    rest = n - min(wanted, links)  # where no question over two passages is kept, all are over one
    first = _first_batch(len(passages), rest)
    calls = _first_batch(links, wanted) * BRIDGE_CALLS + first * SINGLE_CALLS
    singles = min(len(passages), ATTEMPTS * n)
    most = min(links, ATTEMPTS * wanted) * BRIDGE_CALLS + singles * SINGLE_CALLS
    if passages:  # the rest are further questions over the same ones
        calls += _first_batch(ATTEMPTS * n, max(0, rest - first)) * MORE_CALLS
        most += (ATTEMPTS * n - singles) * MORE_CALLS
    limit = most if lm_calls is None else lm_calls
    return ExpectedSynthesis(len(passages), links, min(calls, limit), min(most, limit))


def _first_batch(candidates: int, wanted: int) -> int:
    return min(candidates, ATTEMPTS * wanted, _batch_size(wanted))


def _batch_size(wanted: int) -> int:
    """How many attempts are begun together: twice as many as questions are missing."""
    return max(_LEAST_AT_ONCE, 2 * wanted)


def _check(n: int, multi: float, sizes: Mapping[str, float] | None) -> bool:
    """Whether sizes are shares, if what is asked for can be had."""
    if not 0 <= multi <= 1:
        raise UserError(f"--multi {multi}: expected a share from 0 to 1")
    return not sizes or check_sizes(sizes, n)


def _askable(corpus: Corpus) -> list[Passage]:
    """The passages about which something can be asked."""
    return [passage for passage in corpus if len(passage.text.split()) >= _LEAST_WORDS]


def synthesize(
    corpus: Corpus,
    out: Path,
    lm: dspy.LM | None = None,
    *,
    n: int = 100,
    multi: float = 0.5,
    sizes: Mapping[str, float] | None = None,
    seed: int = 0,
    workers: int = 64,
    lm_calls: int | None = None,
    progress: Report = in_notebook,
) -> Synthesized:
    """Have a teacher write questions about a corpus, and make a data set of those that pass every check.

    A question is kept if the teacher answers it from its passages, and neither from one of several alone nor without
    any; if it names what it is about and does not give its answer away; and if no other one asks the same. Once every
    passage was asked about, they are asked for the other answers that the teacher named of them. Calls are
    answered from DSPy's cache where they were made before: the same work, begun again, goes on where it ended.

    Args:
        corpus: the passages.
        out: the folder to make.
        lm: the teacher; ``None`` for the language model of DSPy's settings.
        n: questions that are wanted. There are fewer where :data:`ATTEMPTS` times as many attempts do not give them.
        multi: the share of questions over two passages.
        sizes: of the splits, as of :func:`~hoptimizer.eval.datasets.importers.import_published`; where fewer questions
            pass the checks than numbers ask for, they are divided in the numbers' proportions.
        seed: of what is asked about, and of the division.
        workers: questions under way at once.
        lm_calls: of the teacher, at most, those that the cache answers among them; with the last one, what is kept by
            then is the data set. ``None`` for no limit.
        progress: hears of the progress; shows it in a notebook by default.

    Raises:
        UserError: the teacher can't be asked, no question passed, or ``out`` isn't free.

    Example (the teacher is scripted):
        >>> from pathlib import Path
        >>> from dspy.utils import DummyLM
        >>> from hoptimizer.eval import synthesize
        >>> from hoptimizer.retrieval import Corpus, Passage
        >>> corpus = Corpus([Passage("alma", "Alma", "The ferry Alma was built in 1988 at the Brekke Yard.")])
        >>> question = {"question": "In which year was the Alma built?"}
        >>> lm = DummyLM([{"answers": '["1988"]'}, question, {"answer": "1988"}, {"answer": "unknown"}])
        >>> made = synthesize(corpus, Path("written"), lm, n=1, multi=0, sizes={"dev": 1})
        >>> made.splits, made.attempts
        ({'dev': 1}, 1)
    """
    out = free_data_folder(out)
    shares = _check(n, multi, sizes)
    writer = QuestionWriter(lm, build_retriever(RetrieverSettings(name="bm25"), corpus), lm_calls)
    dropped: Counter[str] = Counter()
    kept: list[Question] = []
    passages = _askable(corpus)
    chosen = random.Random(seed).sample(passages, len(passages))
    bridges = round(n * multi)
    work = _Work(n, kept, dropped, workers, writer, progress)
    with answered_or_ended():
        run_async(work.run([find_links(passages, seed)], writer.bridge, bridges))
        # Where too few passages are linked, questions over one passage stand in.
        run_async(work.run(writer.rounds(chosen), lambda asked: writer.single(*asked), n - len(kept)))
    if not kept:
        why = "; ".join(f"{reason}: {count}" for reason, count in dropped.most_common(3)) or "no passage of some words"
        raise UserError(f"no question passed the checks ({why}); take a larger teacher or more documents")
    splits = divided(kept, (), _sizes_of(len(kept), sizes or {}, shares) or _default_sizes(len(kept)), seed)
    write_folder(out, corpus, splits)
    return Synthesized(
        folder=out,
        splits={split: len(questions) for split, questions in splits.items()},
        types=dict(Counter(str(question.type) for question in kept)),
        passages=len(corpus),
        attempts=work.attempts,
        dropped=dict(dropped.most_common()),
    )


def _sizes_of(count: int, sizes: Mapping[str, float], shares: bool) -> Mapping[str, float]:
    """The sizes that were asked for, of as many questions as there are: none is empty while there is one for each."""
    total = 1.0 if shares else max(count, sum(sizes.values()))
    found = {split: max(1, math.floor(size / total * count + 0.5)) for split, size in sizes.items()}
    while sum(found.values()) > count and max(found.values(), default=0) > 1:
        found[max(found, key=lambda split: found[split])] -= 1
    return found if sum(found.values()) <= count else {}


def _default_sizes(count: int) -> Mapping[str, float]:
    """Half of the questions to compile with, half of the rest each to choose by and to test on, where they are few."""
    return {"train": 0.5, "dev": 0.25, "test": 0.25} if 4 <= count < 40 else {} if count >= 40 else {"dev": 1.0}


@dataclass
class _Work:
    """Attempts, until enough questions are kept.

    Attributes:
        n: questions that are wanted in all.
        kept: those so far.
        dropped: why others were not kept.
        workers: attempts under way at once.
        writer: who makes them.
        progress: hears of the progress.
        attempts: how many were made.
    """

    n: int
    kept: list[Question]
    dropped: Counter[str]
    workers: int
    writer: QuestionWriter
    progress: Report
    attempts: int = 0

    async def run(
        self, rounds: Iterable[Sequence[Candidate]], write: Callable[[Candidate], Awaitable[Question]], wanted: int
    ) -> None:
        """Write about candidates in their order, whichever is done first, until so many questions are kept.

        A round is looked at when the one before it is done.
        """
        goal = len(self.kept) + wanted
        most = self.attempts + ATTEMPTS * wanted
        slots = asyncio.Semaphore(self.workers)
        for candidates in rounds:
            left = list(candidates)
            while left and len(self.kept) < goal and self.attempts < most and not self.writer.exhausted:
                count = min(_batch_size(goal - len(self.kept)), most - self.attempts)
                batch, left = left[:count], left[count:]
                for question in await all_of(self._attempt(write, candidate, slots) for candidate in batch):
                    if question and len(self.kept) < goal:
                        self._keep(question)

    async def _attempt(
        self, write: Callable[[Candidate], Awaitable[Question]], candidate: Candidate, slots: asyncio.Semaphore
    ) -> Question | None:
        async with slots:
            self.attempts += 1
            try:
                return await write(candidate)
            except DroppedError as error:
                self.dropped[str(error)] += 1
            except DSPyError as error:  # a prompt that is too long, or was refused
                self.dropped[one_line(error)[:80]] += 1
            finally:
                remark = f"{self.attempts} attempts, {self.dropped.total()} dropped"
                self.progress("questions", len(self.kept), self.n, remark)
        return None

    def _keep(self, question: Question) -> None:
        if is_new(question.question, [other.question for other in self.kept]):
            self.kept.append(question)
        else:
            self.dropped["asked before"] += 1
