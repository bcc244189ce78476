"""What a study will cost, before it starts: from earlier runs of its programs, or from a few questions of each."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from mlflow.entities import Run

from hoptimizer.common.errors import UserError
from hoptimizer.common.progress import Report, silent
from hoptimizer.common.urls import line_without_secrets
from hoptimizer.compiled import NOT_ASKED
from hoptimizer.compiling import score_first
from hoptimizer.config import Config
from hoptimizer.eval.datasets.folder import SPLITS
from hoptimizer.eval.display.format import counted, figure, heading
from hoptimizer.eval.display.sheet import Sheet
from hoptimizer.models.lm import price
from hoptimizer.study.cells import Cell, Study
from hoptimizer.tracking.naming import FINGERPRINT, VERSION, as_params, without_fold
from hoptimizer.tracking.reading import StoredRuns
from hoptimizer.tracking.tracker import Tracker

FIGURES = ("lm_calls", "prompt_tokens", "completion_tokens", "usd", "seconds_per_question")
PROBED = 3
"""Questions that are asked where nothing is known."""

_LM = "lm.default.model"


@dataclass(frozen=True)
class CellEstimate:
    """What one run of a study will cost.

    Attributes:
        name: the cell's, with its seed where there are several.
        questions: how many it asks.
        compiled: whether it compiles, which has costs of its own.
        of_each: the cost of a question, as far as it is known.
        basis: how that is known, or that it is not.
    """

    name: str
    questions: int
    compiled: bool
    of_each: dict[str, float]
    basis: str

    def total(self, name: str) -> float | None:
        """The whole run's cost."""
        return self.questions * self.of_each[name] if name in self.of_each else None


@dataclass(frozen=True)
class StudyEstimate:
    """What a study will cost.

    Attributes:
        study: the study's name.
        finished: runs that are there already.
        older: the other versions of hoptimizer that made some of these, with how many: prompts may have changed since.
        cells: the runs that are not.
    """

    study: str
    finished: int
    older: dict[str, int]
    cells: list[CellEstimate]

    @property
    def line(self) -> str:
        """The estimate in one line."""
        asked = sum(cell.questions for cell in self.cells)
        older = ", ".join(f"{number} by version {name}" for name, number in self.older.items())
        finished = f"{self.finished} finished{f' ({older}; delete a run to have it made anew)' if older else ''}"
        runs = counted(len(self.cells), "run")
        parts = [f"{runs} to come, {finished}", f"{asked:,} questions"]
        known = [cell for cell in self.cells if "lm_calls" in cell.of_each]
        if known:
            totals = {name: _total(known, name) for name in FIGURES}
            parts += told_costs({name: total for name, total in totals.items() if total is not None})
        if unknown := len(self.cells) - len(known):
            them = "it" if unknown == 1 == len(self.cells) else f"{unknown} of them"
            # Which is so after --estimate, too: it leaves answers in the cache, and no run.
            parts.append(f"no run tells yet what {them} will cost (--estimate does, by {PROBED} questions of each)")
        if compiled := sum(cell.compiled for cell in self.cells):
            parts.append(f"{compiled} of them {'compiles' if compiled == 1 else 'compile'} first, which costs extra")
        return f"study {self.study}: {'; '.join(parts)}"

    def as_dict(self) -> dict[str, Any]:
        """What ``hop study --estimate --json`` prints."""
        totals = {name: _total(self.cells, name) for name in FIGURES}
        return {
            "study": self.study,
            "finished": self.finished,
            "older": self.older,
            "cells": [asdict(c) for c in self.cells],
            "total": totals,
        }

    def sheet(self) -> Sheet:
        """The estimate as a table."""
        names = [name for name in FIGURES if any(name in cell.of_each for cell in self.cells)]
        rows = [
            [cell.name, str(cell.questions), *(figure(name, cell.of_each.get(name)) for name in names), cell.basis]
            for cell in self.cells
        ]
        totals = [figure(name, _total(self.cells, name)) for name in names]
        return Sheet(
            title=f"{self.study}: what it will cost, per question",
            header=["cell", "questions", *(heading(name) for name in names), "basis"],
            labels=1,
            rows=[*rows, ["in all", str(sum(cell.questions for cell in self.cells)), *totals, ""]],
            note="Cached calls, which cost nothing, are counted; s/question is measured beside other questions.",
        )


def told_costs(costs: Mapping[str, float]) -> list[str]:
    """Parts of a line that say what runs will cost, as far as it is known.

    Args:
        costs: of all of them together.
    """
    parts = []
    if "lm_calls" in costs:
        parts.append(f"about {costs['lm_calls']:,.0f} calls of language models, cached ones among them")
    if "prompt_tokens" in costs and "completion_tokens" in costs:
        prompt, completion = costs["prompt_tokens"], costs["completion_tokens"]
        parts.append(f"about {prompt:,.0f} prompt and {completion:,.0f} completion tokens")
    return parts + ([f"about ${costs['usd']:,.2f}"] if "usd" in costs else [])


def _total(cells: Sequence[CellEstimate], name: str) -> float | None:
    """What runs cost together; ``None`` where it is not known of one."""
    found = [cell.total(name) for cell in cells]
    return None if any(value is None for value in found) else sum(value or 0.0 for value in found)


