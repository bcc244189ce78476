"""Does a server lose requests under load, and how near does it come to what its language model allows?

    python benchmarks/http_serving.py [--requests 1000] [--in-flight 64] [--seconds 0.5] [--mlflow 200] [--json]

``hop serve`` answers atlas' questions as a process of its own, with a compiled ``rag`` over BM25, whose language model
is a server on this machine where every call takes the same time (``scripted_server.py``). Of a client, so many requests
are in flight until all have come. At best they take that time each, which is the limit of the throughput. Beside it,
``mlflow models serve --env-manager local`` does the same with the MLflow model of the same run; with ``--mlflow 0`` it
is left out.

Exits 1 where ``hop serve`` lost a request: one that has no answer, or the answer to another question.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from processes import serving
from rich.box import MARKDOWN
from rich.table import Table

from hoptimizer.common.errors import UserError
from hoptimizer.eval.datasets.dataset import locate
from reporting import benchmark_parser, load, show, user_mistakes

_START = 240  # seconds that a server has to come up
_PORT = 8791
Ask = Callable[[httpx.AsyncClient, str], Awaitable[str]]


@dataclass(frozen=True)
class Served:
    """What became of the requests.

    Attributes:
        server: which.
        requests: how many were sent.
        lost: how many got no answer, or another question's.
        per_second: answers per second.
        limit: answers per second that the language model allows.
        p50: seconds of a request, the median.
        p95: the seconds that 95% of the requests stayed below.
        cpu_ms: milliseconds of the server's processes per request.
    """

    server: str
    requests: int
    lost: int
    per_second: float
    limit: float
    p50: float
    p95: float
    cpu_ms: float


async def ask_hop(client: httpx.AsyncClient, question: str) -> str:
    """The answer of ``hop serve``."""
    reply = await client.post("/answer", json={"question": question})
    return str(reply.raise_for_status().json()["answer"])


async def ask_mlflow(client: httpx.AsyncClient, question: str) -> str:
    """The answer of MLflow's server."""
    reply = await client.post("/invocations", json={"inputs": [question]})
    return str(reply.raise_for_status().json()["predictions"][0]["answer"])


def cpu(process: psutil.Process) -> float:
    """Seconds of a process and of those that it started."""
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return float(sum(time.user + time.system for time in times))


async def measure(server: str, url: str, ask: Ask, pid: int, asked: dict[str, str], options: Any) -> Served:  # noqa: ANN401 - argparse's
    """Ask a server all questions.

    Args:
        server: what it is called.
        url: its address.
        ask: asks it one question.
        pid: its process.
        asked: the answers by question.
        options: of the command line.
    """
    process, places, lost = psutil.Process(pid), asyncio.Semaphore(options.in_flight), 0
    seconds: list[float] = []

    async def one(question: str, answer: str) -> None:
        nonlocal lost
        async with places:
            start = time.perf_counter()
            try:
                lost += await ask(client, question) != answer
            except (httpx.HTTPError, KeyError, IndexError):
                lost += 1
            seconds.append(time.perf_counter() - start)

    limits = httpx.Limits(max_connections=options.in_flight)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        await asyncio.gather(*(one(*pair) for pair in list(asked.items())[:8]))  # what is imported first
        seconds.clear()
        start, before, lost = time.perf_counter(), cpu(process), 0
        await asyncio.gather(*(one(*pair) for pair in asked.items()))
        took, used = time.perf_counter() - start, cpu(process) - before
    low, high = np.percentile(seconds, [50, 95])
    served = Served(
        server, len(asked), lost, len(asked) / took, options.in_flight / options.seconds, low, high,
        1000 * used / len(asked),
    )  # fmt: skip
    sys.stderr.write(f"{served}\n")
    return served


def questions(count: int, folder: Path) -> tuple[Path, dict[str, str]]:
    """So many different questions, atlas' own under many numbers, as the scripted server reads them, with answers."""
    lines = (locate("atlas") / "test.jsonl").read_text(encoding="utf-8").splitlines()
    known = [json.loads(line) for line in lines]
    made = []
    for number in range(count):
        question = known[number % len(known)]
        made.append(question | {"question": f"{question['question']} ({number})", "answers": [f"answer {number}"]})
    train = (locate("atlas") / "train.jsonl").read_text(encoding="utf-8").splitlines()
    dev = (locate("atlas") / "dev.jsonl").read_text(encoding="utf-8").splitlines()
    file = folder / "questions.jsonl"
    file.write_text("\n".join([*map(json.dumps, made), *train, *dev]) + "\n", encoding="utf-8")
    return file, {question["question"]: question["answers"][0] for question in made}


