"""A study file: one base config and what is varied over it, as the cells to run."""

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from omegaconf import OmegaConf
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from hoptimizer.common.errors import UserError, nearest
from hoptimizer.common.validation import explain
from hoptimizer.comparison import COLUMNS
from hoptimizer.config import Config, load_config, read_mapping
from hoptimizer.eval.datasets.dataset import load
from hoptimizer.eval.metrics import METRICS
from hoptimizer.programs.settings import count_names

NAME = "name"  # the axis along which named cells differ

# What a compile has spent.
SPENT = ("compile_calls", "compile_minutes")
_FIGURES = tuple(dict.fromkeys([*METRICS, *COLUMNS, *count_names(), "judge_failures", "seconds_per_question", *SPENT]))
# What a study has one of, and where the file says it.
_ONE = {"tracking": "under base", "metric": "under base", "seed": "as seeds, a list beside base"}
_HIDDEN = "***"
_STEP_SCORE = re.compile(r"steps/\w+/\w+")


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


Keys = Annotated[list[str], BeforeValidator(_listed)]


class NamedCell(BaseModel):
    """A row of an ablation table: a name, and beside it the settings that make it.

    Attributes:
        name: what the table calls it.
        compile: whether it is compiled; the study's ``compile`` by default.
        overrides: dotted config keys and their values; every other key of the mapping.
    """

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1)
    compile: bool | None = None
    overrides: dict[str, Any]

    @model_validator(mode="before")
    @classmethod
    def _beside_the_name(cls, values: Any) -> Any:  # noqa: ANN401 - whatever the file holds
        if not isinstance(values, Mapping):
            return values
        own = {key: value for key, value in values.items() if key in (NAME, "compile")}
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


class StudyFile(BaseModel):
    """What a study file holds.

    Attributes:
        base: a config, as in any config file; what follows changes it.
        cells: named variants, each with its overrides.
        grid: dotted config keys, each with the values it takes; crossed with each other and with ``cells``. A value
            takes the place of what the base has at its key.
        seeds: each cell is run once with each; the base's seed by default.
        split: the questions.
        compile: whether programs are compiled, or scored as they are.
        rows: the axes (``name`` and the grid's keys) that the table's rows stand for; those not in ``columns`` by
            default.
        columns: the axes that the table's columns stand for.
        figures: the metrics and counts that the table shows; by default those that every comparison shows.
        plot: a curve to draw.
    """

    model_config = ConfigDict(extra="forbid")

    base: dict[str, Any] = {}
    cells: Annotated[list[NamedCell], Field(min_length=1)] | None = None
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}
    seeds: Annotated[list[int], Field(min_length=1)] | None = None
    split: str = "dev"
    compile: bool = False
    rows: Keys = []
    columns: Keys = []
    figures: Keys = []
    plot: Plot | None = None

    @property
    def axes(self) -> list[str]:
        """What tells one line of the table from another."""
        return [NAME] * (self.cells is not None) + list(self.grid)

    @model_validator(mode="after")
    def _consistent(self) -> "StudyFile":
        if not self.axes:
            raise UserError("grid: expected keys and their values, or cells with a name each; there is nothing to vary")
        cells = self.cells or []
        _once("cells", [cell.name for cell in cells])
        _once("seeds", self.seeds or [])
        for key, values in self.grid.items():
            _once(f"grid.{key}", [label(value) for value in values])
        for where, keys in [
            ("grid", list(self.grid)),
            *((f"cell {cell.name!r}", list(cell.overrides)) for cell in cells),
        ]:
            for key in keys:
                if (head := key.partition(".")[0]) in _ONE:
                    raise UserError(f"{where}: {key}: a study has one {head}; give it {_ONE[head]}")
                if where != "grid" and key in self.grid:
                    raise UserError(f"{where}: {key}: the grid sets it too; leave it to one of them")
        self._shown()
        return self

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
        named = [("figures", name) for name in self.figures]
        named += [("plot.y", self.plot.y)] if self.plot and self.plot.y else []
        for where, name in named:
            if name not in _FIGURES and not _STEP_SCORE.fullmatch(name):
                near = nearest(name, _FIGURES)
                raise UserError(f"{where}: there is no metric or count {name!r}, nor is it steps/STEP/SCORE; {near}")


@dataclass(frozen=True)
class Cell:
    """One run of a study.

    Attributes:
        name: tells it from the others but for the seed.
        place: its value on each axis, as text (numbers of the grid as they are).
        overrides: what it changes in the base config, without secrets.
        config: the whole of what it runs, seed included.
        compiled: whether the program is compiled.
        data: digest of its data set.
        n: questions it is scored on.
    """

    name: str
    place: dict[str, Any]
    overrides: dict[str, Any]
    config: Config
    compiled: bool
    data: str
    n: int

    @property
    def digest(self) -> str:
        """Hash of what it runs, whatever it is called."""
        return _hash(self.config.digest, self.data, str(self.compiled))


@dataclass(frozen=True)
class Study:
    """A validated study.

    Attributes:
        name: the file's name without its ending.
        file: how its results are shown.
        cells: what it runs, in order.
        run_id: the compiled variant that every cell starts from, or ``None``.
    """

    name: str
    file: StudyFile
    cells: list[Cell]
    run_id: str | None = None

    @property
    def config(self) -> Config:
        """Of the first cell; the metric and the tracking are those of all."""
        return self.cells[0].config

    @property
    def seeds(self) -> list[int]:
        """With which each cell is run."""
        return list(dict.fromkeys(cell.config.seed for cell in self.cells))

    @cached_property
    def digest(self) -> str:
        """Hash of what is run; how it is shown may change in the file, and nothing is run again."""
        return _hash(self.file.split, *(cell.digest for cell in self.cells), *([self.run_id] if self.run_id else []))


