"""A study file: one base config, what is varied over it, and how the results are shown."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from hoptimizer.common.errors import UserError, nearest
from hoptimizer.common.options import Positive
from hoptimizer.common.urls import public, says_secret, text_without_secrets
from hoptimizer.eval.display.format import COLUMNS
from hoptimizer.eval.metrics import METRICS
from hoptimizer.programs.record import COST
from hoptimizer.programs.settings import count_names

NAME = "name"  # the axis along which named cells differ
HIDDEN = "***"  # in the place of a secret
COMPILE = "compile."  # begins keys that change what a program is compiled with, and not what it is scored with

# What a compile has spent.
SPENT = ("compile_calls", "compile_minutes")
_COSTS = ("judge_failures", *COST, "seconds_median", "seconds_p95", "seconds_per_question", *SPENT)
# What a study has one of, and where the file says it.
_ONE = {
    "tracking": "under base",
    "metric": "under base",
    "executor": "under base",
    "seed": "as seeds, a list beside base",
}
_STEP_SCORE = re.compile(r"steps/\w+/\w+")


def _figures(metric: object) -> tuple[str, ...]:
    """Names of all that a study can show, metrics of the user's own included."""
    from hoptimizer.eval.objective import Objective  # brings DSPy, and so do the counts of programs

    own = (each.name for each in Objective.parse(metric).own)
    return tuple(dict.fromkeys([*METRICS, *COLUMNS, *count_names(), *_COSTS, *own]))


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _row(value: object) -> object:
    return {NAME: value} if isinstance(value, str) else value


Keys = Annotated[list[str], BeforeValidator(_listed)]
Values = dict[str, Annotated[list[Any], Field(min_length=1)]]
"""Dotted config keys, each with the values it takes."""


class NamedCell(BaseModel):
    """A row of an ablation table: a name, and beside it the settings that make it.

    Attributes:
        name: what the table calls it.
        compile: whether it is compiled; the study's ``compile`` by default.
        choose: keys that are chosen for it, each with its values; those of the study's ``choose`` by default.
        overrides: dotted config keys and their values; every other key of the mapping. Keys that start with
            ``compile.`` hold for its compile alone.
    """

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1)
    compile: bool | None = None
    choose: Values | None = None
    overrides: dict[str, Any]

    @model_validator(mode="before")
    @classmethod
    def _beside_the_name(cls, values: Any) -> Any:  # noqa: ANN401 - whatever the file holds
        if not isinstance(values, Mapping):
            return values
        own = {key: value for key, value in values.items() if key in (NAME, "compile", "choose")}
        return own | {"overrides": {key: value for key, value in values.items() if key not in own}}


class Plot(BaseModel):
    """A curve over one numeric key of the grid.

    Attributes:
        x: the key.
        y: a metric or a count; the study's metric by default.
    """

    model_config = ConfigDict(extra="forbid")

    x: str
    y: str | None = None


class Choose(BaseModel):
    """Keys whose values are chosen before the table is made, as papers choose hyperparameters on a development set.

    Attributes:
        grid: the keys and the values to choose from; all combinations are run. A cell may have others of its own.
        by: the metric or count that is highest for what is chosen; the study's metric by default.
        split: the questions that it is chosen on, with the first of the seeds.
    """

    model_config = ConfigDict(extra="forbid")

    grid: Values = {}
    by: str | None = None
    split: str = "dev"


