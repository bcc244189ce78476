"""Evaluations, studies, compiles and indexes by the workers of a Ray cluster of two nodes here, beside one process.

    python benchmarks/ray_scaling.py [--questions 1000] [--workers 64] [--seconds 0.1] [--tasks 1 2 4]
        [--cached] [--parts evaluation study compile kills index] [--passages 100000] [--json]

Every call takes 100 ms, or what ``--seconds`` says, on a server with scripted answers
(``benchmarks/scripted_server.py``) that takes any number at once, so that the results can't depend on who asks. The
program is ``rag``, one call per question; nothing is cached, or with ``--cached`` answers are kept, and none is there
yet. The questions are those of atlas, told apart by a number.
Workers are started before the clock is; ``workers`` questions are under way in all, and "busy" is the share of so many
calls that the server had, from the first to the start of the last. The study has 12 cells of 60 questions, and is timed
with the start of its workers.

The compile is a search for demonstrations of ``rag`` with SmolLM2-135M, which runs in this process, or in that of each
worker, whose start is timed. "same" says that the compiled program is.

The index is that of ``dense`` over so many passages of atlas, told apart as in ``benchmarks/scale.py``; it is timed
with the start of its workers, and compared by the digests of its files. Up to 2,048 passages are encoded here.

In ``kills``, an evaluation of ``ircot`` as ``hop eval`` does it is disturbed: ten workers are killed one
after the other, then three times a node with all its workers, then the head; with the head, the command is given again.
It must end with the result of an undisturbed one. Calls are cached there, as by default.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
from chains import busy, spans
from processes import own_home, serving
from ray.cluster_utils import Cluster
from rich.console import RenderableType
from rich.table import Table
from scale import renamed

from hoptimizer import Tracker, Workbench, compile_variant, load_study, make_config, run_study
from hoptimizer.eval.datasets.dataset import load, locate
from hoptimizer.eval.runner import Evaluation, aevaluate
from hoptimizer.executors.answers import answering_workers
from hoptimizer.executors.connection import connected
from hoptimizer.executors.encoding import encoders_on
from hoptimizer.executors.evaluation import Asked, aevaluate_on
from hoptimizer.executors.settings import RayExecutor
from hoptimizer.executors.worker import Worker
from hoptimizer.models.engine.engine import release
from hoptimizer.retrieval import Corpus, DenseSettings, build_retriever
from hoptimizer.retrieval.encoders.windows import Elsewhere
from reporting import benchmark_parser, show
from reporting import load as machine_load

LATENCY = 0.1
NODE: dict[str, Any] = {"num_cpus": 4, "object_store_memory": 80 << 20}
PARTS = ("evaluation", "study", "compile", "kills", "index")
TIMES = ("seconds", "seconds_median", "seconds_p95", "seconds_n", "seconds_per_question", "cached_calls")


def write_data(folder: Path, n: int) -> Path:
    """A data set of atlas' corpus and so many questions, all of them different."""
    folder.mkdir()
    shutil.copy(locate("atlas") / "corpus.jsonl", folder)
    atlas = [question for split in load("atlas").splits.values() for question in split]
    with (folder / "test.jsonl").open("w", encoding="utf-8") as out:
        for number in range(n):
            one = atlas[number % len(atlas)]
            update = {"id": f"q{number}", "question": f"{one.question} ({number})"}
            out.write(one.model_copy(update=update).model_dump_json() + "\n")
    return folder