def load_study(
    path: Path, overrides: Sequence[str] = (), *, run_id: str | None = None, variant: Mapping[str, Any] | None = None
) -> Study:
    """Read a study file, and validate the config and the data of every cell in it.

    Args:
        path: the YAML file.
        overrides: ``key=value`` arguments that change ``base``.
        run_id: a compiled variant that every cell starts from.
        variant: its config as plain data, which ``base`` changes.

    Raises:
        UserError: the file or the config of a cell is malformed, or its data can't be had; the message names the file,
            the cell and the key.
    """
    values = OmegaConf.to_container(read_mapping(path), resolve=False)
    try:
        file = StudyFile.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{path}: {explain(error, StudyFile)}") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    if variant:
        kept = {key: section for key, section in variant.items() if not _renames(file.base.get(key), section)}
        if "metric" in file.base:
            kept.pop("metric", None)  # weights are not mixed with those of another objective
        base = OmegaConf.to_container(OmegaConf.merge(kept, file.base))
        file = file.model_copy(update={"base": base})
    sizes: dict[str, tuple[str, int]] = {}
    seeds: Sequence[int | None] = file.seeds or [None]
    cells = []
    for place, changed, compiled in _places(file):
        name = ", ".join(value if axis == NAME else f"{axis}={label(value)}" for axis, value in place.items())
        for seed in seeds:
            try:
                config = _config(path.stem, file, [*overrides], changed, seed)
                digest, n = _data(config, file.split, compiled, sizes)
            except UserError as error:
                raise UserError(f"{path}: cell {name!r}: {error}") from None
            cells.append(
                Cell(
                    name=name,
                    place={axis: _plain(value) for axis, value in place.items()},
                    overrides=_public(changed),
                    config=config,
                    compiled=compiled,
                    data=digest,
                    n=n,
                )
            )
    return Study(path.stem, file, cells, run_id)


def _renames(section: object, other: object) -> bool:
    """Whether a section names another thing than the same section of a variant, whose options do not go with it."""
    if not isinstance(section, Mapping) or not isinstance(other, Mapping):
        return False
    return section.get(NAME, other.get(NAME)) != other.get(NAME)


def _places(file: StudyFile) -> list[tuple[dict[str, Any], dict[str, Any], bool]]:
    """Of every combination: its value on each axis, its overrides, and whether it is compiled."""
    named: list[tuple[dict[str, Any], dict[str, Any], bool | None]] = [
        ({NAME: cell.name}, cell.overrides, cell.compile) for cell in file.cells or ()
    ] or [({}, {}, None)]
    crossed = [dict(zip(file.grid, values, strict=True)) for values in itertools.product(*file.grid.values())]
    return [
        (_public(place | point), overrides | point, file.compile if compiled is None else compiled)
        for place, overrides, compiled in named
        for point in crossed
    ]


def _config(name: str, file: StudyFile, words: list[str], changed: dict[str, Any], seed: int | None) -> Config:
    # Sections before the keys in them. JSON is YAML that keeps the values' types.
    for key, value in sorted(changed.items(), key=lambda item: item[0].count(".")):
        # A section takes the place of the base's, whose options may be another program's.
        words += [f"{key}=null"] if isinstance(value, Mapping) else []
        words.append(f"{key}={json.dumps(value, ensure_ascii=False)}")
    words += [f"seed={seed}"] if seed is not None else []
    config = load_config(None, words, file.base)
    if config.tracking.experiment is None:
        # Data sets may differ from cell to cell; MLflow nests runs within one experiment alone.
        tracking = config.tracking.model_copy(update={"experiment": name})
        config = config.model_copy(update={"tracking": tracking})
    return config


def _data(config: Config, split: str, compiled: bool, known: dict[str, tuple[str, int]]) -> tuple[str, int]:
    """Digest of a cell's data set, and how many questions the cell is scored on."""
    key = f"{config.data.model_dump_json()} {compiled}"
    if key not in known:
        data = load(config.data)
        for needed in ("train", "dev") if compiled else ():
            data.split(needed)
        known[key] = (data.digest, len(data.split(split)))
    return known[key]


def label(value: Any) -> str:  # noqa: ANN401 - any value of a config
    """A value as a table shows it: a section that is chosen by name starts with that name."""
    if not isinstance(value, Mapping):
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    first = next((key for key in (NAME, "model") if key in value), None)
    rest = [f"{key}={label(inner)}" for key, inner in value.items() if key != first]
    return " ".join(([str(value[first])] if first else []) + rest)


def _plain(value: Any) -> Any:  # noqa: ANN401 - any value of a config
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number else label(value)


def _public(value: Any) -> Any:  # noqa: ANN401 - any value of a config
    """The value with every key to a server hidden."""
    if isinstance(value, Mapping):
        return {
            key: _HIDDEN if str(key).rpartition(".")[2] == "api_key" else _public(inner) for key, inner in value.items()
        }
    return [_public(inner) for inner in value] if isinstance(value, list) else value


def _once(where: str, values: Sequence[Any]) -> None:
    twice = next((value for number, value in enumerate(values) if value in values[:number]), None)
    if twice is not None:
        raise UserError(f"{where}: {twice!r} is there twice; once is enough")


def _hash(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
