"""A comparison as one HTML page: nothing in it is loaded from elsewhere, and whatever comes from data is text."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from hoptimizer.common.errors import UserError
from hoptimizer.common.paths import expanded, write_whole
from hoptimizer.common.terminal import printable
from hoptimizer.comparison import Comparison, compare_variants
from hoptimizer.comparison.drawing import drawn
from hoptimizer.comparison.meaning import more_is_better
from hoptimizer.comparison.sheets import costs_sheet, groups_sheet, scores_sheet, settings_sheet
from hoptimizer.eval.display.format import change, figure
from hoptimizer.eval.display.sheet import MARK
from hoptimizer.eval.statistics import CHANCE, RESAMPLES
from hoptimizer.report.disagreements import RIGHT, disagreements, judged_by, worth_a_look
from hoptimizer.report.steps import MOST, ShownStep, searched, shown_step, steps_of
from hoptimizer.retrieval.passage import Corpus
from hoptimizer.tracking.naming import PREFIX
from hoptimizer.tracking.tracker import Tracker

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATE = Path(__file__).with_name("page.html")
QUESTIONS = 10
"""How many questions are shown with their steps."""

LISTED = 30
"""How many questions are listed in either direction of a disagreement."""


@dataclass(frozen=True)
class Side:
    """What one variant did for a question.

    Attributes:
        name: the variant.
        answer: what it answered.
        score: of the metric that is compared, as text.
        steps: those that led to the answer, as far as they are shown.
        more: how many are not shown.
    """

    name: str
    answer: str
    score: str
    steps: list[ShownStep]
    more: int


def write_report(
    tracker: Tracker,
    run_ids: Sequence[str] = (),
    out: str | Path = "report.html",
    *,
    split: str = "dev",
    metric: str = "f1",
    seed: int = 0,
    by: str | None = None,
) -> Comparison:
    """Write a comparison as a page that needs no server: tables, plots, where variants disagree, and ten questions
    with the steps of each variant.

    Args:
        tracker: the store that holds the runs.
        run_ids: what to compare, as :func:`hoptimizer.compare_variants` takes it, and as the next four.
        out: the file; one that is there is replaced, once the page is complete.
        split: the questions' split.
        metric: what the paired differences are of.
        seed: of the bootstrap.
        by: ``type`` or ``hops``, by which groups of questions are compared, or ``None``.

    Returns:
        the comparison.

    Raises:
        UserError: the runs can't be compared, or the file can't be written; nothing is written then.

    Example:
        >>> from pathlib import Path
        >>> from hoptimizer import Tracker, evaluate_variant, load_config, write_report
        >>> words = ["data=atlas", "data.dev=10", "program.name=rag", "program.reader=none", "retriever.name=bm25"]
        >>> store = f"sqlite:///{Path.cwd()}/mlflow.db"
        >>> configs = [load_config(None, [*words, f"retriever.k={k}", f"tracking.uri={store}"]) for k in (1, 8)]
        >>> runs = [evaluate_variant(config).run_id for config in configs]
        >>> compared = write_report(Tracker(store, "atlas"), runs, "report.html", metric="recall")
        >>> "Where they disagree" in Path("report.html").read_text(encoding="utf-8")
        True
    """
    file = _writable(out)
    compared = compare_variants(tracker, run_ids, split=split, metric=metric, seed=seed, by=by)
    page = render(compared, [steps_of(tracker, variant.run_id, split) for variant in compared.variants], tracker)
    try:
        write_whole(file, page)
    except OSError as error:
        raise UserError(f"{file}: the page can't be written ({error.strerror}); give another --out") from error
    return compared


def _writable(out: str | Path) -> Path:
    file = expanded(out)
    if file.is_dir():
        raise UserError(f"{file}: a folder; give --out the name of a file, such as report.html")
    if not file.parent.is_dir():
        raise UserError(f"{file}: no folder {str(file.parent)!r}; make it, or give another --out")
    return file


def render(compared: Comparison, steps: Sequence[dict[str, list[Any]]], tracker: Tracker) -> str:
    """The page of a comparison.

    Args:
        compared: the comparison.
        steps: of each variant its step records by the question's id.
        tracker: the store that holds the runs.
    """
    metric, judge = compared.metric, judged_by(compared)
    baseline = tracker.get(compared.variants[0].run_id)
    up, down = ("better", "worse") if more_is_better(metric, baseline) else ("higher", "lower")
    verdicts = [
        {
            "name": name,
            "change": change(metric, d.difference, d.low, d.high),
            "before": figure(metric, d.before.mean),
            "after": figure(metric, d.after.mean),
            "p": f"{p:.3f}" if p >= 0.001 else "< 0.001",
            "way": "" if p >= CHANCE else up if d.difference > 0 else down,
        }
        for name, d, p in zip(compared.names[1:], compared.differences, compared.p, strict=True)
    ]
    chosen = worth_a_look(compared, QUESTIONS)
    corpora = [searched(tracker, variant.run_id) for variant in compared.variants]
    environment = jinja2.Environment(autoescape=True, finalize=_harmless, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    data = baseline.data.tags.get(PREFIX + "data", "")
    return template.render(
        compared=compared,
        names=compared.names,
        data=data,
        version=version("hoptimizer"),
        n=len(compared.questions),
        resamples=RESAMPLES,
        level=CHANCE,
        mark=MARK,
        verdicts=verdicts,
        settings=settings_sheet(compared),
        tables=[
            scores_sheet(compared, intervals=True, settings=False),
            *([groups_sheet(compared)] if compared.by else []),
        ],
        costs=costs_sheet(compared),
        plots=[(title, _address(plot)) for _, title, plot in drawn(compared)],
        judge=judge,
        right=RIGHT,
        disagreements=disagreements(compared),
        listed_most=LISTED,
        examples=[
            {"place": place, "why": why, "sides": _sides(compared, steps, corpora, place)}
            for place, why in chosen.items()
        ],
    )


def _harmless(value: Any) -> Any:  # noqa: ANN401 - whatever a template shows
    """A text without what would steer a reader's screen; what the page's own code wrote stays as it is."""
    return printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _sides(
    compared: Comparison, steps: Sequence[dict[str, list[Any]]], corpora: Sequence[Corpus], place: int
) -> list[Side]:
    sides = []
    for name, variant, own, corpus in zip(compared.names, compared.variants, steps, corpora, strict=True):
        records = own.get(variant.ids[place], [])
        score = variant.scores[compared.metric][place]
        sides.append(
            Side(
                name,
                answer=variant.answers[place] if variant.answers else "",
                score=figure(compared.metric, None if score != score else score),
                steps=[shown_step(record, corpus) for record in records[:MOST]],
                more=max(0, len(records) - MOST),
            )
        )
    return sides


def _address(plot: "Figure") -> str:
    """An image's address that holds the image."""
    image = io.BytesIO()
    plot.savefig(image, format="svg", metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(image.getvalue()).decode()}"
