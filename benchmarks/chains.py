"""How close programs come to the time of their longest chains of calls, and how busy they keep a server.

    python benchmarks/chains.py [--programs rag ircot …] [--json]

Every call takes 100 ms on a server (``benchmarks/replay_server.py``) that says what the embedded model said to it
before, so that programs take the ways that a model makes them take. Asked one at a time, a question takes its longest
chain of calls, of which each came after the one before had ended, and what the program adds: the ratio is at best 1.
With 32 questions under way at once, 64 of them keep 32 calls under way at best until no question is left to be taken
up; the calls of a question that can be made together make that more, and it counts as full.

A second table has the same 64 questions by the loops that one would write otherwise, each in seconds over ours:
``dspy.Evaluate`` with 32 threads; batches of 32 in lock step, which make the next calls of all questions once the last
of them has ended; and one question after another, as IRCoT's published code takes them.
"""

import asyncio
import json
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import dspy
from lock_step import in_lock_step
from processes import serving
from rich.table import Table

from hoptimizer import Workbench, make_config
from hoptimizer.eval import Question, mean
from hoptimizer.eval.objective import Objective
from hoptimizer.eval.runner import Evaluation, aevaluate
from hoptimizer.programs import PROGRAMS, Program
from reporting import benchmark_parser, load, show

LATENCY = 0.1
ALONE, TOGETHER, IN_FLIGHT = 8, 64, 32
Span = tuple[float, float]
# What needs more than a question: small models, an index of questions, probabilities of tokens.
LEFT_OUT = ("skr", "replug")


def spans(url: str) -> list[Span]:
    """When the calls since the last time came and ended, in the order in which they came."""
    with urllib.request.urlopen(f"{url}/spans") as reply:
        return sorted((start, end) for start, end in json.load(reply)["spans"])


def longest_chain(calls: Sequence[Span]) -> int:
    """The most calls of which each came after the one before had ended."""
    lengths: list[int] = []
    for start, _ in calls:
        before = [length for length, (_, end) in zip(lengths, calls, strict=False) if end <= start]
        lengths.append(1 + max(before, default=0))
    return max(lengths, default=0)


def busy(calls: Sequence[Span], until: float, places: int = IN_FLIGHT) -> float:
    """The share of so many places for calls that were taken, from the first call until the given time."""
    first = calls[0][0]
    changes = sorted(change for start, end in calls for change in ((start, 1), (min(end, until), -1)) if start < until)
    taken, running, last = 0.0, 0, first
    for at, by in changes:
        taken += min(running, places) * (at - last)
        running, last = running + by, at
    return taken / (places * (until - first))


def loops(bench: Workbench, questions: Sequence[Question]) -> dict[str, float]:
    """The seconds that other loops take for the same questions."""
    objective = Objective((("f1", 1.0),))
    examples = [question.to_dspy() for question in questions]
    seconds: dict[str, float] = {}

    @contextmanager
    def timed(name: str) -> Iterator[Program]:
        with bench.active():
            program = bench.program()
            start = time.perf_counter()
            yield program
            seconds[name] = time.perf_counter() - start

    with timed("dspy.Evaluate") as program:
        dspy.Evaluate(devset=examples, metric=objective, num_threads=IN_FLIGHT)(program)
    with timed("lock step") as program:
        asyncio.run(in_lock_step(program, questions, objective, IN_FLIGHT))
    with timed("one by one") as program:
        asyncio.run(aevaluate(program, questions, workers=1))
    return seconds


def measure(name: str, url: str) -> dict[str, Any]:
    """The figures of one program."""
    config = make_config(
        {
            "data": {"name": "atlas", "test": TOGETHER},
            "program": {"name": name},
            "retriever": "bm25",
            "lm": {
                "default": {
                    "model": "openai/replay", "api_base": f"{url}/v1", "api_key": "none", "prompt_format": "plain",
                    "max_tokens": 64, "cache": False, "max_concurrency": 256,
                }
            },
        }
    )  # fmt: skip
    bench = Workbench(config)
    questions = bench.data.split("test")

    async def asked(count: int, workers: int) -> Evaluation:
        with bench.active():
            return await aevaluate(bench.program(), questions[:count], workers=workers)

    asyncio.run(asked(TOGETHER, IN_FLIGHT))  # now the server knows all answers
    spans(url)
    ratios, chains = [], []
    for question in questions[:ALONE]:
        with bench.active():
            program = bench.program()
            start = time.perf_counter()
            asyncio.run(program.acall(question=question.question, main=question.main))
            took = time.perf_counter() - start
        chains.append(longest_chain(spans(url)))
        ratios.append(took / (LATENCY * chains[-1]))
    start, cpu = time.perf_counter(), time.process_time()
    asyncio.run(asked(TOGETHER, IN_FLIGHT))
    took, cpu = time.perf_counter() - start, time.process_time() - cpu
    calls = spans(url)
    others = loops(bench, questions)
    spans(url)
    ratio = mean(ratios)
    # The tail begins where the last questions are under way: as many as a question takes calls in a row, from the end.
    tail = calls[-1][1] - LATENCY * max(chains)
    return {
        "program": name,
        "chain": sum(chains) / len(chains),
        "over_chain": [ratio.mean, ratio.low, ratio.high],
        "worst": max(ratios),
        "busy": busy(calls, max(tail, calls[0][1])),
        "calls": len(calls),
        "seconds": took,
        "cpu_ms_per_call": 1000 * cpu / len(calls),
        "loops": others,
    }


def main() -> None:
    """Measure and print."""
    parser = benchmark_parser(__doc__)
    known = [name for name in PROGRAMS if name not in LEFT_OUT]
    parser.add_argument("--programs", nargs="+", default=known, choices=known, metavar="NAME")
    options = parser.parse_args()
    figures = []
    with serving("replay_server.py", "--seconds", str(LATENCY)) as url, dspy.context(disable_history=True):
        for name in options.programs:
            figures.append(measure(name, url))
            sys.stderr.write(f"{figures[-1]}\n")
    columns = ("program", "longest chain", "time over it", "worst", "places taken", "calls", "s", "CPU ms per call")
    table = Table(*columns, title=f"{LATENCY} s a call, {IN_FLIGHT} of {TOGETHER} questions at once, load {load():.1f}")
    for one in figures:
        ratio, low, high = one["over_chain"]
        table.add_row(
            one["program"],
            f"{one['chain']:.1f}",
            f"{ratio:.2f} [{low:.2f}, {high:.2f}]",
            f"{one['worst']:.2f}",
            f"{100 * one['busy']:.0f}%",
            str(one["calls"]),
            f"{one['seconds']:.1f}",
            f"{one['cpu_ms_per_call']:.1f}",
        )
    names = list(figures[0]["loops"])
    beside = Table("program", "ours, s", *names, title="Other loops: their seconds over ours")
    for one in figures:
        ratios = (f"{one['loops'][name] / one['seconds']:.1f}" for name in names)
        beside.add_row(one["program"], f"{one['seconds']:.1f}", *ratios)
    show({"load": load(), "programs": figures}, options.json, table, beside)


if __name__ == "__main__":
    main()
