"""End commands at random moments, twice in a row: does the same command then make what an undisturbed one makes?

    python benchmarks/kills.py [--trials 3] [--seed 7] [--json] [WORK ...]

A work is the compile of a program on a small part of atlas by one of the optimizers, an evaluation, a study, an index,
an import, or the download of a model. Each is done once undisturbed. Then, for each trial, in an empty folder with a
home of its own, the same command is ended at a random moment after its imports, started again, ended again, and then
left alone. What ends it is drawn too: SIGKILL, SIGTERM or Ctrl-C.

Exits 1 where the result differs, or something is left over: a run that is still running in the store, or a file that
the undisturbed command does not leave.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from rich.box import MARKDOWN
from rich.table import Table

from hoptimizer import Tracker
from hoptimizer.common.paths import home
from hoptimizer.eval.datasets.dataset import load
from reporting import benchmark_parser, show

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
DATA = ["data=atlas", "data.train=12", "data.dev=6", "retriever=bm25", "retriever.k=2"]
COMPILE = [
    "compile", *DATA, "program=rag", "lm.reflection.model=local/smollm2-135m-instruct", "lm.reflection.temperature=1.0",
]  # fmt: skip
DEMOS = ["optimizer.max_bootstrapped_demos=2", "optimizer.max_labeled_demos=2"]
OPTIMIZERS: dict[str, list[str]] = {
    "labeled_few_shot": [],
    "bootstrap_few_shot": DEMOS,
    "bootstrap_random_search": [*DEMOS, "optimizer.num_candidate_programs=2"],
    "bootstrap_optuna": [*DEMOS, "optimizer.num_candidate_programs=4"],
    "knn_few_shot": [],
    "copro": ["optimizer.breadth=3", "optimizer.depth=2"],
    "miprov2": [*DEMOS, "optimizer.num_candidates=3", "optimizer.num_trials=4"],
    "simba": ["optimizer.bsize=4", "optimizer.num_candidates=2", "optimizer.max_steps=2"],
    "gepa": ["optimizer.max_full_evals=3"],
    "infer_rules": [*DEMOS, "optimizer.num_candidates=2"],
    "better_together": ["optimizer.strategy=[bootstrap_few_shot,{name: copro, breadth: 2, depth: 1}]"],
    "ensemble": ["optimizer.of=bootstrap_random_search"],
    "bootstrap_finetune": ["optimizer.epochs=2", "optimizer.batch=4"],
    "train_tagger": ["program=efficient_rag", "program.reader=none", "optimizer.epochs=1"],
}
MODEL = "all-minilm-l6-v2"
COPIES = 50  # of each question, so that an import takes a while
# An import's words where an earlier command ended after its work.
DONE = "made: exists already"
# What a path has of its own in each folder: the ids of runs and models, and digests of the folder itself.
_OWN = re.compile(r"[0-9a-f]{16,}")
# SQLite's log of what was committed: a part of its database until a command opens it again, which not each one does.
_LOG = re.compile(r"\.db-(wal|shm)$")


@dataclass(frozen=True)
class Work:
    """A command, and what it makes.

    Attributes:
        command: its words after ``hop``.
        made: what it made, from the folder that it worked in and its JSON; equal where the work is equal.
        shared: whether the folder's home has the user's models.
    """

    command: list[str]
    made: Callable[[Path, dict[str, Any]], object]
    shared: bool = True


@dataclass(frozen=True)
class Trial:
    """A work that was ended twice.

    Attributes:
        work: its name.
        seconds: of the undisturbed command.
        ended: by what and after how many seconds, each time.
        same: whether the third command made what the undisturbed one makes.
        left: what is left over, which nothing should be.
    """

    work: str
    seconds: float
    ended: list[tuple[str, float]]
    same: bool
    left: list[str]


def compiled(folder: Path, result: dict[str, Any]) -> object:
    """The compiled program's state and weights."""
    run = Tracker(f"sqlite:///{folder}/mlflow.db", "atlas").get(result["run_id"])
    variant = folder / run.info.artifact_uri.removeprefix("file://") / "variant"
    return json.loads((variant / "program.json").read_bytes()), digests(variant, "*.safetensors")


def answered(folder: Path, result: dict[str, Any]) -> object:
    """Every question's answer and scores."""
    found = Tracker(f"sqlite:///{folder}/mlflow.db", "atlas").predictions(result["run_id"], "dev")
    assert found
    return found.table[["id", "answer", "em", "f1", "recall"]].to_dict("list")


def tabled(_: Path, result: dict[str, Any]) -> object:
    """A study's cells with their scores."""
    return result["table"]


def files_in(name: str) -> Callable[[Path, dict[str, Any]], object]:
    """The contents of all files in a subfolder."""
    return lambda folder, _: digests(folder / name, "*")


def digests(folder: Path, pattern: str) -> list[str]:
    """The SHA-256 of the files below a folder, in the order of their paths."""
    return [sha256(path.read_bytes()).hexdigest() for path in sorted(folder.rglob(pattern)) if path.is_file()]


WORKS = {
    **{name: Work([*COMPILE, f"optimizer={name}", *more], compiled) for name, more in OPTIMIZERS.items()},
    "eval": Work(["eval", *DATA, "program=rag", "data.dev=40"], answered),
    "study": Work(["study", "study.yaml"], tabled),
    "index": Work(["index", "build", "data=atlas"], files_in("home/indexes")),
    "import": Work(["data", "import", "hotpotqa", "hotpot.json", "--out", "made"], files_in("made")),
    "pull": Work(["models", "pull", MODEL], files_in("home/models"), shared=False),
}
STUDY = """
base: {data: {name: atlas, dev: 6}, retriever: {name: bm25}, lm: local/smollm2-135m-instruct}
split: dev
grid: {program: [direct, rag, ircot]}
figures: [em, f1]
"""


