"""What a corpus of many passages takes: time, memory and disk of each step, and a straight line to 21 million.

    python benchmarks/scale.py [--data DIR] [--sizes 10000 100000 1000000] [--plaid 5000 10000] [--dense 5000 10000]
        [--sample 1000] [--json]

The passages are those of DIR (a data set's folder, or a bundled set's name: by default atlas) again and again, with
other names in each copy: every word of a title gets an ending of its own, in the texts too, so that the vocabulary
grows as it does in a real corpus. Each step runs in a process of its own, in an empty home:

- import: `hop data import` of a file of such passages with the dev questions of DIR
- first read: the data set is loaded for the first time, and its corpus kept on disk
- bm25 index, bm25 open: the index is built; corpus and index are opened again
- bm25 search: ten passages for each of up to 100 questions of DIR, one question at a time; the time is a question's
- plaid index, plaid open, plaid search: likewise with `index: plaid` and the embedded checkpoint, for --plaid's sizes
- dense index, ivf index and so on: likewise with `dense`, MiniLM, and `index: exact` or `ivf`, for --dense's sizes

With --sample no more passages than that are encoded for PLAID and dense retrieval, once: all others get the vectors of
one of these, each with a little noise of its own. What is left is the indexes' own work; encoding is linear, and
measured by benchmarks/retrieval.py.

Seconds are by the clock, CPU seconds those of the step's process, which other work on the machine lengthens less. The
peak is the resident set of the process as the system gives it, mapped files included; disk is what the step added. 21
million passages are about what the English Wikipedia has; what is printed for them is a least-squares line through the
sizes that were measured, not a measurement.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from processes import own_home, size, usage_of
from rich.box import MARKDOWN
from rich.table import Table

from hoptimizer.eval import DataSet, load
from hoptimizer.retrieval import DenseSettings, Passage, RetrieverSettings, build_retriever
from hoptimizer.retrieval.build import build_encoder
from hoptimizer.retrieval.encoders.windows import Each, Elsewhere, EncodedWindow
from hoptimizer.retrieval.options import RetrieverOptions
from reporting import benchmark_parser, show, user_mistakes

TARGET = 21_000_000
QUESTIONS = 100
K = 10
MB, GB = 1e6, 1e9
SAMPLE = "SCALE_SAMPLE"  # tells a step's process what --sample says
NOISE, NOISES = 0.3, 1 << 16  # the length of what is added to a vector of length 1, and how many of them there are
SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
BM25, PLAID = RetrieverSettings(name="bm25"), RetrieverSettings(index="plaid")
DENSE, IVF = DenseSettings(index="exact"), DenseSettings(index="ivf")


@dataclass(frozen=True)
class Cost:
    """What one step took.

    Attributes:
        step: its name.
        passages: of the corpus.
        seconds: of the step, without the start of its process; of a search, per question.
        cpu: CPU seconds of its process, with its start.
        peak: of its process, in bytes.
        disk: bytes that it added.
    """

    step: str
    passages: int
    seconds: float
    cpu: float
    peak: float
    disk: float


def renamed(data: DataSet) -> Iterator[Passage]:
    """The passages of a data set without end, with other names in each copy but the first."""
    names = {word for passage in data.corpus for word in re.findall(r"\b[A-Z]\w{2,}", passage.title)}
    name = re.compile(r"\b[A-Z]\w{2,}")
    for copy in count():
        ending = "".join(SYLLABLES[(copy // len(SYLLABLES) ** place) % len(SYLLABLES)] for place in range(2))

        def other(found: re.Match[str], ending: str = ending) -> str:
            return found[0] + ending if found[0] in names else found[0]

        for passage in data.corpus:
            if copy:
                title, text = (name.sub(other, words) for words in (passage.title, passage.text))
                yield Passage(f"{passage.id}-{copy}", title, text)
            else:
                yield passage


def make(data: DataSet, size: int, folder: Path) -> None:
    """Write what is imported: a file of passages, and one of questions in the format of NQ-open."""
    with (folder / "passages.jsonl").open("w", encoding="utf-8") as file:
        for p in islice(renamed(data), size):
            file.write(json.dumps({"id": p.id, "title": p.title, "text": p.text}, ensure_ascii=False) + "\n")
    questions = data.split("dev")[:QUESTIONS]
    lines = [json.dumps({"question": q.question, "answer": q.answers}, ensure_ascii=False) + "\n" for q in questions]
    (folder / "questions.jsonl").write_text("".join(lines), encoding="utf-8")


def import_all(folder: Path) -> float:
    """Import what was made."""
    from hoptimizer.eval.datasets.importers import import_published

    start = time.perf_counter()
    questions = {"dev": folder / "questions.jsonl"}
    import_published("nq", questions, folder / "data", corpus=folder / "passages.jsonl")
    return time.perf_counter() - start


def read(folder: Path) -> float:
    """Load the data set."""
    start = time.perf_counter()
    load(str(folder / "data"))
    return time.perf_counter() - start


def index(settings: RetrieverOptions, folder: Path) -> float:
    """Build a retriever's index, or open the one that is there."""
    data = load(str(folder / "data"))
    sample = int(os.environ[SAMPLE])
    elsewhere = vectors_of(data.corpus.texts[:sample]) if sample and settings is not BM25 else None
    start = time.perf_counter()
    build_retriever(settings, data.corpus, progress=report, elsewhere=elsewhere)
    return time.perf_counter() - start


