"""A comparison as tables of texts: for a terminal, a notebook and a page."""

from collections.abc import Sequence

from hoptimizer.comparison.differing import MODEL
from hoptimizer.comparison.result import Compared, Comparison
from hoptimizer.eval.display.format import COLUMNS, COSTS, change, figure, heading, is_unsought, with_interval
from hoptimizer.eval.display.sheet import MARK, Sheet
from hoptimizer.eval.showing import TIMED
from hoptimizer.eval.statistics import CHANCE, Estimate, holm

_UNKNOWN = "unknown"
_BASELINE = "baseline"
# A setting may be a whole prompt; the run has it in full.
_LONGEST = 60
# Columns of settings that leave those of the scores their width.
_MOST_SETTINGS = 4


def comparison_sheets(compared: Comparison) -> list[Sheet]:
    """All tables of a comparison: scores, what a question costs, and, where it was asked for, the groups.

    Args:
        compared: the comparison.
    """
    many = len(_keys(compared)) > _MOST_SETTINGS
    groups = [groups_sheet(compared)] if compared.by else []
    told = [differences_sheet(compared)] if many else []
    return [scores_sheet(compared, settings=not many), costs_sheet(compared), *groups, *told]


def scores_sheet(compared: Comparison, intervals: bool = False, settings: bool = True) -> Sheet:
    """The variants with their language models, the settings in which they differ, their scores, and the differences.

    Args:
        compared: the comparison.
        intervals: whether every score has its interval; else only the metric that is compared.
        settings: whether it has the settings, too.
    """
    metric = compared.metric
    wanted = dict.fromkeys([metric, *COLUMNS]) if metric not in COLUMNS else COLUMNS
    present = [name for name in wanted if any(name in v.estimates for v in compared.variants)]
    place = 1 + present.index(metric)  # the difference stands beside what differs
    keys = _keys(compared) if settings else []
    header = [
        "variant",
        "run",
        *_short(keys),
        *map(heading, present[:place]),
        f"Δ {metric}",
        *map(heading, present[place:]),
    ]
    deltas = [_BASELINE]
    for difference, p in zip(compared.differences, compared.p, strict=True):
        deltas.append(change(metric, difference.difference, difference.low, difference.high) + MARK * (p < CHANCE))
    rows = [
        [
            name,
            variant.run_id[:8],
            *(_cut(variant.settings.get(key, "–")) for key in keys),
            *(_score(variant, score, intervals, metric) for score in present[:place]),
            delta,
            *(_score(variant, score, intervals, metric) for score in present[place:]),
        ]
        for name, variant, delta in zip(compared.names, compared.variants, deltas, strict=True)
    ]
    n = len(compared.variants[0].ids)
    title = f"{compared.split}, n = {n}, 95% intervals"
    return Sheet(title, header, 2 + len(keys), rows, note=_note(compared))


def settings_sheet(compared: Comparison) -> Sheet:
    """The variants with their language models and the settings in which they differ, in full.

    Args:
        compared: the comparison.
    """
    keys = _keys(compared)
    rows = [
        [name, variant.run_id, *(variant.settings.get(key, "–") for key in keys)]
        for name, variant in zip(compared.names, compared.variants, strict=True)
    ]
    return Sheet("what differs", ["variant", "run", *keys], 2 + len(keys), rows)


def differences_sheet(compared: Comparison) -> Sheet:
    """The settings in which each variant differs from the baseline, a line each.

    Args:
        compared: the comparison.
    """
    base = compared.variants[0].settings
    keys = _keys(compared)
    rows = [[compared.names[0], compared.variants[0].run_id[:8], _BASELINE]]
    for name, variant in zip(compared.names[1:], compared.variants[1:], strict=True):
        own = [key for key in keys if variant.settings.get(key) != base.get(key)]
        said = ", ".join(f"{key}={_cut(variant.settings.get(key, '–'))}" for key in own)
        rows.append([name, variant.run_id[:8], said])
    return Sheet("what differs", ["variant", "run", "settings"], 3, rows)


