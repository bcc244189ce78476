"""How long do the predictions of a hundred thousand questions take to be kept, read and opened?

    python benchmarks/predictions.py [--questions 1000 10000 100000] [--json] [--keep FOLDER]

The questions of atlas test are answered once by `rag` over BM25 without a reader; their rows, again and again under
other numbers, are the predictions of one run for each size. Measured are: keeping them in the store, reading them as
`hop compare` does, and fetching the tables of at most 2,000 questions each from MLflow's server, as its page does where
it shows one. With ``--keep``, the store stays in FOLDER; `mlflow server --backend-store-uri
sqlite:///FOLDER/mlflow.db` opens it.

Exits 1 where a question is missing from what was read or fetched.
"""

import json
import math
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import httpx
from processes import own_store
from rich.box import MARKDOWN
from rich.table import Table

from hoptimizer import Tracker, Workbench, load_config
from hoptimizer.eval.runner import Evaluation, evaluate
from hoptimizer.tracking.artifacts import PART, log_evaluation
from hoptimizer.tracking.naming import predictions_file
from reporting import benchmark_parser, show

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from mlflow_server import MlflowServer  # the tests' own

MB = 1e6
SPLIT = "test"
CONFIG = ["data=atlas", "program=rag", "program.reader=none", "retriever=bm25"]


@dataclass(frozen=True)
class Size:
    """What predictions of one size took.

    Attributes:
        questions: how many.
        tables: in how many parts.
        bytes: of all of them.
        keeping: seconds until they and the steps were in the store.
        reading: seconds until `hop compare` has them.
        fetching: seconds until MLflow's server has sent all of them.
        found: how many questions were read and how many fetched.
    """

    questions: int
    tables: int
    bytes: int
    keeping: float
    reading: float
    fetching: float
    found: tuple[int, int]


def answered() -> Evaluation:
    """Atlas test, answered by retrieval alone."""
    bench = Workbench(load_config(overrides=CONFIG))
    with bench.active():
        return evaluate(bench.program(), bench.data.split(SPLIT))


def repeated(evaluation: Evaluation, count: int) -> Evaluation:
    """So many rows, those of an evaluation in turn under other numbers."""
    rows = []
    for number in range(count):
        row = evaluation.rows[number % len(evaluation.rows)]
        rows.append(replace(row, question=row.question.model_copy(update={"id": f"q{number}"})))
    return Evaluation(rows, evaluation.seconds)


def fetch(url: str, run_id: str, part: int) -> bytes:
    """One table of a run's predictions, from MLflow's server."""
    file = predictions_file(SPLIT, "after", part)
    answer = httpx.get(f"{url}/get-artifact", params={"path": file, "run_uuid": run_id}, timeout=600)
    return answer.raise_for_status().content


def measure(folder: Path, sizes: list[int]) -> list[Size]:
    """What each size takes, in a store of its own in the folder."""
    evaluation, tracker = answered(), Tracker(experiment="predictions", **own_store(folder))
    kept = {}
    for count in sizes:
        rows = repeated(evaluation, count)
        begin = time.monotonic()
        with tracker.run("eval", f"{count} questions") as run:
            log_evaluation(rows, SPLIT, "after")
        kept[run.info.run_id] = (count, time.monotonic() - begin)
    found = []
    with MlflowServer(folder) as server:
        for run_id, (count, keeping) in kept.items():
            begin = time.monotonic()
            predictions = tracker.predictions(run_id, SPLIT)
            reading = time.monotonic() - begin
            read = len(predictions.table) if predictions else 0
            begin = time.monotonic()
            tables = [fetch(server.url, run_id, part) for part in range(1, math.ceil(count / PART) + 1)]
            fetching = time.monotonic() - begin
            fetched = sum(len(json.loads(table)["data"]) for table in tables)
            size = sum(len(table) for table in tables)
            found.append(Size(count, len(tables), size, keeping, reading, fetching, (read, fetched)))
    return found


def main() -> None:
    """Measure and print; exits 1 where a question is missing."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--questions", type=int, nargs="+", default=[1000, 10_000, 100_000], metavar="N")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where the store stays; an empty folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = (options.keep or Path(place)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        sizes = measure(folder, options.questions)
    table = Table("questions", "tables", "size", "keeping", "reading", "fetching", box=MARKDOWN)
    for size in sizes:
        seconds = (f"{spent:.1f} s" for spent in (size.keeping, size.reading, size.fetching))
        table.add_row(f"{size.questions:,}", str(size.tables), f"{size.bytes / MB:.1f} MB", *seconds)
    show({"sizes": [asdict(size) for size in sizes]}, options.json, table)
    sys.exit(int(any(count != size.questions for size in sizes for count in size.found)))


if __name__ == "__main__":
    main()
