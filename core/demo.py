"""The main job on the embedded defaults: score, compile, score again, compare."""

import time
from collections.abc import Sequence
from typing import Any

from hoptimizer.config import Config, load_config
from hoptimizer.eval import statistics
from hoptimizer.eval.runner import Evaluation
from hoptimizer.report import Report, silent
from hoptimizer.variants import Variant, compile_variant, evaluate_variant

SPLIT = "test"

UNCOMPILED = ("direct",)
COMPILED = ("rag", "ircot")

# Sized so that the whole demo takes minutes on two cores; the README shows a compile at full size.
COMMON = ("data.name=atlas", "data.dev=20", "lm.default.max_tokens=48")
SETTINGS = {
    "direct": (),
    "rag": ("retriever.k=2", "optimizer=bootstrap_few_shot"),
    "ircot": (
        "retriever.k=2",
        "program.max_steps=4",
        "program.max_passages=4",
        "program.reader=direct",
        "optimizer=labeled_few_shot",
    ),
}


def demo_config(program: str, overrides: Sequence[str] = ()) -> Config:
    """The config by which the demo compiles or scores a program."""
    return load_config(None, [*COMMON, f"program.name={program}", *SETTINGS[program], *overrides])


def run_demo(overrides: Sequence[str] = (), report: Report = silent) -> dict[str, Any]:
    """Score ``direct``, and ``rag`` and ``ircot`` before and after compiling them, on the test split of atlas.

    Args:
        overrides: ``key=value`` arguments for every config, e.g. where runs are tracked.
        report: told about progress.

    Returns:
        what ``hop demo --json`` prints: the ``variants`` with their metrics, the paired ``comparisons`` of compiled
        with uncompiled, ``parse_failures`` and ``seconds``.
    """
    start = time.perf_counter()
    variants = [evaluate_variant(demo_config(name, overrides), split=SPLIT, report=report) for name in UNCOMPILED]
    for name in COMPILED:
        config = demo_config(name, overrides)
        variants.append(evaluate_variant(config, split=SPLIT, report=report))
        variants.append(compile_variant(config, split=SPLIT, report=report))
    failures = sum(variant.after.metrics["parse_failures"] for variant in variants)
    return {
        "variants": [_row(variant) for variant in variants],
        "comparisons": [_compared(variant, variant.before) for variant in variants if variant.before],
        "parse_failures": int(failures),
        "seconds": time.perf_counter() - start,
    }


def _row(variant: Variant) -> dict[str, Any]:
    return {
        "run_id": variant.run_id,
        "program": variant.config.program.name,
        "compiled": variant.compiled,
        "n": len(variant.after.rows),
        "metrics": variant.after.metrics,
    }


def _compared(variant: Variant, before: Evaluation) -> dict[str, Any]:
    metric = variant.config.metric
    paired = statistics.compare(before.scores(metric), variant.after.scores(metric), seed=variant.config.seed)
    return {
        "program": variant.config.program.name,
        "metric": metric,
        "before": paired.before.mean,
        "after": paired.after.mean,
        "difference": paired.difference,
        "interval": [paired.low, paired.high],
    }
