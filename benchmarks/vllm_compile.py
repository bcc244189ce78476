"""One compile of IRCoT on the in-process engine and on vLLM, with the same weights: paired metrics, throughput of both.

    python benchmarks/vllm_compile.py [--vllm PYTHON | --url URL] [--model NAME] [--train 8] [--dev 4] [--test 12]
        [--max-tokens 48] [--json] [-- ARGS of vLLM]

Each compile has a home of its own, so that no answer comes from the other's cache. The engine goes first, and leaves
memory before vLLM starts (``hop models serve``), whose start is not timed. Throughput is what the whole compile and its
two scorings wrote, by its seconds: programs, searches and waiting included. With ``--url``, a server that serves the
model under its name already is asked. Answers are greedy; the two engines round otherwise, so that where two
tokens are nearly as likely they can part.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from processes import own_home, own_store
from rich.table import Table
from vllm_server import serving_vllm

from hoptimizer import compile_variant, make_config
from hoptimizer.eval import compare
from hoptimizer.models.engine.engine import release
from hoptimizer.models.lm import chosen_format
from hoptimizer.models.settings import LMSettings
from hoptimizer.variants import Variant
from reporting import benchmark_parser, load, percent, show, user_mistakes

METRICS = ("f1", "recall")


def config(options: argparse.Namespace, lm: dict[str, Any], folder: Path) -> Any:  # noqa: ANN401 - a Config
    """What is compiled."""
    return make_config(
        {
            "data": {"name": "atlas", "train": options.train, "dev": options.dev, "test": options.test},
            "program": "ircot",
            "retriever": {"name": "bm25", "k": 2},
            "lm": {"default": {**lm, "max_tokens": options.max_tokens}},
            "optimizer": {"name": "bootstrap_few_shot", "max_bootstrapped_demos": 2, "max_labeled_demos": 2},
            "tracking": own_store(folder),
            "seed": 7,
        }
    )


def compiled(options: argparse.Namespace, lm: dict[str, Any]) -> tuple[Variant, float]:
    """The variant, and the seconds that it took; in a home of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder, before = Path(name), os.environ.get("HOPTIMIZER_HOME")
        os.environ["HOPTIMIZER_HOME"] = str(own_home(folder))
        try:
            start = time.perf_counter()
            variant = compile_variant(config(options, lm, folder), split="test")
            return variant, time.perf_counter() - start
        finally:
            os.environ.pop("HOPTIMIZER_HOME")
            if before is not None:
                os.environ["HOPTIMIZER_HOME"] = before


def figures(variant: Variant, seconds: float) -> dict[str, Any]:
    """What one engine did."""
    assert variant.before is not None
    rows = [*variant.before.rows, *variant.after.rows]
    calls = sum(step.calls for row in rows for step in row.steps)
    spent = variant.costs.get("spent", {})
    metrics = variant.after.metrics
    return {
        "seconds": seconds,
        "calls_of_scoring": calls,
        "calls_of_search": spent.get("calls"),
        "failures": sum(bool(step.failure) for row in rows for step in row.steps),
        "tokens_of_search_per_second": spent.get("completion_tokens", 0) / spent["seconds"] if spent else None,
        "calls_per_second": (calls + spent.get("calls", 0)) / seconds,
        "metrics": {name: metrics[name] for name in METRICS},
    }


def main() -> None:
    """Measure and print."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--vllm", metavar="PYTHON", help="of an environment with vLLM; by default HOP_VLLM_PYTHON")
    parser.add_argument("--url", help="of a server that serves the model under its name, in place of one of our own")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a name of the weights store")
    for name, size in (("train", 8), ("dev", 4), ("test", 12)):
        parser.add_argument(f"--{name}", type=int, default=size, help=f"questions (default: {size})")
    parser.add_argument("--max-tokens", type=int, default=48, help="of an answer (default: 48)")
    parser.add_argument("extra", nargs="*", metavar="ARGS", help="of vLLM, after --")
    options = parser.parse_args()
    with user_mistakes():
        local = {"model": f"local/{options.model}"}
        ours = compiled(options, local)
        release(local["model"])
        if options.url:
            served = {"model": f"openai/{options.model}", "api_base": options.url, "api_key": "none"}
            served["prompt_format"] = chosen_format(LMSettings.model_validate(local))
            theirs = compiled(options, served)
        else:
            with serving_vllm(options.model, options.vllm, options.extra) as told:
                theirs = compiled(options, next(iter(told["lm"].values()))["default"])
    sides = {"in process": figures(*ours), "vLLM": figures(*theirs)}
    ends = [variant.after.rows for variant, _ in (ours, theirs)]
    starts = [variant.before.rows for variant, _ in (ours, theirs) if variant.before]
    same = {
        what: sum(one.answer == other.answer for one, other in zip(*rows, strict=True)) / len(rows[0])
        for what, rows in (("before", starts), ("after", ends))
    }
    pairs = {}
    for name in METRICS:
        ours_scored, theirs_scored = ([row.scores[name] for row in rows] for rows in ends)
        found = compare(ours_scored, theirs_scored, seed=7)
        pairs[name] = {"difference": found.difference, "low": found.low, "high": found.high, "p": found.p}
    sizes = {name: getattr(options, name) for name in ("model", "train", "dev", "test", "max_tokens")}
    table = Table("", *sides, title=f"{sizes}, load {load():.1f}")
    for key in next(iter(sides.values())):
        table.add_row(key, *(str(side[key]) for side in sides.values()))
    lines = [
        f"{name}: vLLM less in process {percent(pair['difference'], pair['low'], pair['high'])}"
        for name, pair in pairs.items()
    ]
    lines.append(f"same answers: {same}")
    show(
        {**sizes, "load": load(), "engines": sides, "paired": pairs, "same_answers": same}, options.json, table, *lines
    )


if __name__ == "__main__":
    main()