def _keys(compared: Comparison) -> list[str]:
    return list(dict.fromkeys([MODEL, *(key for variant in compared.variants for key in variant.settings)]))


def _note(compared: Comparison) -> str:
    notes = []
    if compared.differences:
        tested = f"p < {CHANCE}, paired sign-flip test, Holm's correction for {len(compared.differences)}"
        differs = any(p < CHANCE for p in compared.p)
        notes.append(f"{MARK}: differs from the baseline" if differs else "None differs from the baseline")
        notes[-1] += f" ({tested}{' comparisons' if len(compared.differences) > 1 else ' comparison'})"
    notes += compared.notes
    left_out = [f"{v.unanswered} of {v.name}" for v in compared.variants if v.unanswered]
    if left_out:
        notes.append(f"questions that got no answer from a server and are left out: {', '.join(left_out)}")
    return ". ".join(notes)


def costs_sheet(compared: Comparison) -> Sheet:
    """What a question costs each variant, in tokens, money and time."""
    n = len(compared.variants[0].ids)
    rows = []
    for name, variant in zip(compared.names, compared.variants, strict=True):
        known, timed = variant.costs.means, variant.costs.timed
        cells = [figure(cost, known[cost]) if cost in known else _UNKNOWN for cost in COSTS[:-2]]
        times = [figure(cost, known[cost]) if cost in known else variant.costs.why_untimed for cost in COSTS[-2:]]
        rows.append([name, *cells, *times, "–" if timed is None else f"{timed} of {n}"])
    return Sheet("per question", ["variant", *(heading(cost) for cost in COSTS), "timed"], 1, rows, note=TIMED)


def groups_sheet(compared: Comparison) -> Sheet:
    """What was compared, by the groups of the questions; marked after Holm's correction over all groups."""
    metric, by = compared.metric, str(compared.by)
    known = [d.p for group in compared.groups for d in group.differences if d]
    corrected = iter(holm(known))
    rows = []
    for group in compared.groups:
        deltas = [_BASELINE]
        for found in group.differences:
            shown = change(metric, found.difference, found.low, found.high) if found else "–"
            deltas.append(shown + MARK * (found is not None and next(corrected) < CHANCE))
        for number, (name, estimate, delta) in enumerate(zip(compared.names, group.estimates, deltas, strict=True)):
            labels = ("not given" if group.name is None else group.name, str(group.n)) if number == 0 else ("", "")
            rows.append([*labels, name, _interval(metric, estimate), delta])
    header = [by, "n", "variant", metric, f"Δ {metric}"]
    note = f"{MARK}: differs from the baseline (p < {CHANCE}, Holm's correction for {len(known)} comparisons)"
    return Sheet(f"{metric} by {by}, 95% intervals", header, 3, rows, note=note if known else "")


def _score(variant: Compared, name: str, intervals: bool, metric: str) -> str:
    estimate, searches = variant.estimates.get(name), variant.estimates.get("retrievals")
    if searches and is_unsought(name, searches.mean, metric):
        return figure(name, None)
    if (intervals or name == metric) and estimate and estimate.low < estimate.high:
        return _interval(name, estimate)
    return figure(name, estimate.mean if estimate else None)


def _interval(metric: str, estimate: Estimate | None) -> str:
    if estimate is None:
        return figure(metric, None)
    return with_interval(metric, estimate.mean, estimate.low, estimate.high)


def _short(keys: Sequence[str]) -> list[str]:
    """Config keys without their section, where that tells them apart and says what is meant."""
    plain = ["LM" if key == MODEL else key.removesuffix(".name").replace("lm.default.", "lm.") for key in keys]
    last = [key.partition(".")[2] or key for key in plain]  # budget.lm_calls is no number of calls
    return [key if last.count(end) > 1 else end for key, end in zip(plain, last, strict=True)]


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