def vectors_of(texts: Sequence[str]) -> Elsewhere:
    """Gives passages their vectors if they are among these, and else the vectors of one of these with noise."""

    @contextmanager
    def elsewhere(settings: RetrieverOptions, digest: str, passages: int) -> Iterator[Each]:
        encoder, _ = build_encoder(settings)
        own = [
            (texts[place], found)
            for places, batch in encoder.passages(texts)
            for place, found in zip(places, batch, strict=True)
        ]
        known = dict(own)
        longest = max(map(len, known.values()))
        noise = NOISE * torch.randn(NOISES + longest, encoder.dim) / encoder.dim**0.5

        def vectors(text: str) -> torch.Tensor:
            if text in known:
                return known[text]
            number = zlib.crc32(text.encode())
            like, start = own[number % len(own)][1].float(), number % NOISES
            added = noise[start] if like.dim() == 1 else noise[start : start + len(like)]
            return torch.nn.functional.normalize(like + added, dim=-1).half()

        def each(windows: Iterable[list[str]]) -> Iterator[EncodedWindow[Any]]:
            together = torch.stack if isinstance(settings, DenseSettings) else list
            for window in windows:
                rows = [list(range(start, min(start + 32, len(window)))) for start in range(0, len(window), 32)]
                yield EncodedWindow((some, together([vectors(window[row]) for row in some])) for some in rows)

        yield each

    return elsewhere


def reopen(settings: RetrieverOptions, folder: Path) -> float:
    """Load the data set and open its index."""
    start = time.perf_counter()
    build_retriever(settings, load(str(folder / "data")).corpus)
    return time.perf_counter() - start


def search(settings: RetrieverOptions, folder: Path) -> float:
    """Search with each question; seconds per question."""
    data = load(str(folder / "data"))
    retriever = build_retriever(settings, data.corpus)
    questions = [question.question for question in data.split("dev")]
    retriever.search(questions[:1], K)
    start = time.perf_counter()
    for question in questions:
        retriever.search([question], K)
    return (time.perf_counter() - start) / len(questions)


def steps(settings: RetrieverOptions, name: str) -> dict[str, Callable[[Path], float]]:
    """The steps of a retriever."""
    return {
        f"{name} index": lambda folder: index(settings, folder),
        f"{name} open": lambda folder: reopen(settings, folder),
        f"{name} search": lambda folder: search(settings, folder),
    }


