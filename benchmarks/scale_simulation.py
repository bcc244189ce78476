"""What large evaluations take: a simulation that is held to real runs made here, then asked about runs that can't be.

    python benchmarks/scale_simulation.py [--programs rag ircot self_ask] [--questions 64] [--json]

First real evaluations of atlas over BM25 are made against ``benchmarks/scripted_server.py``, whose calls take 100 ms on
average, for each program with other numbers of questions under way, times that vary, failures and slots. What the
simulation (``benchmarks/simulation.py``) knows of them was measured apart: the chain of calls of each question, asked
one at a time; the driver's seconds a call, with a server that answers at once, right before and after each run; and how
the server was told to behave. Then the costs on paper (``benchmarks/costs_on_paper.py``), from these chains and tokens
and the driver's CPU.

Exits 1 where the median error is above 15%.
"""

import asyncio
import json
import random
import statistics
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from chains import Span, spans
from processes import serving
from rich.box import MARKDOWN
from rich.table import Table

from costs_on_paper import ATLAS_WORDS, MEANINGS, Prices, Workload, paper
from hoptimizer import Workbench, make_config
from hoptimizer.eval.datasets.dataset import locate
from hoptimizer.eval.runner import Evaluation, aevaluate
from hoptimizer.models.weights.store import pull
from reporting import benchmark_parser, load, show
from scripted_server import Behaviour
from simulation import Setting, simulate

TOKENIZER = "smollm2-135m-instruct"
PROGRAMS = ("rag", "ircot", "self_ask")
SECONDS, LIMIT = 0.1, 0.15
# Questions under way, and what else the server does.
RUNS: tuple[tuple[int, dict[str, Any]], ...] = (
    (1, {}),
    (8, {}),
    (32, {}),
    (64, {}),
    (8, {"spread": 0.8}),
    (32, {"failures": 0.05}),
    (32, {"slots": 8}),
    (64, {"slots": 16, "spread": 0.8, "failures": 0.05}),
    (32, {"slots": 2, "replicas": 4}),
    (32, {"slots": 2, "replicas": 4, "routing": "random"}),
)
QUIET: dict[str, Any] = asdict(Behaviour(SECONDS))


@dataclass(frozen=True)
class Compared:
    """One real run beside the simulated one.

    Attributes:
        program: its name.
        in_flight: questions under way at once.
        server: what the server was told besides.
        driver: seconds of the driver a call, measured around the run.
        predicted: seconds, mean of simulations with five seeds.
        measured: seconds of the real run.
    """

    program: str
    in_flight: int
    server: dict[str, Any]
    driver: float
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Of the prediction, as a share of what was measured."""
        return self.predicted / self.measured - 1


class Runs:
    """Real evaluations of one program.

    Args:
        name: the program.
        url: the scripted server.
        questions: how many are asked.
    """

    def __init__(self, name: str, url: str, questions: int) -> None:
        self.name, self.url = name, url
        model = {"model": "openai/scripted", "api_base": f"{url}/v1", "api_key": "none", "cache": False}
        config = {"data": {"name": "atlas", "test": questions}, "program": {"name": name}, "retriever": "bm25"}
        self.bench = Workbench(make_config(config | {"lm": {"default": model | {"max_concurrency": 256}}}))
        self.questions = self.bench.data.split("test")

    def behave(self, **how: Any) -> None:  # noqa: ANN401 - fields of Behaviour
        """Tell the server."""
        body = json.dumps(QUIET | how).encode()
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/behaviour", body, method="PUT")).close()

    def ask(self, in_flight: int, **how: Any) -> tuple[Evaluation, float]:  # noqa: ANN401 - fields of Behaviour
        """One evaluation, and the CPU seconds of this process."""
        self.behave(**how)

        async def evaluated() -> Evaluation:
            with self.bench.active():
                program = self.bench.program()
                return await aevaluate(program, self.questions, workers=in_flight, max_unanswered=1.0)

        cpu = time.process_time()
        evaluation = asyncio.run(evaluated())
        return evaluation, time.process_time() - cpu

    def workload(self) -> Workload:
        """What the questions ask of driver and server, with the driver's CPU still unknown; asked one at a time."""
        spans(self.url)
        evaluation, _ = self.ask(1, seconds=0.01)
        calls = iter(spans(self.url))
        chains = [stages([next(calls) for _ in range(int(row.scores["lm_calls"]))]) for row in evaluation.rows]
        records = [record for row in evaluation.rows for record in row.steps if record.calls]
        ids = {passage.id for passage in self.bench.data.corpus}
        lists = [value for record in records for value in record.inputs.values() if isinstance(value, list)]
        read = sum(one in ids for passages in lists for one in passages)
        each = evaluation.metrics | {"words": ATLAS_WORDS * read / len(evaluation.rows)}
        keys = ("retrievals", "prompt_tokens", "completion_tokens", "words")
        return Workload(self.name, tuple(map(tuple, chains)), *(each.get(key, 0.0) for key in keys))

    def driver(self, calls: int, in_flight: int) -> tuple[float, float]:
        """Seconds and CPU seconds of the driver a call, where the server answers at once."""
        evaluation, cpu = self.ask(in_flight, seconds=0.0)
        return evaluation.seconds / calls, cpu / calls