class StudyFile(BaseModel):
    """What a study file holds.

    Attributes:
        base: a config, as in any config file; what follows changes it.
        cells: named variants, each with its overrides.
        grid: dotted config keys, each with the values it takes; crossed with each other and with ``cells``. They
            lie over the base as arguments of a command do. Keys that start with ``compile.`` are for compiles alone.
        seeds: each cell is run once with each; the base's seed by default.
        choose: keys whose values are chosen for each cell on other questions than those of ``split``.
        split: the questions.
        compile: whether programs are compiled, or scored as they are.
        rows: the axes (``name`` and the grid's keys) that the table's rows stand for; those not in ``columns`` by
            default.
        columns: the axes that the table's columns stand for.
        figures: the metrics and counts that the table shows; by default those that every comparison shows.
        plot: a curve to draw.
        baseline: the row that the others are tested against: a cell's name, or values on the axes.
        at_once: cells under way at once; by default four of those whose language models are all behind servers, unless
            none of them has a cache: then time is measured.
    """

    model_config = ConfigDict(extra="forbid")

    base: dict[str, Any] = {}
    cells: Annotated[list[NamedCell], Field(min_length=1)] | None = None
    grid: Values = {}
    choose: Choose | None = None
    seeds: Annotated[list[int], Field(min_length=1)] | None = None
    split: str = "dev"
    compile: bool = False
    rows: Keys = []
    columns: Keys = []
    figures: Keys = []
    plot: Plot | None = None
    baseline: Annotated[dict[str, Any], BeforeValidator(_row)] | None = None
    at_once: Positive | None = None

    @property
    def axes(self) -> list[str]:
        """What tells one line of the table from another."""
        return [NAME] * (self.cells is not None) + list(self.grid)

    def only(self, rows: Sequence[str]) -> "StudyFile":
        """The study of some of its rows alone; of all, where none is named.

        Args:
            rows: names of cells, and values on the grid as ``KEY=VALUE``; several of one axis are alternatives. The
                baseline stays if it is among what is left.

        Raises:
            UserError: there is no such row.
        """
        named = {cell.name: (NAME, label(cell.name)) for cell in self.cells or ()}
        named |= {f"{key}={label(one)}": (key, label(one)) for key, values in self.grid.items() for one in values}
        kept: dict[str, list[str]] = {}
        for row in rows:
            if row not in named:
                raise UserError(f"--only: there is no row {row!r}; {nearest(row, named)}")
            axis, value = named[row]
            kept.setdefault(axis, []).append(value)

        def stays(axis: str, value: object) -> bool:
            return axis not in kept or label(value) in kept[axis]

        cells = [cell for cell in self.cells or () if stays(NAME, cell.name)]
        grid = {key: [value for value in values if stays(key, value)] for key, values in self.grid.items()}
        baseline = self.baseline if all(stays(*one) for one in (self.baseline or {}).items()) else None
        return self.model_copy(update={"cells": cells or None, "grid": grid, "baseline": baseline})

    @model_validator(mode="after")
    def _consistent(self) -> "StudyFile":
        if not self.axes:
            raise UserError("grid: expected keys and their values, or cells with a name each; there is nothing to vary")
        cells = self.cells or []
        _once("cells", [cell.name for cell in cells])
        _once("seeds", self.seeds or [])
        for key, values in self.grid.items():
            _once(f"grid.{key}", [label(value) for value in values])
        for key in [*self.grid, *(self.choose.grid if self.choose else ())]:
            if says_secret(key):
                raise UserError(f"grid: {key}: secrets are not compared, and no table shows them; vary another key")
        for where, keys in [
            ("grid", list(self.grid)),
            *((f"cell {cell.name!r}", list(cell.overrides)) for cell in cells),
            *((f"choose of cell {cell.name!r}", list(cell.choose or ())) for cell in cells),
            ("choose.grid", list(self.choose.grid) if self.choose else []),
        ]:
            for key in keys:
                if (head := key.removeprefix(COMPILE).partition(".")[0]) in _ONE:
                    raise UserError(f"{where}: {key}: a study has one {head}; give it {_ONE[head]}")
                if where != "grid" and key in self.grid:
                    raise UserError(f"{where}: {key}: the grid sets it too; leave it to one of them")
        self._compiled()
        self._chosen()
        self._shown()
        return self

    def _compiled(self) -> None:
        """Make sure that keys of a compile belong to one."""
        compiled = [cell for cell in self.cells or () if (self.compile if cell.compile is None else cell.compile)]
        scored = [cell for cell in self.cells or () if cell not in compiled]
        keys = [(f"cell {cell.name!r}", key) for cell in scored for key in cell.overrides]
        if not (compiled or (self.compile and not self.cells)):
            keys += [("grid", key) for key in self.grid]
        for where, key in keys:
            if key.startswith(COMPILE):
                raise UserError(f"{where}: {key}: nothing is compiled there; say compile: true")

    def _chosen(self) -> None:
        own = [cell for cell in self.cells or () if cell.choose]
        if self.choose is None:
            if own:
                raise UserError(f"cell {own[0].name!r}: choose: say under choose, beside base, what it is chosen by")
            return
        if self.choose.split == self.split:
            raise UserError(
                f"choose.split: the table is on {self.split} as well; choose on other questions, as with split: test"
            )
        if not self.choose.grid and not own:
            raise UserError("choose.grid: expected keys and their values; there is nothing to choose from")
        for key, values in self.choose.grid.items():
            _once(f"choose.grid.{key}", [label(value) for value in values])
        for cell in self.cells or ():
            for key, values in (self.choose.grid if cell.choose is None else cell.choose).items():
                _once(f"cell {cell.name!r}: choose.{key}", [label(value) for value in values])
                if key in cell.overrides:
                    raise UserError(f"cell {cell.name!r}: {key}: it is chosen as well; leave it to one of them")

    def _shown(self) -> None:
        for where, keys in (("rows", self.rows), ("columns", self.columns)):
            for key in keys:
                if key not in self.axes:
                    raise UserError(f"{where}: {key!r} is not varied here; {nearest(key, self.axes)}")
        _once("rows and columns", [*self.rows, *self.columns])
        self.rows = self.rows or [axis for axis in self.axes if axis not in self.columns]
        for axis in self.axes:
            if axis not in (*self.rows, *self.columns):
                raise UserError(f"rows: {axis} is varied, but neither in rows nor in columns; add it to one of them")
        if self.plot:
            if self.plot.x not in self.grid:
                raise UserError(f"plot.x: {self.plot.x!r} is not in the grid; {nearest(self.plot.x, self.grid)}")
            for value in self.grid[self.plot.x]:
                if isinstance(value, bool) or not isinstance(value, int | float):
                    raise UserError(f"plot.x: {self.plot.x} takes the value {label(value)!r}; expected numbers alone")
        self._tested()
        named = [("figures", name) for name in self.figures]
        named += [("plot.y", self.plot.y)] if self.plot and self.plot.y else []
        named += [("choose.by", self.choose.by)] if self.choose and self.choose.by else []
        known = _figures(self.base.get("metric", "f1"))
        for where, name in named:
            if name not in known and not _STEP_SCORE.fullmatch(name):
                near = nearest(name, known)
                raise UserError(f"{where}: there is no metric or count {name!r}, nor is it steps/STEP/SCORE; {near}")

    def _tested(self) -> None:
        for axis, value in (self.baseline or {}).items():
            if axis not in self.axes:
                raise UserError(f"baseline: {axis!r} is not varied here; {nearest(axis, self.axes)}")
            known = [cell.name for cell in self.cells or ()] if axis == NAME else map(label, self.grid[axis])
            names = dict.fromkeys(known)
            if label(value) not in names:
                raise UserError(f"baseline: {axis}: no row has {label(value)!r}; {nearest(label(value), names)}")


def label(value: Any) -> str:  # noqa: ANN401 - any value of a config
    """A value as a table shows it: a section that is chosen by name starts with that name, secrets are hidden."""
    if not isinstance(value, Mapping):
        return text_without_secrets(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    value = public(value, HIDDEN)
    first = next((key for key in (NAME, "model") if key in value), None)
    rest = [f"{key}={label(inner)}" for key, inner in value.items() if key != first]
    return " ".join(([str(value[first])] if first else []) + rest)


def _once(where: str, values: Sequence[Any]) -> None:
    twice = next((value for number, value in enumerate(values) if value in values[:number]), None)
    if twice is not None:
        raise UserError(f"{where}: {twice!r} is there twice; once is enough")