def prepare(folder: Path, work: Work) -> None:
    """Lay out what the works need: a study, questions in HotpotQA's format, and the models."""
    (folder / "home").mkdir()
    if work.shared:
        (folder / "home" / "models").symlink_to(home() / "models")
    (folder / "study.yaml").write_text(STUDY)
    data = load("atlas")
    pages = {passage.id: passage for passage in data.corpus}
    rows = [
        {
            "_id": f"{question.id}-{copy}",
            "question": question.question,
            "answer": question.answers[0],
            "type": question.type,
            "supporting_facts": [[pages[page].title, 0] for page in question.passages],
            "context": [[page.title, [page.text]] for page in pages.values() if page.id in question.passages],
        }
        for question in data.split("test")
        for copy in range(COPIES)
    ]
    (folder / "hotpot.json").write_text(json.dumps(rows))


def start(folder: Path, work: Work) -> subprocess.Popen[str]:
    """The command, in its folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "hoptimizer.cli", *work.command, "--json"],
        cwd=folder,
        env=os.environ | {"HOPTIMIZER_HOME": str(folder / "home")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What runs in a shell's background ignores Ctrl-C, and so would what it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def finish(folder: Path, work: Work, process: subprocess.Popen[str]) -> tuple[object, set[str], list[str]]:
    """What the command made, the names of all files, and the runs that are running although nobody is at work."""
    out, err = process.communicate()
    if process.returncode and DONE not in err:
        raise RuntimeError(f"{' '.join(work.command)}: {err[-2000:]}")
    made = work.made(folder, json.loads(out or "{}"))
    names = {_OWN.sub("*", str(path.relative_to(folder))) for path in folder.rglob("*") if not _LOG.search(path.name)}
    running = []
    if (folder / "mlflow.db").exists():
        client = Tracker(f"sqlite:///{folder}/mlflow.db", "atlas").client
        ids = [experiment.experiment_id for experiment in client.search_experiments()]
        running = [run.info.run_id for run in client.search_runs(ids, "attributes.status = 'RUNNING'")]
    return made, names, running


def measure(name: str, trials: int, draw: random.Random) -> list[Trial]:
    """The trials of one work."""
    work = WORKS[name]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        prepare(folder, work)
        before = len(list(folder.rglob("*")))
        begin = time.monotonic()
        process = start(folder, work)
        while process.poll() is None and len(list(folder.rglob("*"))) == before:
            time.sleep(0.05)
        imported = time.monotonic() - begin
        whole, usual, _ = finish(folder, work, process)
        seconds = time.monotonic() - begin
    done = []
    for _ in range(trials):
        ended = []
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            prepare(folder, work)
            for _ in range(2):
                by, moment = draw.choice(SIGNALS), draw.uniform(imported, seconds)
                process = start(folder, work)
                try:
                    process.communicate(timeout=moment)
                except subprocess.TimeoutExpired:
                    process.send_signal(by)
                    process.communicate()
                    ended.append((by.name, moment))
            made, names, running = finish(folder, work, start(folder, work))
        trial = Trial(name, seconds, ended, made == whole, sorted(names - usual) + running)
        sys.stderr.write(
            f"{name}: {', '.join(f'{by} after {moment:.1f} s' for by, moment in ended)}: {verdict(trial)}\n"
        )
        done.append(trial)
    return done


def verdict(trial: Trial) -> str:
    """What came of a trial, in words."""
    return ("the same" if trial.same else "ANOTHER result") + (f", LEFT {trial.left}" if trial.left else "")


def main() -> None:
    """Measure and print; exits 1 where a result differs or something is left over."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("works", nargs="*", metavar="WORK", default=list(WORKS), help=f"of {', '.join(WORKS)}")
    parser.add_argument("--trials", type=int, default=3, help="of each work, with two kills each (default: 3)")
    parser.add_argument("--seed", type=int, default=7, help="of the moments and signals (default: 7)")
    options = parser.parse_args()
    if strange := sorted(set(options.works) - set(WORKS)):
        parser.error(f"no work is called {strange[0]!r}; known: {', '.join(WORKS)}")
    draw = random.Random(options.seed)
    trials = [trial for name in options.works for trial in measure(name, options.trials, draw)]
    good = [trial for trial in trials if trial.same and not trial.left]
    table = Table("work", "undisturbed", "kills", "the same, nothing left", box=MARKDOWN)
    for name in options.works:
        own = [trial for trial in trials if trial.work == name]
        fine = sum(trial in good for trial in own)
        kills = sum(len(trial.ended) for trial in own)
        table.add_row(name, f"{own[0].seconds:.0f} s", str(kills), f"{fine} of {len(own)}")
    kills = sum(len(trial.ended) for trial in trials)
    survived = sum(len(trial.ended) for trial in good)
    figures = {"trials": [asdict(trial) for trial in trials], "kills": kills, "survived": survived}
    show(figures, options.json, table, f"{survived} of {kills} kills survived")
    sys.exit(int(len(good) < len(trials)))


if __name__ == "__main__":
    main()
