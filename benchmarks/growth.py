"""Does the CPU time of anything grow faster than what it grows with? Four sizes each, and the power that fits them.

    python benchmarks/growth.py [--rounds 3] [--json] [questions] [in_flight] [depth] [passages] [candidates]

A power of 1 is in proportion, 0 is none. All language models are scripted (``scripted_server.py``) and take 20 ms a
call, so that what is measured is what this package and DSPy add: ``rag`` over a number of questions; the same questions
with more of them under way at once; ``self_ask`` with more and more follow-up questions; BM25 over more and more
passages, the index and all searches; ``bootstrap_random_search`` with more and more candidates, its start and its run
in the store included. Sizes come in turn.

Exits 1 where a power is above 1 by more than its interval.
"""

import asyncio
import contextlib
import itertools
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import dspy
from processes import own_store, serving
from rich.box import MARKDOWN
from rich.table import Table

from hoptimizer import Workbench, compile_variant, make_config
from hoptimizer.eval import mean
from hoptimizer.eval.datasets.dataset import load as load_data
from hoptimizer.eval.datasets.folder import write_folder
from hoptimizer.eval.datasets.question import Question
from hoptimizer.eval.runner import aevaluate
from hoptimizer.retrieval import BM25Retriever, Corpus, Passage
from reporting import benchmark_parser, load, show

LATENCY = 0.02
QUESTIONS = 512
SEARCHES = 256
SIZES = {
    "questions": (256, 512, 1024, 2048),
    "in_flight": (8, 32, 128, 512),
    "depth": (2, 4, 8, 16),
    "passages": (4_000, 16_000, 64_000, 256_000),
    "candidates": (2, 4, 8, 16),
}


@dataclass(frozen=True)
class Growth:
    """How CPU time grows with something.

    Attributes:
        of: what it grows with.
        sizes: that were measured.
        seconds: of CPU at each size, the median of all rounds.
        power: of the size that fits the time, the mean of all rounds with its 95% interval.
    """

    of: str
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    power: tuple[float, float, float]


class Runs:
    """Runs of each kind against a scripted server.

    Args:
        folder: with the data sets, and for the stores.
        urls: of the servers, by the data set that they answer.
    """

    def __init__(self, folder: Path, urls: dict[str, str]) -> None:
        self._folder, self._urls = folder, urls
        self._numbers = itertools.count()

    def questions(self, size: int) -> float:
        """Seconds of CPU that ``rag`` takes for so many questions."""
        return self._evaluated("flat", {"name": "rag"}, size, 32, calls=1)

    def in_flight(self, size: int) -> float:
        """The same for :data:`QUESTIONS`, so many at once."""
        return self._evaluated("flat", {"name": "rag"}, QUESTIONS, size, calls=1)

    def depth(self, size: int) -> float:
        """Those of ``self_ask`` with so many follow-up questions, each of which is asked and answered."""
        return self._evaluated(f"deep{size}", {"name": "self_ask", "max_steps": size}, 64, 32, calls=2 * size + 1)

    def passages(self, size: int) -> float:
        """Those of BM25 over so many passages."""
        atlas = load_data("atlas").corpus.passages
        corpus = Corpus(
            [
                Passage(f"p{number}", f"{one.title} {number}", one.text)
                for number, one in zip(range(size), itertools.cycle(atlas), strict=False)
            ]
        )
        asked = [one.question for one in load_data("atlas").split("test")]
        with cpu_time() as seconds:
            BM25Retriever(corpus).search(list(itertools.islice(itertools.cycle(asked), SEARCHES)), 10)
        return seconds()

    def candidates(self, size: int) -> float:
        """Those of a search among so many candidates."""
        optimizer = {"name": "bootstrap_random_search", "num_candidate_programs": size, "max_bootstrapped_demos": 2}
        place = self._folder / f"store{next(self._numbers)}"
        place.mkdir()
        config = self._config("flat", {"name": "rag"}) | {
            "optimizer": optimizer,
            "tracking": own_store(place),
        }
        config["data"] |= {"train": 32, "dev": 32}
        with cpu_time() as seconds:
            compile_variant(make_config(config))
        return seconds()

    def _evaluated(self, data: str, program: dict[str, Any], questions: int, workers: int, calls: int) -> float:
        bench = Workbench(make_config(self._config(data, program)))
        asked = bench.data.split("test", questions)
        with bench.active(), cpu_time() as seconds:
            evaluation = asyncio.run(aevaluate(bench.program(), asked, workers=workers))
        # What failed or ended early would have been fast.
        if failed := evaluation.metrics["unanswered"] + evaluation.metrics["failures"]:
            raise RuntimeError(f"{failed:.0f} questions failed")
        if evaluation.metrics["lm_calls"] != calls:
            raise RuntimeError(f"expected {calls} calls a question, got {evaluation.metrics['lm_calls']:.2f}")
        return seconds()

    def _config(self, data: str, program: dict[str, Any]) -> dict[str, Any]:
        server = {"api_base": self._urls[data], "api_key": "none", "cache": False, "max_concurrency": 1024}
        return {
            "data": {"name": str(self._folder / data)},
            "program": program,
            "retriever": "bm25",
            "lm": {"default": {"model": "openai/scripted"} | server},
        }