def estimate(
    study: Study, runs: Sequence[Run], *, probe: Tracker | None = None, report: Report = silent
) -> StudyEstimate:
    """What is still to be run of a study, and what that will cost.

    The cost of a question comes from the latest finished run of the study's experiment with the same program and
    language model, else from the latest with the same program.

    Args:
        study: what is to be run.
        runs: the earlier runs, the oldest first.
        probe: the store of the runs, if the first questions are to be asked of what no run is known of; the answers
            stay in the cache of calls.
        report: told about progress.
    """
    # The latest run of a piece of work is the one that a study takes.
    prints = ((run.data.tags.get(FINGERPRINT, "").rpartition(" ")[2], run) for run in runs)
    made_by = {work: run.data.tags.get(VERSION, "unknown") for work, run in prints}
    runs = runs[::-1]
    planned = _planned(study)
    waiting = [(cell, compiles) for cell, compiles in planned if study.work(cell) not in made_by]
    versions = Counter(made_by.get(study.work(cell)) for cell, _ in planned)
    own = version("hoptimizer")
    older = {name: number for name, number in versions.items() if name and name != own}
    probed: dict[str, tuple[dict[str, float], str]] = {}
    cells = []
    for number, (cell, compiles) in enumerate(waiting):
        report(f"estimating {study.name}", number, len(waiting), cell.title)
        # Of a study that starts from a variant, every run has a compiled program.
        of_each, basis = known_costs(cell.config, runs, compiled=cell.compiled or (None if study.run_id else False))
        if not of_each and probe:
            if cell.digest not in probed:
                probed[cell.digest] = _asked(study, cell, probe, report)
            of_each, basis = probed[cell.digest]
        seed = f", seed {cell.config.seed}" if len(study.seeds) > 1 else ""
        cells.append(CellEstimate(f"{cell.title} on {cell.split}{seed}", cell.n, compiles, of_each, basis))
    return StudyEstimate(study.name, len(planned) - len(waiting), older, cells)


def _asked(study: Study, cell: Cell, probe: Tracker, report: Report) -> tuple[dict[str, float], str]:
    """What the first questions of a cell cost, and how its program was asked; or that it can't be, and why."""
    made = (cell.source or cell).config if cell.compiled else None
    try:
        figures, as_compiled = score_first(
            cell.config, cell.split, PROBED, probe, study.run_id, compiled_as=made, report=report
        )
    except UserError as error:  # the others are asked all the same, as where they are run
        return {}, f"not known: {line_without_secrets(error)}"
    return _few(figures), f"its first {PROBED} questions{'' if as_compiled else ', before compiling'}"


def _planned(study: Study) -> list[tuple[Cell, bool]]:
    """The runs of a study, each with whether it compiles; what is chosen is taken to be the first value."""
    tried = {cell.name for cell in study.candidates}
    first: dict[tuple[str, int], Cell] = {}
    for cell in study.cells:
        first.setdefault((cell.name, cell.config.seed), cell)
    # The first seed's program is compiled to choose from, and only scored for the table.
    again = {(name, study.seeds[0]) for name in tried}
    scored = [(cell, cell.compiled and key not in again) for key, cell in first.items()]
    planned = [*((cell, cell.compiled) for cell in study.candidates), *scored]
    sources = {cell.source.digest: cell.source for cell, _ in planned if cell.source}
    runs = {study.work(source): (source, True) for source in sources.values()}
    for cell, compiles in planned:
        runs.setdefault(study.work(cell), (cell, compiles and (cell.source or cell).digest not in sources))
    return list(runs.values())


def known_costs(config: Config, runs: Sequence[Run], *, compiled: bool | None = None) -> tuple[dict[str, float], str]:
    """The cost of a question by earlier runs, and which these are; a run of another model tells no price.

    Args:
        config: with what the question will be asked.
        runs: the earlier runs, the latest first.
        compiled: whether the program will be compiled: demonstrations make prompts several times as long; ``None``
            takes runs of either kind.
    """
    wanted = as_params(config.deciding)
    same = [run for run in runs if run.data.params.get("program.name") == config.program.name]
    same = [run for run in same if compiled is None or StoredRuns.is_compiled(run) == compiled]
    sections = ("program.", "optimizer.") if compiled else ("program.",)
    program = [key for key in wanted if key.startswith(sections) or key in (_LM, "retriever.k")]
    for keys, basis in ((program, "a run of the same program and model"), ([_LM], "a run with other options")):
        for run in same:
            if all(run.data.params.get(key) == wanted[key] for key in keys):
                found = _few(_of_split(run.data.metrics))
                return _priced(config, found) | found, basis
    if not same:
        return {}, "not known"
    found = _few(_of_split(same[0].data.metrics))
    found.pop("usd", None)
    return found | _priced(config, found), "a run with another model"


def _priced(config: Config, figures: Mapping[str, float]) -> dict[str, float]:
    """The price of a question's tokens, where one model is asked for all of them and its price is known."""
    models = {lm.model for role, lm in config.lm.items() if role not in NOT_ASKED}
    if len(models) > 1 or not {"prompt_tokens", "completion_tokens"} <= figures.keys():
        return {}
    usd = price(models.pop(), figures["prompt_tokens"], figures["completion_tokens"])
    return {} if usd is None else {"usd": usd}


def _of_split(metrics: Mapping[str, float]) -> dict[str, float]:
    """A run's figures on whatever questions it was scored on; what a whole compile spent is not among them."""
    named = [(name.split("/"), value) for name, value in without_fold(metrics).items()]
    return {name[1]: value for name, value in named if len(name) == 2 and name[0] in SPLITS}


def _few(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: metrics[name] for name in FIGURES if name in metrics}
