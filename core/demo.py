"""The main job on the embedded defaults: score, compile, score again, compare."""

import math
import time
from collections.abc import Sequence
from typing import Any

from hoptimizer.common.progress import Report, in_notebook
from hoptimizer.compiling import compile_variant
from hoptimizer.config import Config, load_config
from hoptimizer.eval import statistics
from hoptimizer.eval.blind_guess import blind_scores
from hoptimizer.eval.datasets.dataset import load
from hoptimizer.variants import Variant, evaluate_variant

SPLIT = "test"

# Sized so that the whole demo takes minutes on two cores, with the smallest model.
COMMON = (
    "data.name=atlas",
    "data.dev=12",
    "data.test=60",
    "lm.default.model=local/smollm2-135m-instruct",
    "lm.default.max_tokens=32",
)
SETTINGS = {
    "direct": (),
    "rag": ("retriever.k=2",),
    "ircot": ("retriever.k=2", "program.max_steps=2", "program.max_passages=4", "program.reader=direct"),
    "ra_isf": ("retriever.k=2", "program.max_depth=1", "program.max_subquestions=2"),
    "efficient_rag": ("retriever.k=2",),
}
# The optimizers of a program, each going on where the one before it ended. rag's tries both prompt formats; the others
# keep the model's own, for the sake of the minutes.
STAGES: dict[str, list[Sequence[str]]] = {
    "direct": [],
    "rag": [("optimizer=bootstrap_few_shot",)],
    # Demonstrations may make a small model worse: several draws of them, and none at all, are scored on dev.
    "ircot": [
        (
            "optimizer=bootstrap_random_search",
            "optimizer.num_candidate_programs=1",
            "optimizer.max_bootstrapped_demos=1",
            "optimizer.max_labeled_demos=2",
            "optimizer.prompt_formats=[]",
            "data.dev=6",
        )
    ],
    "ra_isf": [
        ("optimizer=labeled_few_shot", "optimizer.prompt_formats=[]", "data.dev=2"),
        ("optimizer=distill", "optimizer.questions=40", "optimizer.epochs=2"),
    ],
    "efficient_rag": [
        ("optimizer=labeled_few_shot", "optimizer.prompt_formats=[]", "data.dev=2"),
        ("optimizer=train_tagger", "data.train=80", "optimizer.negatives=2", "optimizer.epochs=3"),
    ],
}


def demo_config(program: str, overrides: Sequence[str] = ()) -> Config:
    """The config by which the demo compiles or scores a program."""
    return load_config(None, [*COMMON, f"program.name={program}", *SETTINGS[program], *overrides])


def run_demo(overrides: Sequence[str] = (), report: Report = in_notebook) -> dict[str, Any]:
    """Score ``direct``, and the other programs before and after compiling them, on atlas' test split.

    Args:
        overrides: ``key=value`` arguments for every config, e.g. where runs are tracked.
        report: told about progress.

    Returns:
        what ``hop demo --json`` prints: the scores of a ``blind_guess``, the ``variants`` with their metrics, the
        paired ``comparisons`` of compiled with uncompiled, ``parse_failures`` and ``seconds``.
    """
    start = time.perf_counter()
    variants, comparisons = [], []
    for name, stages in STAGES.items():
        before = evaluate_variant(demo_config(name, overrides), split=SPLIT, report=report)
        variants.append(before)
        if stages:
            after = _compile(name, overrides, report)
            variants.append(after)
            comparisons.append(_compared(before, after))
    data = load(demo_config("direct", overrides).data)
    blind = blind_scores(data.split("train"), data.split(SPLIT))
    failures = sum(variant.after.metrics["parse_failures"] for variant in variants)
    return {
        "blind_guess": {name: score.mean for name, score in blind.items()},
        "variants": [_row(variant) for variant in variants],
        "comparisons": comparisons,
        "parse_failures": int(failures),
        "seconds": time.perf_counter() - start,
    }


def _compile(name: str, overrides: Sequence[str], report: Report) -> Variant:
    """Compile a program in all its stages; the last is scored on the split that is shown, those before it on dev."""
    *earlier, last = STAGES[name]
    run_id = None
    for stage in earlier:
        config = demo_config(name, [*stage, *overrides])
        run_id = compile_variant(config, run_id=run_id, score_before=False, report=report).run_id
    config = demo_config(name, [*last, *overrides])
    return compile_variant(config, split=SPLIT, run_id=run_id, score_before=False, report=report)


def _row(variant: Variant) -> dict[str, Any]:
    return {
        "run_id": variant.run_id,
        "program": variant.config.program.name,
        "compiled": variant.compiled,
        "n": len(variant.after.rows),
        "metrics": variant.after.metrics,
    }


def _compared(before: Variant, after: Variant) -> dict[str, Any]:
    metric = after.config.objective.name
    scores = [[row.scores.get(metric, math.nan) for row in variant.after.rows] for variant in (before, after)]
    paired = statistics.compare(*statistics.known_pairs(*scores), seed=after.config.seed)
    return {
        "program": after.config.program.name,
        "metric": metric,
        "before": paired.before.mean,
        "after": paired.after.mean,
        "difference": paired.difference,
        "interval": [paired.low, paired.high],
    }
