"""Figures that lay variants side by side. Each function takes plain data and returns a matplotlib figure.

Colours are those of Okabe and Ito, which colour-blind readers can tell apart; whatever a colour says, a shape or a
position says too.
"""

import functools
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ParamSpec

from hoptimizer.eval.statistics import Difference, Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")

BLUE, LIGHT_BLUE, VERMILION, GREY, INK = "#0072B2", "#B3D3E8", "#D55E00", "#8A8A8A", "#222222"
PANELS_A_ROW = 3
_LABEL_WIDTH = 34

_INTERVAL = "mean and 95% bootstrap interval"

# The lines of a curve take colours and markers in turn; together these tell 56 lines apart.
_COLORS = (BLUE, VERMILION, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", INK)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": "#BBBBBB",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.8,
}


def _styled(draw: "Callable[P, Figure]") -> "Callable[P, Figure]":
    """Draw in this module's style, which matplotlib's artists take on when they are made."""

    @functools.wraps(draw)
    def styled(*args: P.args, **kwargs: P.kwargs) -> "Figure":
        import matplotlib as mpl  # imported here: half a second that only figures need

        with mpl.rc_context(_STYLE):
            return draw(*args, **kwargs)

    return styled


@_styled
def bars(scores: Mapping[str, Mapping[str, Estimate]], note: str = _INTERVAL) -> "Figure":
    """A panel per metric, with a bar and an interval for each variant.

    Args:
        scores: estimates by variant, then by metric, in the order of display; variants may lack a metric.
        note: says what the intervals are.
    """
    variants = list(scores)
    metrics = list(dict.fromkeys(name for row in scores.values() for name in row))
    columns = max(1, min(PANELS_A_ROW, len(metrics)))
    rows = max(1, -(-len(metrics) // columns))
    figure, panels = _figure(rows, columns, width=2.4 + 2.4 * columns, height=rows * (0.8 + 0.36 * len(variants)))
    for panel, name in zip(panels, metrics, strict=False):
        shown = [(place, scores[v][name]) for place, v in enumerate(variants) if name in scores[v]]
        for place, estimate in shown:
            panel.barh(place, estimate.mean, height=0.62, color=LIGHT_BLUE, linewidth=0)
            panel.plot([estimate.low, estimate.high], [place, place], color=BLUE, linewidth=1.8)
            panel.plot(estimate.mean, place, "o", color=BLUE, markersize=4)
            panel.annotate(
                _number(estimate.mean), (max(estimate.high, 0), place), (5, 0), textcoords="offset points", va="center"
            )
        low = min(0.0, 0.0, *(estimate.low for _, estimate in shown))  # an objective can be negative
        top = max(0.0, 0.0, *(estimate.high for _, estimate in shown))
        panel.set_xlim(1.06 * low, top + 0.3 * (top - low) or 1.0)  # room for the number
        panel.set_title(name)
        panel.grid(axis="x")
        _name_rows(panel, variants)
    for panel in panels[len(metrics) :]:
        panel.set_visible(False)
    for number, panel in enumerate(panels):
        panel.tick_params(labelleft=number % columns == 0)
    _note(figure, note)
    return figure


@_styled
def forest(differences: Mapping[str, Difference], metric: str, baseline: str) -> "Figure":
    """Paired differences to a baseline with 95% intervals.

    A filled disc is a variant that is better than the baseline, a filled square one that is worse; the interval of an
    open grey disc holds zero.

    Args:
        differences: differences by variant, in the order of display.
        metric: the metric that differs.
        baseline: the variant that the others are compared with.
    """
    figure, (panel,) = _figure(1, 1, width=6.6, height=1.15 + 0.36 * len(differences))
    panel.axvline(0, color=INK, linewidth=0.9)
    for place, difference in enumerate(differences.values()):
        color, marker, face = _verdict(difference)
        panel.plot([difference.low, difference.high], [place, place], color=color, linewidth=1.8)
        panel.plot(difference.difference, place, marker, color=color, markerfacecolor=face, markersize=6.5)
        panel.annotate(
            f"{difference.difference:+.3f}  [{difference.low:+.3f}, {difference.high:+.3f}]".replace(
                "-", "\N{MINUS SIGN}"
            ),
            (1.02, place),
            xycoords=panel.get_yaxis_transform(),
            va="center",
            color=color if face != "white" else "#555555",
        )
    reach = max((abs(end) for d in differences.values() for end in (d.low, d.high)), default=0.0)
    panel.set_xlim(-1.08 * reach or -1.0, 1.08 * reach or 1.0)
    panel.grid(axis="x")
    panel.set_title(f"{metric}: difference to {_label(baseline, 48)}")
    _name_rows(panel, list(differences))
    questions = sorted({difference.n for difference in differences.values()})
    span = "–".join(str(n) for n in dict.fromkeys((questions[0], questions[-1]))) if questions else "0"
    _note(figure, f"paired over {span} questions, 95% bootstrap interval")
    return figure


@_styled
def cost(points: Mapping[str, tuple[Estimate, float]], metric: str = "f1") -> "Figure":
    """A metric over the language model calls that a question takes, with a point for each variant.

    Args:
        points: for each variant the metric's estimate and the mean number of calls per question.
        metric: the metric's name.
    """
    figure, (panel,) = _figure(1, 1, width=7.2, height=max(3.6, 0.9 + 0.36 * len(points)))
    low = 1.06 * min(0.0, 0.0, *(estimate.low for estimate, _ in points.values()))
    high = 1.06 * max(0.0, 0.0, *(estimate.high for estimate, _ in points.values())) or 1.0
    calls = max((calls for _, calls in points.values()), default=0.0) or 1.0
    panel.set_xlim(0, 1.06 * calls)
    panel.set_ylim(low, high)
    ranked = sorted(points, key=lambda variant: points[variant][0].mean)
    # Labels stand in a column beside the panel, in the order of the points' heights, so that none covers another.
    places = _spread(
        [(points[variant][0].mean - low) / (high - low) for variant in ranked], gap=min(0.085, 1 / max(1, len(ranked)))
    )
    for variant, place in zip(ranked, places, strict=True):
        estimate, x = points[variant]
        panel.plot([x, x], [estimate.low, estimate.high], color=BLUE, linewidth=1.4, alpha=0.6)
        panel.plot(x, estimate.mean, "o", color=BLUE, markersize=6)
        panel.annotate(
            f"{_label(variant)}  {_number(estimate.mean)}",
            (x, estimate.mean),
            (1.03, place),
            textcoords="axes fraction",
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": "#B8B8B8", "linewidth": 0.7, "relpos": (0, 0.5), "shrinkB": 4},
        )
    panel.grid()
    panel.set_xlabel("language model calls per question")
    panel.set_ylabel(metric)
    panel.set_title(f"{metric} over cost")
    _note(figure, _INTERVAL)
    return figure


@_styled
def curve(lines: Mapping[str, Sequence[tuple[float, Estimate]]], x: str, y: str, note: str = _INTERVAL) -> "Figure":
    """A metric over a setting, with error bars.

    Args:
        lines: for each line's name its points: the setting's value, and the metric's estimate there. A single line
            needs no name.
        x: the setting's name.
        y: the metric's name.
        note: says what the error bars are.
    """
    figure, (panel,) = _figure(1, 1, width=6.6, height=3.8)
    for number, (name, points) in enumerate(lines.items()):
        ordered = sorted(points, key=lambda point: point[0])
        estimates = [estimate for _, estimate in ordered]
        panel.errorbar(
            [value for value, _ in ordered],
            [estimate.mean for estimate in estimates],
            yerr=[[e.mean - e.low for e in estimates], [e.high - e.mean for e in estimates]],
            color=_COLORS[number % len(_COLORS)],
            marker=_MARKERS[number % len(_MARKERS)],
            markersize=6.5,
            markerfacecolor="none",  # so that equal lines can be seen through one another
            linewidth=1.6,
            elinewidth=1.2,
            capsize=3,
            label=_label(name),
        )
    panel.set_xticks(sorted({value for points in lines.values() for value, _ in points}))
    ends = [end for points in lines.values() for _, e in points for end in (e.low, e.high)]
    panel.set_ylim(1.06 * min(0.0, 0.0, *ends), 1.06 * max(0.0, 0.0, *ends) or 1.0)
    panel.grid()
    panel.set_xlabel(x)
    panel.set_ylabel(y)
    panel.set_title(f"{y} over {x}")
    if len(lines) > 1:
        panel.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    _note(figure, note)
    return figure


def _figure(rows: int, columns: int, width: float, height: float) -> "tuple[Figure, list[Axes]]":
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    figure = Figure(figsize=(width, height), dpi=160, layout="constrained", facecolor="white")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def _name_rows(panel: "Axes", names: Sequence[str]) -> None:
    panel.set_yticks(range(len(names)), [_label(name) for name in names])
    panel.set_ylim(len(names) - 0.4, -0.6)  # the first one on top
    panel.tick_params(axis="y", length=0)
    panel.spines["left"].set_visible(False)


def _note(figure: "Figure", text: str) -> None:
    figure.supxlabel(text, fontsize=8, color="#555555", x=0.99, ha="right")


def _label(name: str, width: int = _LABEL_WIDTH) -> str:
    lines = textwrap.wrap(name.replace("$", r"\$"), width) or [""]  # dollars would start a formula
    return "\n".join(lines if len(lines) <= 2 else [lines[0], textwrap.shorten(" ".join(lines[1:]), width)])


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 2 else f"{value:.1f}"


def _verdict(difference: Difference) -> tuple[str, str, str]:
    if difference.low > 0:
        return BLUE, "o", BLUE
    if difference.high < 0:
        return VERMILION, "s", VERMILION
    return GREY, "o", "white"


def _spread(heights: list[float], gap: float) -> list[float]:
    """Move ascending heights, as little as one pass each way can, until neighbours in 0 to 1 are ``gap`` apart."""
    places: list[float] = []
    for height in heights:
        places.append(max(height, places[-1] + gap) if places else max(height, gap / 2))
    ceiling = 1 - gap / 2
    for index in reversed(range(len(places))):
        places[index] = min(places[index], ceiling)
        ceiling = places[index] - gap
    return places
