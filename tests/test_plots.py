import io
import itertools

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from hoptimizer.eval.display.plots import bars, cost, curve, forest
from hoptimizer.eval.statistics import compare, mean, over_seeds

NAMES = [
    "direct",
    "rag",
    "ircot + bootstrap_random_search on smollm2-135m with $5 and a name that goes on and on",
    *(f"variant {number}" for number in range(9)),
]


def drawn(figure: Figure) -> Image.Image:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return Image.open(buffer)


def scores(number: int) -> list[float]:
    return [((question * 7 + number) % 10) / 10 for question in range(20)]


@pytest.mark.parametrize("count", [1, 2, 12])
@pytest.mark.filterwarnings("error")
def test_figures_show_up_to_twelve_variants(count: int):
    names = NAMES[:count]
    estimates = {name: mean(scores(number)) for number, name in enumerate(names)}
    figures = [
        bars({name: {"em": estimate, "f1": estimate} for name, estimate in estimates.items()}),
        forest({name: compare(scores(0), scores(number)) for number, name in enumerate(names)}, "f1", "direct"),
        cost({name: (estimate, 1.0 + number) for number, (name, estimate) in enumerate(estimates.items())}),
    ]
    for figure in figures:
        image = drawn(figure)
        assert image.width > 800
        assert np.asarray(image.convert("L")).std() > 5


def test_variants_may_lack_a_metric_and_all_scores_may_be_zero():
    zero = mean([0.0, 0.0])
    figure = bars({"direct": {"em": zero}, "rag": {"em": zero, "recall": zero, "f1": zero, "passages": zero}})
    titles = [panel.get_title(loc="left") for panel in figure.axes if panel.get_visible()]
    assert titles == ["em", "recall", "f1", "passages"]
    drawn(figure)
    drawn(cost({"direct": (zero, 0.0)}))
    drawn(forest({"rag": compare([0.0, 0.0], [0.0, 0.0])}, "em", "direct"))


def test_labels_of_equal_variants_do_not_cover_each_other():
    figure = cost({name: (mean([0.5, 0.5]), 2.0) for name in NAMES})
    drawn(figure)
    boxes = sorted((Text.get_window_extent(label) for label in figure.axes[0].texts), key=lambda box: box.y0)
    assert len(boxes) == 12
    assert all(low.y1 <= high.y0 for low, high in itertools.pairwise(boxes))


@pytest.mark.parametrize("count", [0, 1, 12])
@pytest.mark.filterwarnings("error")
def test_a_curve_shows_every_point_with_its_error_bar(count: int):
    points = {depth: over_seeds(scores(depth)[:3]) for depth in (4, 0, 2)}
    [panel] = (figure := curve({name: list(points.items()) for name in NAMES[:count]}, "program.max_depth", "f1")).axes
    drawn(figure)
    low, high = panel.get_ylim()
    assert all(low < estimate.high < high for estimate in points.values() if count)
    assert len(panel.containers) == count
    for bars_of in panel.containers:
        line, _, (stems,) = bars_of
        assert list(line.get_xdata()) == [0, 2, 4]
        ends = [segment[:, 1] for segment in stems.get_segments()]
        np.testing.assert_allclose(ends, [[points[x].low, points[x].high] for x in (0, 2, 4)])
    assert (panel.get_legend() is not None) == (count > 1)
