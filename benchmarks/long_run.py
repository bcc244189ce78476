"""Does an evaluation of ten thousand questions take ever more memory, handles or threads, and how does the store grow?

    python benchmarks/long_run.py [--questions 10000] [--json]

`hop eval` asks `rag` over BM25 on atlas' questions, each under many numbers, a server on this machine whose answers are
scripted (``scripted_server.py``). After every thousand questions the memory of its process (the resident set), its
open handles and its threads are looked at.

Exits 1 where the last figures are more than 5% above those after the first thousand questions, or where the run in the
MLflow store does not hold every question.
"""

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import psutil
from processes import size
from rich.box import MARKDOWN
from rich.table import Table

from hoptimizer import Tracker
from hoptimizer.common.errors import UserError
from hoptimizer.eval.datasets.dataset import load
from hoptimizer.eval.datasets.folder import write_folder
from reporting import benchmark_parser, show, user_mistakes

MB = 1e6
STEP = 1000
LIMIT = 1.05


@dataclass(frozen=True)
class Moment:
    """What the process held.

    Attributes:
        questions: how many calls had been answered, one a question.
        bytes: its resident set.
        handles: open files and connections.
        threads: of all kinds.
    """

    questions: int
    bytes: int
    handles: int
    threads: int


@dataclass(frozen=True)
class LongRun:
    """An evaluation that was watched.

    Attributes:
        questions: how many were asked.
        seconds: from start to end.
        moments: one a thousand questions.
        logged: questions in the run's predictions.
        store: bytes of the store and its artifacts, without those of an evaluation of a single question.
        cache: bytes of the answers that are kept.
    """

    questions: int
    seconds: float
    moments: list[Moment]
    logged: int
    store: int
    cache: int


def lay_out(folder: Path, count: int) -> None:
    """A data set of so many questions in a folder: atlas, and its questions again under other numbers."""
    atlas = load("atlas")
    known = atlas.split("test")
    questions = []
    for number in range(count):
        asked = known[number % len(known)]
        questions.append(asked.model_copy(update={"id": f"q{number}", "question": f"{asked.question} ({number})"}))
    write_folder(folder, atlas.corpus, {"test": questions})


def watch(count: int) -> LongRun:
    """Evaluate so many questions."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        lay_out(folder / "many", count)
        script = [
            sys.executable,
            str(Path(__file__).with_name("scripted_server.py")),
            str(folder / "many" / "test.jsonl"),
        ]
        with subprocess.Popen([*script, "--seconds", "0.02"], stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout
            url = server.stdout.readline().strip()
            try:
                evaluate(folder, url, 1)
                empty = size(folder / "store")
                begin = time.monotonic()
                moments, run = evaluate(folder, url, count)
                seconds = time.monotonic() - begin
            finally:
                server.kill()
        predictions = Tracker(f"sqlite:///{folder}/store/mlflow.db", "many").predictions(run, "test")
        logged = len(predictions.table) if predictions else 0
        return LongRun(count, seconds, moments, logged, size(folder / "store") - empty, size(folder / "home" / "cache"))


def evaluate(folder: Path, url: str, count: int) -> tuple[list[Moment], str]:
    """Watch `hop eval`; what was seen, and the id of its run.

    Raises:
        UserError: it failed.
    """
    (folder / "store").mkdir(exist_ok=True)
    words = [f"data={folder / 'many'}", f"data.test={count}", "program=rag", "retriever=bm25"]
    words += ["lm.default=openai/scripted", f"lm.default.api_base={url}", "lm.default.api_key=none"]
    moments: list[Moment] = []
    before = httpx.get(f"{url}/calls").json()["calls"]
    process = subprocess.Popen(
        [sys.executable, "-m", "hoptimizer.cli", "eval", *words, "--split", "test", "--json"],
        cwd=folder / "store",
        env={**psutil.Process().environ(), "HOPTIMIZER_HOME": str(folder / "home")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    watched = psutil.Process(process.pid)
    while process.poll() is None:
        asked = httpx.get(f"{url}/calls").json()["calls"] - before
        if asked >= (len(moments) + 1) * STEP:
            held = watched.memory_info().rss, watched.num_fds(), watched.num_threads()
            moments.append(Moment(asked, *held))
        time.sleep(0.1)
    out, err = process.communicate()
    if process.returncode:
        raise UserError(f"hop eval ended with exit code {process.returncode}: {err[-500:]}")
    return moments, json.loads(out)["run_id"]


def main() -> None:
    """Measure and print; exits 1 where something grows or is lost."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--questions", type=int, default=10_000, help="at least 3000 (default: 10000)")
    options = parser.parse_args()
    if options.questions < 3 * STEP:
        parser.error("--questions: at least 3000, or nothing can be compared")
    with user_mistakes():
        seen = watch(options.questions)
    first, last = seen.moments[0], seen.moments[-1]
    growth = {name: getattr(last, name) / getattr(first, name) for name in ("bytes", "handles", "threads")}
    table = Table("questions", "memory", "handles", "threads", box=MARKDOWN)
    for moment in seen.moments:
        table.add_row(str(moment.questions), f"{moment.bytes / MB:.0f} MB", str(moment.handles), str(moment.threads))
    thousands = seen.questions / STEP
    per_thousand = f"{seen.store / thousands / MB:.2f} MB, the kept answers by {seen.cache / thousands / MB:.2f} MB"
    grows = (
        f"{seen.logged} of {seen.questions} questions are in the store after {seen.seconds:.0f} s; "
        f"for each thousand it grew by {per_thousand}"
    )
    show(asdict(seen) | {"growth": growth}, options.json, table, grows)
    sys.exit(int(max(growth.values()) > LIMIT or seen.logged < seen.questions))


if __name__ == "__main__":
    main()