CORPUS_STEPS: dict[str, Callable[[Path], float]] = {"import": import_all, "first read": read}
BM25_STEPS, PLAID_STEPS = steps(BM25, "bm25"), steps(PLAID, "plaid")
DENSE_STEPS = steps(DENSE, "dense") | steps(IVF, "ivf")
STEPS = CORPUS_STEPS | BM25_STEPS | PLAID_STEPS | DENSE_STEPS


def report(done: int, total: int) -> None:
    """Show how far an index is."""
    sys.stderr.write(f"\rencoding {done}/{total} " + ("\n" if done == total else ""))


def measure(step: str, passages: int, folder: Path, sample: int) -> Cost:
    """Run a step in a process of its own.

    Raises:
        UserError: it failed.
    """
    sys.stderr.write(f"{passages} passages: {step}\n")
    before = size(folder)
    process = subprocess.Popen(
        [sys.executable, __file__, "--step", step, "--folder", str(folder)],
        env=os.environ | {"HOPTIMIZER_HOME": str(folder / "home"), SAMPLE: str(sample)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    output = process.stdout.read()
    usage = usage_of(process, f"the step {step!r}")
    return Cost(step, passages, float(output), usage.cpu, usage.peak, size(folder) - before)


def measure_size(data: DataSet, passages: int, wanted: list[str], sample: int) -> Iterator[Cost]:
    """All costs of the steps that are wanted, for a corpus of one size; the corpus is imported and read anyway."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        own_home(folder)
        make(data, passages, folder)
        for step in (*CORPUS_STEPS, *(step for step in wanted if step not in CORPUS_STEPS)):
            cost = measure(step, passages, folder, sample)
            if step in wanted:
                yield cost


def line(costs: list[Cost], step: str) -> Cost:
    """The least-squares line through the costs of a step, at the target."""
    sizes = [cost.passages for cost in costs]
    values = ([getattr(cost, key) for cost in costs] for key in ("seconds", "cpu", "peak", "disk"))
    return Cost(step, TARGET, *(float(np.polyval(np.polyfit(sizes, value, 1), TARGET)) for value in values))


def main() -> None:
    """Measure and print."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--data", default="atlas", help="the data set whose passages are repeated")
    parser.add_argument("--sizes", type=int, nargs="*", default=[10_000, 100_000, 1_000_000], help="passages, for BM25")
    parser.add_argument("--plaid", type=int, nargs="*", default=[], help="passages, for PLAID")
    parser.add_argument("--dense", type=int, nargs="*", default=[], help="passages, for dense retrieval")
    parser.add_argument("--sample", type=int, default=0, help="passages to encode (default: all)")
    parser.add_argument("--step", choices=[*STEPS], help="used by itself")
    parser.add_argument("--folder", type=Path, help="used by itself")
    options = parser.parse_args()
    with user_mistakes():
        if options.step:
            return print(STEPS[options.step](options.folder))
        data = load(options.data)
        costs = [
            cost
            for sizes, wanted in (
                (options.sizes, [*CORPUS_STEPS, *BM25_STEPS]),
                (options.plaid, [*PLAID_STEPS]),
                (options.dense, [*DENSE_STEPS]),
            )
            for passages in sizes
            for cost in measure_size(data, passages, wanted, options.sample)
        ]
    by_step = {step: [cost for cost in costs if cost.step == step] for step in dict.fromkeys(c.step for c in costs)}
    lines = [line(of_step, step) for step, of_step in by_step.items() if len(of_step) > 1]
    table = Table("passages", "step", "seconds", "CPU seconds", "peak, GB", "disk, MB", box=MARKDOWN)
    for cost in sorted(costs, key=lambda cost: cost.passages) + lines:
        shown = f"{cost.passages:,}" + (" (line)" if cost in lines else "")
        times = (f"{cost.seconds:.3g}", f"{cost.cpu:.3g}")
        table.add_row(shown, cost.step, *times, f"{cost.peak / GB:.2f}", f"{cost.disk / MB:.0f}")
    show({"costs": [asdict(cost) for cost in costs], "lines": [asdict(cost) for cost in lines]}, options.json, table)


if __name__ == "__main__":
    main()