@contextlib.contextmanager
def cpu_time() -> Iterator[Callable[[], float]]:
    """Within it, CPU time of this process is measured; afterwards the function gives the seconds."""
    begin, end = time.process_time(), math.nan
    yield lambda: end - begin
    end = time.process_time()


def lay_out(folder: Path, name: str, count: int, sentences: int) -> Path:
    """A data set of so many questions of atlas, whose rationales have so many sentences; the file of all of them."""
    atlas = load_data("atlas")
    facts = ". ".join(f"Fact {number} is known" for number in range(sentences))
    splits = {}
    for split, number in (("train", 32), ("dev", 32), ("test", count)):
        known = itertools.cycle(atlas.split("test"))
        splits[split] = [lengthened(next(known), f"{split}{place}", facts) for place in range(number)]
    write_folder(folder / name, atlas.corpus, splits)
    every = folder / f"{name}.jsonl"
    every.write_text("".join((folder / name / f"{split}.jsonl").read_text(encoding="utf-8") for split in splits))
    return every


def lengthened(question: Question, number: str, facts: str) -> Question:
    """A question under a number, with a chain of thought of its own."""
    rationale = f"{facts}. So the answer is: {question.answers[0]}."
    told = f"{question.question} ({number})"
    return question.model_copy(update={"id": number, "question": told, "rationale": rationale})


def growth(of: str, run: Callable[[int], float], rounds: int) -> Growth:
    """Measure one kind."""
    sizes = SIZES[of]
    run(sizes[0])  # loads what is loaded late
    each = []
    for number in range(rounds):
        each.append([run(size) for size in sizes])
        sys.stderr.write(f"{of}, round {number + 1} of {rounds}: {each[-1]}\n")
    powers = [statistics.linear_regression([*map(math.log, sizes)], [*map(math.log, one)]).slope for one in each]
    power = mean(powers)
    medians = tuple(statistics.median(column) for column in zip(*each, strict=True))
    return Growth(of, sizes, medians, (power.mean, power.low, power.high))


def main() -> None:
    """Measure and print; exits 1 where something grows faster than in proportion."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(SIZES)} (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: 3)")
    options = parser.parse_args()
    if strange := sorted(set(options.kinds) - set(SIZES)):
        parser.error(f"nothing grows with {strange[0]!r} here; known: {', '.join(SIZES)}")
    found = []
    with tempfile.TemporaryDirectory() as place, dspy.context(disable_history=True):
        folder = Path(place)
        files = {"flat": lay_out(folder, "flat", max(SIZES["questions"]), 2)}
        files |= {f"deep{size}": lay_out(folder, f"deep{size}", 64, size) for size in SIZES["depth"]}
        script = "scripted_server.py"
        with contextlib.chdir(folder), contextlib.ExitStack() as servers:  # where MLflow leaves artifacts
            urls = {
                name: servers.enter_context(serving(script, str(file), "--seconds", str(LATENCY)))
                for name, file in files.items()
            }
            runs = Runs(folder, urls)
            for of in options.kinds or SIZES:
                found.append(growth(of, getattr(runs, of), options.rounds))
    table = Table("by", "sizes", "seconds of CPU", "power", title=f"{options.rounds} rounds", box=MARKDOWN)
    for one in found:
        middle, low, high = one.power
        sizes = ", ".join(f"{size:,}" for size in one.sizes)
        seconds = ", ".join(f"{each:.2f}" for each in one.seconds)
        table.add_row(one.of, sizes, seconds, f"{middle:.2f} [{low:.2f}, {high:.2f}]")
    show({"load": load(), "rounds": options.rounds, "growth": [asdict(one) for one in found]}, options.json, table)
    sys.exit(int(any(one.power[1] > 1 for one in found)))


if __name__ == "__main__":
    main()
