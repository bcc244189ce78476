"""Runs the benchmarks of speed and writes what they print as a page: ``make bench DATA=DIR`` makes docs/benchmarks.md.

    python benchmarks/all.py --data DIR [--out docs/benchmarks.md] [--vllm PYTHON] [--llama PYTHON --gguf FILE]

DIR is what ``benchmarks/retrieval.py`` reads; the others name engines as ``benchmarks/engine_peers.py`` does. It takes
nearly two hours, in which nothing else should run. What each printed is kept in ``.benchmarks``, and the page written
anew: where one fails or is ended, the same command goes on with it, and until then the page names those that it lacks.
Its parts say when they were measured; ``make clean`` forgets them.
"""

import argparse
import datetime
import hashlib
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from hoptimizer.common.errors import UserError
from hoptimizer.common.paths import write_whole
from hoptimizer.models.engine.limits import bf16_flops, read_bytes
from reporting import user_mistakes

FOLDER = Path(__file__).parent
KEPT = Path(".benchmarks")
# The exit code of a benchmark whose limit was missed: what it prints says so.
MISSED = 1
HEAD = """# Benchmarks

What the benchmarks of speed printed, one after the other, with nothing else on the machine; `make bench DATA=DIR` makes
this page anew. Ratios count, since seconds are this machine's: {machine}.
"""
# Each with what it is compared with, or the limit that it is held to.
BENCHMARKS = {
    "startup.py": "How long commands take to start, and what they hold (aims: in the table).",
    "seconds_by_part.py": "Where the seconds of the demo go: the part of the package that threads work for, and whose "
    "code runs there.",
    "growth.py": "Whether anything grows faster than what it grows with (limit: a power of 1).",
    "http_serving.py": "`hop serve` under load, beside the limit that its language model sets, and MLflow's server.",
    "ra_isf_latency.py": "RA-ISF's chains, by the branches that a question can take (limit: 1.15).",
    "traces.py": "What traces in MLflow take of a run (aim: 10% at most).",
    "store_share.py": "What MLflow takes of an evaluation that asks a server (aim: 5% of 10,000 questions).",
    "bootstrap.py": "Bootstrapping demonstrations beside `dspy.BootstrapFewShot` (aim: 8 times as fast).",
    "engine.py": "The in-process engine by itself: what batching, reuse of prefixes and drafts bring, what grammars "
    "take, and when a new request has its first token.",
    "memory.py demo eval eval-0.5b": "The most memory that the demo and evaluations take.",
    "search_peers.py": "Exact search among token vectors beside numpy and, where it is installed, maxsim-cpu "
    "(limit: the products alone).",
    "retrieval.py": "Recall; PLAID beside the exact index; encoding beside colbert-ai's own (aim: 5 times as fast).",
    "training.py": "Fine-tuning beside what the products of its forward and backward passes take at least (aim: 60%).",
    "chains.py": "Programs on a server that takes 100 ms a call: the time of a question over that of its longest chain "
    "of calls (aim: 1.1 at most), how busy 64 questions keep 32 places (aim: 95%), and other loops.",
    "engine_peers.py --model smollm2-135m-instruct": "The in-process engine beside its peers, with a model of 135M "
    "parameters: tokens written per second, by requests in flight. The aim is to be first from 4 in flight on.",
    "engine_peers.py": "The same with 0.5B parameters.",
}
# Beside the larger model alone: a GGUF file is of one model.
WITH_GGUF = "engine_peers.py"


def machine() -> str:
    """What the figures were measured on."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    limits = f"{bf16_flops() / 1e9:.0f} GFLOP/s in bf16, {read_bytes() / 1e9:.0f} GB/s of memory"
    return f"{os.cpu_count()} cores ({(names or [platform.machine()])[0]}), torch {version('torch')}, {limits}"


@dataclass(frozen=True)
class Benchmark:
    """A benchmark with all its arguments.

    Attributes:
        shown: its file and the arguments that do not depend on the machine.
        about: what it is compared with, or the limit that it is held to.
        more: what names data and engines of this machine.
    """

    shown: str
    about: str
    more: tuple[str, ...]

    @property
    def words(self) -> list[str]:
        """Its file and all arguments."""
        return [*self.shown.split(), *self.more]

    @property
    def kept(self) -> Path:
        """Where what it printed is kept."""
        name, *arguments = self.words
        # By all its arguments: what was printed without an engine does not stand for what is asked with one.
        return KEPT / f"{name}-{hashlib.sha256(repr(arguments).encode()).hexdigest()[:12]}.txt"

    def run(self) -> None:
        """Run it, and keep what it prints.

        Raises:
            UserError: it failed.
        """
        sys.stderr.write(f"{self.shown}\n")
        name, *arguments = self.words
        command = [sys.executable, str(FOLDER / name), *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode and not (done.returncode == MISSED and done.stdout):
            raise UserError(
                f"{name} ended with exit code {done.returncode}, see above; the same command goes on with it"
            )
        KEPT.mkdir(parents=True, exist_ok=True)
        write_whole(self.kept, done.stdout)

    @property
    def part(self) -> str:
        """Its part of the page."""
        head = f"## `python benchmarks/{self.shown}`\n\n{self.about}\n\n"
        if not self.kept.exists():
            return f"{head}Not measured yet.\n"
        date = datetime.datetime.fromtimestamp(self.kept.stat().st_mtime, datetime.UTC).date()
        lines = self.kept.read_text(encoding="utf-8").rstrip().splitlines()
        return "\n".join([f"{head}```text", *(line.rstrip() for line in lines), "```", "", f"{date}.", ""])


def main() -> None:
    """Run all and print the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of the data sets' folders")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks.md"), help="(default: docs/benchmarks.md)")
    for option, metavar in (("--vllm", "PYTHON"), ("--llama", "PYTHON"), ("--gguf", "FILE")):
        parser.add_argument(option, metavar=metavar)
    options = parser.parse_args()
    vllm = ("--vllm", options.vllm) if options.vllm else ()
    llama = ("--llama", options.llama, "--gguf", options.gguf) if options.llama else ()
    named = {"retrieval.py": ("--data", options.data), "engine_peers.py": vllm}
    benchmarks = []
    for shown, about in BENCHMARKS.items():
        more = named.get(shown.split()[0], ()) + (llama if shown == WITH_GGUF else ())
        benchmarks.append(Benchmark(shown, about, more))
    head = HEAD.format(machine=machine())
    with user_mistakes():
        for benchmark in benchmarks:
            if not benchmark.kept.exists():
                benchmark.run()
            write_whole(options.out, "\n".join([head, *(one.part for one in benchmarks)]))


if __name__ == "__main__":
    main()