@contextmanager
def started(command: list[str], folder: Path, url: str, path: str) -> Iterator[int]:
    """The process of a server that is up.

    Args:
        command: that starts it.
        folder: where it runs.
        url: its address.
        path: what answers once it is up.

    Raises:
        UserError: it does not come up.
    """
    log = folder / "server.log"
    with (
        log.open("w") as said,
        subprocess.Popen(command, cwd=folder, env=environment(), stdout=said, stderr=said) as own,
    ):
        try:
            deadline = time.monotonic() + _START
            while not up(f"{url}{path}"):
                if own.poll() is not None or time.monotonic() > deadline:
                    raise UserError(f"{command[3]} does not start: {log.read_text()[-1500:]}")
                time.sleep(0.2)
            yield own.pid
        finally:
            if own.poll() is None:
                for child in psutil.Process(own.pid).children(recursive=True):
                    child.terminate()
                own.terminate()


def up(url: str) -> bool:
    """Whether a server answers."""
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.HTTPError:
        return False


def environment() -> dict[str, str]:
    """That of the servers: no key of the user's goes anywhere."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])  # where MLflow finds uvicorn
    return os.environ | {"OPENAI_API_KEY": "none", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "PATH": path}


def compiled(folder: Path, model: str) -> tuple[str, str]:
    """The run of a compiled ``rag``, and its MLflow model."""
    lm = [f"lm.default.api_base={model}/v1", "lm.default.model=openai/scripted", "lm.default.cache=false"]
    words = ["data=atlas", "data.train=8", "data.dev=2", "program={name: rag, reader: direct}", "retriever=bm25"]
    command = [sys.executable, "-m", "hoptimizer.cli", "compile", *words, *lm, "lm.default.max_concurrency=256"]
    command += ["optimizer=labeled_few_shot", "tracking.uri=sqlite:///mlflow.db", "--json"]
    result = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    if result.returncode:
        raise UserError(f"hop compile: {result.stderr[-500:]}")
    run_id = json.loads(result.stdout)["run_id"]
    command = [sys.executable, "-m", "hoptimizer.cli", "register", run_id, "tracking.uri=sqlite:///mlflow.db", "--json"]
    named = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    return run_id, json.loads(named)["uri"]


def main() -> None:
    """Measure and print."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--requests", type=int, default=1000, help="(default: 1000)")
    parser.add_argument("--in-flight", type=int, default=64, help="(default: 64)")
    parser.add_argument("--seconds", type=float, default=0.5, help="a call of the language model takes (default: 0.5)")
    parser.add_argument("--mlflow", type=int, default=200, help="requests to MLflow's server (default: 200)")
    options = parser.parse_args()
    url, figures = f"http://127.0.0.1:{_PORT}", []
    with user_mistakes(), tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        file, asked = questions(max(options.requests, options.mlflow), folder)
        script = ["scripted_server.py", str(file), "--seconds", str(options.seconds), "--right", "1"]
        with serving(*script) as model:
            run_id, registered = compiled(folder, model)
            python = [sys.executable, "-m"]
            hop = [*python, "hoptimizer.cli", "serve", run_id, "tracking.uri=sqlite:///mlflow.db", "--port", str(_PORT)]
            hop += ["--in-flight", str(options.in_flight)]
            with started(hop, folder, url, "/ready") as pid:
                chosen = dict(list(asked.items())[: options.requests])
                figures.append(asyncio.run(measure("hop serve", url, ask_hop, pid, chosen, options)))
            if options.mlflow:
                serve = [*python, "mlflow", "models", "serve", "-m", registered, "--env-manager", "local"]
                os.environ["MLFLOW_TRACKING_URI"] = "sqlite:///mlflow.db"
                with started([*serve, "--port", str(_PORT)], folder, url, "/ping") as pid:
                    chosen = dict(list(asked.items())[: options.mlflow])
                    figures.append(asyncio.run(measure("mlflow models serve", url, ask_mlflow, pid, chosen, options)))
    table = Table(
        "server", "requests", "lost", "answers per s", "limit", "p50", "p95", "CPU ms per request",
        box=MARKDOWN, title=f"{options.in_flight} in flight, {options.seconds:g} s a call, load {load():.1f}",
    )  # fmt: skip
    for one in figures:
        table.add_row(
            one.server, str(one.requests), str(one.lost), f"{one.per_second:.1f}", f"{one.limit:.0f}",
            f"{one.p50:.2f} s", f"{one.p95:.2f} s", f"{one.cpu_ms:.1f}",
        )  # fmt: skip
    show({"load": load(), "servers": [asdict(one) for one in figures]}, options.json, table)
    sys.exit(1 if figures[0].lost else 0)


if __name__ == "__main__":
    main()