def stages(calls: Sequence[Span]) -> list[int]:
    """How many calls of a question were made together, stage by stage."""
    widths: list[int] = []
    until = -1.0
    for start, end in calls:
        if start >= until:
            widths.append(0)
        widths[-1] += 1
        until = max(until, end) if widths[-1] > 1 else end
    return widths


def compare(runs: Runs, widths: Sequence[Sequence[int]]) -> tuple[list[Compared], float]:
    """Every run beside its simulation, and the median CPU seconds of the driver a call."""
    calls = sum(map(sum, widths))
    found, cpus = [], []
    for in_flight, how in RUNS:
        before, cpu = runs.driver(calls, in_flight)
        evaluation, _ = runs.ask(in_flight, **how)
        after, cpu_after = runs.driver(calls, in_flight)
        driver = (before + after) / 2
        cpus += [cpu, cpu_after]
        predicted = statistics.mean(predict(in_flight, how, driver, widths, seed) for seed in range(5))
        found.append(Compared(runs.name, in_flight, how, driver, predicted, evaluation.seconds))
        sys.stderr.write(f"{asdict(found[-1])}\n")
    return found, statistics.median(cpus)


def predict(in_flight: int, how: dict[str, Any], driver: float, widths: Sequence[Sequence[int]], seed: int) -> float:
    """The seconds of a run like it."""
    kind, source = Behaviour(**QUIET | how), random.Random(seed)
    setting = Setting(
        in_flight,
        driver,
        lambda _: kind.draw(source),
        slots=kind.slots or 2**31,
        replicas=kind.replicas,
        routing=kind.routing,
        failures=kind.failures,
    )
    return simulate(setting, widths, seed=seed).seconds


def main() -> None:
    """Measure, simulate and print."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--programs", nargs="+", default=list(PROGRAMS), choices=PROGRAMS, metavar="NAME")
    parser.add_argument("--questions", type=int, default=64, help="of atlas test in each real run (default: 64)")
    for name, (default, meaning) in MEANINGS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=default, help=f"{meaning} ({default:g})")
    options = parser.parse_args()
    found: list[Compared] = []
    workloads = []
    words = (str(locate("atlas") / "test.jsonl"), "--tokenizer", str(pull(TOKENIZER) / "tokenizer.json"))
    with serving("scripted_server.py", *words) as url:
        for name in options.programs:
            runs = Runs(name, url, options.questions)
            runs.ask(8, seconds=0.0)  # what is loaded at first use
            workload = runs.workload()
            compared, cpu = compare(runs, workload.chains)
            found += compared
            workloads.append(replace(workload, driver=cpu))
    prices = Prices(**{name: getattr(options, name) for name in MEANINGS})
    figures, tables = paper(workloads, prices)
    error = statistics.median(abs(one.error) for one in found)
    rows: list[dict[str, Any]] = [asdict(one) | {"error": one.error} for one in found]
    summary = {"load": load(), "median_error": error, "runs": rows}
    title = f"{options.questions} questions, {SECONDS} s a call, load {load():.1f}; median error {100 * error:.1f}%"
    table = Table(
        "program", "in flight", "server", "driver ms a call", "predicted s", "measured s", "error", title=title
    )
    table.box = MARKDOWN
    for one in found:
        server = ", ".join(f"{key} {value}" for key, value in one.server.items()) or "–"
        times = (f"{1000 * one.driver:.1f}", f"{one.predicted:.2f}", f"{one.measured:.2f}")
        table.add_row(one.program, str(one.in_flight), server, *times, f"{100 * one.error:+.1f}%")
    show(summary | figures, options.json, table, *tables)
    sys.exit(int(error > LIMIT))


if __name__ == "__main__":
    main()
