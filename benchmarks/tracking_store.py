"""What a run costs in a team's store, and whether one is lost when many processes write at once.

    python benchmarks/tracking_store.py   # SQLite, PostgreSQL, one that restarts in the middle, and one with S3
    python benchmarks/tracking_store.py --writers 10 --runs 20 --store sqlite postgresql restart s3

PostgreSQL is started for it, of the binaries that Debian's package `postgresql` brings. Each writer is a process of its
own, and writes its runs as `hop eval` does (two parameters, ten metrics, a table of 20 answers and a file). Artifacts
go to a folder; with `s3`, to a bucket of moto's server, one thread of this process that shares the machine. A run's
overhead is the time from before it is opened until after it has ended.
"""

import contextlib
import logging
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import boto3
import mlflow
import pandas as pd
from moto.server import ThreadedMotoServer
from rich.table import Table

from hoptimizer import Config, Tracker, load_config, sync_runs
from hoptimizer.common.errors import UserError
from hoptimizer.tracking.journal import keep_run
from reporting import benchmark_parser, show, user_mistakes

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from postgres import Postgres, binaries

STORES = ("sqlite", "postgresql", "restart", "s3")
_AWAY_SECONDS = 2.0


@dataclass(frozen=True)
class Writing:
    """What came of many writers at one store.

    Attributes:
        store: one of :data:`STORES`.
        writers: processes at once.
        runs: that they were to write together.
        kept: finished runs in the store.
        by_sync: of these, by `hop sync`, after the database was back.
        median: seconds of a run.
        p95: seconds that 95 of 100 runs stay below.
        longest: seconds of the longest run.
        seconds: of all together.
    """

    store: str
    writers: int
    runs: int
    kept: int
    by_sync: int
    median: float
    p95: float
    longest: float
    seconds: float


def _config(uri: str, artifacts: str) -> Config:
    words = [f"tracking.uri={uri}", "tracking.experiment=writers", f"tracking.artifacts={artifacts}"]
    return load_config(None, ["data=atlas", *words])


def write(uri: str, artifacts: str, writer: int, runs: int) -> list[float]:
    """Write runs, one after the other, and give the seconds of each."""
    config, seconds = _config(uri, artifacts), []
    table = pd.DataFrame({"question": [f"question {n}" for n in range(20)], "f1": [1.0] * 20})

    for number in range(runs):

        def work(tracker: Tracker, name: str = f"{writer}-{number}") -> None:
            with tracker.run("eval", name):
                mlflow.log_params({"program": "rag", "lm": "none"})
                mlflow.log_metrics({f"dev/metric{n}": n / 10 for n in range(10)})
                mlflow.log_table(table, "predictions/dev-after.json")
                mlflow.log_text("program: rag\n", "variant/config.yaml")

        start = time.perf_counter()
        keep_run(config, work)
        seconds.append(time.perf_counter() - start)
    return seconds


def measure(store: str, uri: str, artifacts: str, server: Postgres | None, writers: int, runs: int) -> Writing:
    """Let writers write at once, and look for their runs.

    Raises:
        UserError: one is missing, or there twice.
    """
    # Forked before this process has connections of its own.
    with multiprocessing.get_context("fork").Pool(writers) as pool:
        keep_run(_config(uri, artifacts), lambda tracker: None)  # makes the tables and the experiment
        pool.starmap(write, [(uri, artifacts, 1000 + writer, 1) for writer in range(writers)], chunksize=1)  # connect
        start = time.perf_counter()
        restart = threading.Thread(target=_restart, args=(server, writers * runs, uri, artifacts))
        if store == "restart":
            restart.start()
        given = pool.starmap(write, [(uri, artifacts, writer, runs) for writer in range(writers)], chunksize=1)
        took = time.perf_counter() - start
        if store == "restart":
            restart.join()
    delivered = [run.name for run in sync_runs(uri)] if server else []
    names = [name for name in _finished(uri, artifacts) if not name.startswith("100")]
    expected = {f"{writer}-{number}" for writer in range(writers) for number in range(runs)}
    if len(names) != len(set(names)) or set(names) != expected:
        raise UserError(f"{store}: {len(expected - set(names))} runs are missing, {len(names) - len(set(names))} twice")
    seconds = sorted(second for one in given for second in one)
    p95 = statistics.quantiles(seconds, n=20)[-1]
    figures = (statistics.median(seconds), p95, seconds[-1], took)
    return Writing(store, writers, writers * runs, len(names), len(delivered), *(round(one, 3) for one in figures))


def _finished(uri: str, artifacts: str) -> list[str]:
    tracker = Tracker(uri, _config(uri, artifacts).experiment)
    found = mlflow.search_runs(
        [tracker.experiment.experiment_id], "attributes.status = 'FINISHED'", max_results=50_000, output_format="list"
    )
    return [run.info.run_name for run in found]


def _restart(server: Postgres, runs: int, uri: str, artifacts: str) -> None:
    """Restart the database once a third of the runs is there."""
    while len(_finished(uri, artifacts)) < runs / 3:
        time.sleep(0.2)
    server.stop()
    time.sleep(_AWAY_SECONDS)
    server.start()


def run(stores: Sequence[str], writers: int, runs: int) -> list[Writing]:
    """Measure some stores, one after the other."""
    if set(stores) - {"sqlite"} and binaries() is None:
        raise UserError("PostgreSQL's server is not installed: apt-get install postgresql, or give --store sqlite")
    found = []
    for store in stores:
        with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
            folder = Path(name)
            os.environ["HOPTIMIZER_HOME"] = str(folder / "home")
            server = None if store == "sqlite" else stack.enter_context(Postgres())
            uri = server.create("mlflow") if server else f"sqlite:///{folder}/mlflow.db"
            artifacts = stack.enter_context(_bucket()) if store == "s3" else (folder / "files").as_uri()
            found.append(measure(store, uri, artifacts, server, writers, runs))
    return found


@contextlib.contextmanager
def _bucket() -> Iterator[str]:
    """A bucket of an S3-like server, where MLflow and boto3 find it by the environment."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it tells of each request
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ |= {
        "MLFLOW_S3_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    boto3.client("s3", endpoint_url=f"http://{host}:{port}").create_bucket(Bucket="runs")
    try:
        yield "s3://runs/files"
    finally:
        server.stop()


def main() -> None:
    """Print what was measured."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--writers", type=int, default=10, help="processes at once (default: 10)")
    parser.add_argument("--runs", type=int, default=20, help="runs of each (default: 20)")
    parser.add_argument("--store", nargs="+", default=STORES, choices=STORES, help="(default: all)")
    given = parser.parse_args()
    with user_mistakes():
        found = run(given.store, given.writers, given.runs)
    table = Table(
        "store", "writers", "runs", "kept", "of these by sync", "median s", "95% below s", "longest s", "all s"
    )
    for one in found:
        table.add_row(*(str(value) for value in asdict(one).values()))
    show({"stores": [asdict(one) for one in found]}, given.json, table)


if __name__ == "__main__":
    main()
