"""The plots of a comparison."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hoptimizer.comparison.result import Comparison

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def drawn(compared: Comparison) -> Iterator[tuple[str, str, "Figure"]]:
    """Each plot of a comparison: its file's name without an ending, what it shows, and itself.

    Args:
        compared: the comparison.
    """
    from hoptimizer.eval.display import plots  # draws with matplotlib, which takes a second to import

    metric, names = compared.metric, compared.names
    named = dict(zip(names, compared.variants, strict=True))
    yield "scores", "Scores", plots.bars({name: variant.estimates for name, variant in named.items()})
    if compared.differences:
        found = dict(zip(names[1:], compared.differences, strict=True))
        yield "differences", f"Differences from {names[0]}", plots.forest(found, metric, names[0])
    points = {
        name: (variant.estimates[metric], variant.estimates["lm_calls"].mean)
        for name, variant in named.items()
        if metric in variant.estimates and "lm_calls" in variant.estimates
    }
    if points:
        yield "cost", f"{metric} over language model calls", plots.cost(points, metric)