def settings(data: Path, url: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - sections of a config
    """A config whose language model is the server."""
    lm: dict[str, Any] = {
        "model": "openai/scripted",
        "api_base": f"{url}/v1",
        "api_key": "none",
        "prompt_format": "chat",
    }
    lm |= {"max_concurrency": 1000, "cache": False}
    return {"data": str(data), "program": "rag", "retriever": "bm25", "lm": {"default": lm}} | more


@contextmanager
def two_nodes() -> Iterator[Cluster]:
    """A cluster of two nodes on this machine."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    cluster = Cluster(initialize_head=True, head_node_args=NODE | {"include_dashboard": False})
    try:
        cluster.add_node(**NODE)
        yield cluster
    finally:
        cluster.shutdown()


def workers_of(cluster: Cluster, kind: str = "Worker") -> list[psutil.Process]:
    """The processes of all nodes that answer questions, or those of another kind of actor."""
    found = []
    for node in cluster.list_all_nodes():
        for info in node.all_processes.get("raylet", []):
            try:
                children = psutil.Process(info.process.pid).children(recursive=True)
                found += [child for child in children if child.name().startswith(f"ray::{kind}")]
            except psutil.NoSuchProcess:
                continue
    return found


def cpu_of(processes: list[psutil.Process]) -> float:
    """Seconds of all cores that processes have taken."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def answers(evaluation: Evaluation) -> list[tuple[Any, ...]]:
    """All that an evaluation came to, without its times."""
    return [(row.question.id, row.answer, row.passages, untimed(row.scores), row.failure) for row in evaluation.rows]


def untimed(scores: dict[str, float]) -> dict[str, float]:
    """Scores without times."""
    return {name: value for name, value in scores.items() if name not in TIMES}


def measure_evaluation(data: Path, url: str, workers: int, sizes: list[int], cached: bool) -> list[dict[str, Any]]:
    """An evaluation in this process, and by each number of workers."""

    def bench_of(seed: int) -> Workbench:
        values = settings(data, url, workers=workers)
        values["lm"]["default"] |= {"cache": cached, "seed": seed}  # each seed's answers are its own
        return Workbench(make_config(values))

    bench = bench_of(0)
    questions = bench.data.split("test")
    with bench.active():
        program = bench.program()
        asyncio.run(aevaluate(program, questions[:32], workers=workers))  # connections are made, code is loaded
        spans(url)
        cpu = time.process_time()
        alone = asyncio.run(aevaluate(program, questions, workers=workers))
        cpu = time.process_time() - cpu
    n = len(questions)
    row = {
        "workers": "in process",
        "seconds": alone.seconds,
        "driver_ms": 1000 * cpu / n,
        "workers_ms": 0.0,
        "store_ms": 0.0,
    }
    rows = [row | {"busy": occupancy(url, workers)}]
    with two_nodes() as cluster, connected(RayExecutor(name="ray", address=cluster.address)) as ray:
        for size in sizes:
            with answering_workers(ray, RayExecutor(name="ray", tasks=size), Worker) as lent:
                asyncio.run(aevaluate_on(lent, Asked(bench_of(100 + size), questions[: 32 * size]), size))
                processes, store = workers_of(cluster), workers_of(cluster, "AnswerStore")
                spans(url)
                used, stored, cpu = cpu_of(processes), cpu_of(store), time.process_time()
                spread = asyncio.run(aevaluate_on(lent, Asked(bench_of(size), questions), size))
                cpu, used, stored = time.process_time() - cpu, cpu_of(processes) - used, cpu_of(store) - stored
            rows.append(
                {
                    "workers": str(size),
                    "seconds": spread.seconds,
                    "driver_ms": 1000 * cpu / n,
                    "workers_ms": 1000 * used / n,
                    "store_ms": 1000 * stored / n,
                    "busy": occupancy(url, workers),
                    "same": answers(spread) == answers(alone),
                }
            )
    return rows


def occupancy(url: str, places: int) -> float:
    """The share of so many calls that the server had, from the first to the start of the last."""
    calls = spans(url)
    return busy(calls, calls[-1][0], places)


def measure_study(data: Path, url: str, folder: Path, sizes: list[int]) -> list[dict[str, Any]]:
    """A study of 12 cells in this process, and by each number of workers, with their start."""
    base = settings(data, url, workers=8)
    (folder / "study.yaml").write_text(
        json.dumps({"base": base, "grid": {"retriever.k": list(range(1, 13))}, "split": "test"}), encoding="utf-8"
    )
    rows: list[dict[str, Any]] = []
    tables: list[list[dict[str, float]]] = []

    def run(name: str, *words: str) -> None:
        store = f"tracking.uri=sqlite:///{folder}/{name}.db"
        study = load_study(folder / "study.yaml", [store, *words])
        start = time.perf_counter()
        result = run_study(study)
        seconds = time.perf_counter() - start
        tables.append([untimed(cell.metrics) for cell in result.outcomes])
        rows.append({"workers": name, "seconds": seconds, "same": tables[-1] == tables[0] and not result.failed})

    run("in process")
    with two_nodes() as cluster:
        for size in sizes:
            run(str(size), f"executor={{name: ray, address: '{cluster.address}', tasks: {size}}}")
    return rows


def measure_index(passages: int, folder: Path, sizes: list[int]) -> list[dict[str, Any]]:
    """A dense index in this process, and by each number of workers, with their start."""
    corpus = Corpus(list(islice(renamed(load("atlas")), passages)))
    indexes = folder / "home" / "indexes"
    rows: list[dict[str, Any]] = []
    files: list[dict[str, str]] = []

    def build(name: str, elsewhere: Elsewhere | None = None) -> None:
        start, cpu = time.perf_counter(), time.process_time()
        build_retriever(DenseSettings(), corpus, elsewhere=elsewhere)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        [manifest] = indexes.glob("*/manifest.json")
        files.append(json.loads(manifest.read_bytes())["files"])
        shutil.rmtree(indexes)
        row = {"workers": name, "seconds": seconds, "driver_ms": 1000 * cpu / passages}
        rows.append(row | {"same": files[-1] == files[0]})

    build_retriever(DenseSettings(), Corpus(corpus.passages[:10]))  # code and model are loaded
    shutil.rmtree(indexes)
    build("in process")
    with two_nodes() as cluster:
        for size in sizes:
            build(str(size), encoders_on(RayExecutor(name="ray", address=cluster.address, tasks=size)))
    return rows


def measure_compile(folder: Path, sizes: list[int]) -> list[dict[str, Any]]:
    """A search for demonstrations whose language model runs here, and at each number of workers, with their start."""
    search = {"num_candidate_programs": 3, "max_bootstrapped_demos": 2, "prompt_formats": ["plain"]}
    store = f"sqlite:///{folder}/mlflow.db"
    values: dict[str, Any] = {
        "data": {"name": "atlas", "train": 16, "dev": 24},
        "program": "rag",
        "retriever": "bm25",
        "lm": {"model": "local/smollm2-135m-instruct", "max_tokens": 24, "cache": False},
        "optimizer": {"name": "bootstrap_random_search", **search},
    }
    rows: list[dict[str, Any]] = []
    states: list[dict[str, Any]] = []

    def search_for(name: str, executor: dict[str, Any] | None = None) -> None:
        more = {"tracking": {"uri": store, "experiment": f"by {name}"}}
        config = make_config(values | more | ({"executor": executor} if executor else {}))
        start = time.perf_counter()
        variant = compile_variant(config, score_before=False)
        seconds = time.perf_counter() - start
        states.append(Tracker(store, config.experiment).load_state(variant.run_id))
        rows.append({"workers": name, "seconds": seconds, "same": states[-1] == states[0]})

    search_for("in process")
    release(values["lm"]["model"])
    with two_nodes() as cluster:
        for size in sizes:
            search_for(str(size), {"name": "ray", "address": cluster.address, "tasks": size})
    return rows


class Disturbed:
    """An evaluation by ``hop eval``, in a folder and a home of its own.

    Args:
        folder: an empty one.
        words: of the command.
    """

    def __init__(self, folder: Path, words: list[str]) -> None:
        folder.mkdir()
        self.folder, self.words = folder, words
        self.environment = os.environ | {"HOPTIMIZER_HOME": str(own_home(folder)), "RAY_AUTH_MODE": "disabled"}

    def start(self, *more: str) -> subprocess.Popen[str]:
        """The command under way."""
        command = [sys.executable, "-m", "hoptimizer.cli", "eval", *self.words, *more, "--split", "test", "--json"]
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def finished(self) -> int:
        """The number of outcomes that are kept."""
        files = (self.folder / "home" / "answers").glob("*.jsonl")
        return sum(bool(line) for file in files for line in file.read_bytes().splitlines())


def metrics(process: subprocess.Popen[str]) -> dict[str, float] | None:
    """What a command came to, without its times; ``None`` where it failed."""
    out, err = process.communicate()
    sys.stderr.write(f"exit {process.returncode}: {err.splitlines()[-1] if err else ''}\n")
    if process.returncode:
        return None
    return untimed(json.loads(out)["metrics"])


def calls(url: str) -> int:
    """Calls that the server has answered since it was last asked."""
    with urllib.request.urlopen(f"{url}/spans") as reply:
        return len(json.load(reply)["spans"])


def measure_kills(data: Path, url: str, folder: Path) -> dict[str, Any]:
    """An evaluation that is disturbed beside one that is not."""
    config = settings(data, url, program="ircot", workers=8)
    del config["lm"]["default"]["cache"]
    words = [f"{key}={json.dumps(value)}" for key, value in config.items()]
    undisturbed = metrics(Disturbed(folder / "undisturbed", words).start())
    needed = calls(url)
    words.append("executor={name: ray, tasks: 2}")
    work = Disturbed(folder / "disturbed", words)
    done = {"workers": 0, "nodes": 0, "heads": 0}
    with two_nodes() as cluster:
        work.environment["RAY_ADDRESS"] = cluster.address
        process = work.start()
        while done["heads"] == 0 and process.poll() is None:
            reached = work.finished()
            while process.poll() is None and work.finished() < reached + 10:
                time.sleep(0.2)
            running = workers_of(cluster)
            if not running or process.poll() is not None:
                continue
            if done["workers"] < 10:
                running[0].send_signal(signal.SIGKILL)
                done["workers"] += 1
            elif done["nodes"] < 3:
                cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)
                cluster.add_node(**NODE)
                done["nodes"] += 1
            elif cluster.head_node:
                cluster.head_node.kill_gcs_server(check_alive=False)
                done["heads"] += 1
            sys.stderr.write(f"{done}, {work.finished()} outcomes\n")
        start = time.perf_counter()
        result = metrics(process)
        ended = time.perf_counter() - start
    kept = work.finished()
    if result is None:
        with two_nodes() as cluster:
            work.environment["RAY_ADDRESS"] = cluster.address
            result = metrics(work.start())
    return done | {
        "kept": kept, "ended_after": ended, "same": result == undisturbed, "calls": calls(url), "needed": needed,
    }  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=64, help="questions under way at once (default: 64)")
    parser.add_argument("--seconds", type=float, default=LATENCY, help=f"a call takes (default: {LATENCY})")
    parser.add_argument("--tasks", type=int, nargs="+", default=[1, 2, 4], help="workers (default: 1 2 4)")
    parser.add_argument("--cached", action="store_true", help="answers are kept, as by default of a config")
    parser.add_argument("--passages", type=int, default=100_000, help="of the index (default: 100000)")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS, help="(default: all)")
    options = parser.parse_args()
    os.environ["RAY_AUTH_MODE"] = "disabled"  # of clusters that end with this benchmark
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - Ray's name; by default all other work goes first
    figures: dict[str, Any] = {}
    tables: list[RenderableType] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        data = write_data(folder / "questions", options.questions)
        few = write_data(folder / "few", 60)
        os.environ["HOPTIMIZER_HOME"] = str(own_home(folder))
        with serving("scripted_server.py", str(data / "test.jsonl"), "--seconds", str(options.seconds)) as url:
            if "evaluation" in options.parts:
                figures["evaluation"] = measure_evaluation(data, url, options.workers, options.tasks, options.cached)
                title = f"{options.questions} questions, {options.workers} at once, {options.seconds:g} s a call"
                tables.append(table(title, figures["evaluation"]))
            if "study" in options.parts:
                figures["study"] = measure_study(few, url, folder, options.tasks)
                tables.append(table("a study of 12 cells, 60 questions each, 8 at once", figures["study"]))
            if "compile" in options.parts:
                figures["compile"] = measure_compile(folder, options.tasks)
                tables.append(table("a search for demonstrations with SmolLM2-135M", figures["compile"]))
            if "index" in options.parts:
                figures["index"] = measure_index(options.passages, folder, options.tasks)
                tables.append(table(f"a dense index of {options.passages} passages", figures["index"], "passage"))
            if "kills" in options.parts:
                figures["kills"] = measure_kills(data, url, folder)
                tables.append(str(figures["kills"]))
    figures["load"] = machine_load()
    show(figures, options.json, *tables, f"load {figures['load']:.1f}")


def table(title: str, rows: list[dict[str, Any]], of: str = "question") -> Table:
    """Times, and how many times as fast as in one process."""
    cpu_of_all = [f"{name}, CPU ms a {of}" for name in ("driver", "workers", "store")]
    shown = Table("workers", "s", "speed-up", *cpu_of_all, "busy", "same", title=title)
    for row in rows:
        speed = rows[0]["seconds"] / row["seconds"]
        cpu = [f"{row[name]:.1f}" if name in row else "" for name in ("driver_ms", "workers_ms", "store_ms")]
        taken = f"{100 * row['busy']:.0f}%" if "busy" in row else ""
        shown.add_row(row["workers"], f"{row['seconds']:.1f}", f"{speed:.2f}", *cpu, taken, str(row.get("same", "")))
    return shown


if __name__ == "__main__":
    main()
