"""The cells of a study: what a study file's base, cells, grid and seeds come to."""

import hashlib
import itertools
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hoptimizer.common.errors import UserError
from hoptimizer.common.strict import read_mapping
from hoptimizer.common.urls import public
from hoptimizer.common.validation import explain
from hoptimizer.config import Config, make_config
from hoptimizer.eval.datasets.dataset import load
from hoptimizer.layers import Layers
from hoptimizer.study.file import COMPILE, HIDDEN, NAME, StudyFile, label

_log = logging.getLogger(__name__)


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
        split: the questions that it is scored on.
        n: how many these are.
        options: its values of the keys that are chosen for it, as text (numbers as they are).
        source: what its program is compiled as, where keys of the compile make that differ from what is scored.
    """

    name: str
    place: dict[str, Any]
    overrides: dict[str, Any]
    config: Config
    compiled: bool
    data: str
    split: str
    n: int
    options: dict[str, Any] = field(default_factory=dict)
    source: "Cell | None" = None

    @property
    def title(self) -> str:
        """Its name with its values of the keys that are chosen."""
        return ", ".join([self.name, *(f"{key}={label(value)}" for key, value in self.options.items())])

    @property
    def is_timed(self) -> bool:
        """Whether it measures time: none of its language models has a cache."""
        return not any(lm.cache for lm in self.config.lm.values())

    @cached_property  # it reads the models' folders
    def digest(self) -> str:
        """Hash of what it runs, whatever it is called."""
        source = [self.source.digest] if self.source else []
        # A question waits for those that are under way beside it.
        beside = [f"workers {self.config.workers}"] if self.is_timed else []
        return _hash(self.config.digest, self.data, str(self.compiled), *source, *beside)


@dataclass(frozen=True)
class Study:
    """A validated study.

    Attributes:
        name: the file's name without its ending.
        file: how its results are shown.
        cells: what the table is made of, in order; where keys are chosen, once with each of their values.
        run_id: the compiled variant that every cell starts from, or ``None``.
        candidates: what keys are chosen by: cells on the questions that these are chosen on, with the first seed.
    """

    name: str
    file: StudyFile
    cells: list[Cell]
    run_id: str | None = None
    candidates: list[Cell] = field(default_factory=list)

    @property
    def config(self) -> Config:
        """Of the first cell; the metric and the tracking are those of all."""
        return self.cells[0].config

    @property
    def seeds(self) -> list[int]:
        """With which each cell is run."""
        return list(dict.fromkeys(cell.config.seed for cell in self.cells))

    @cached_property
    def sources(self) -> dict[str, Cell]:
        """What is compiled to be scored as something else, by its digest."""
        return {cell.source.digest: cell.source for cell in (*self.candidates, *self.cells) if cell.source}

    def fingerprint(self, cell: Cell) -> str:
        """Identifies the run of a cell among all runs; one that another study finished ends alike."""
        return f"{self.digest} {self.work(cell)}"

    def work(self, cell: Cell) -> str:
        """Identifies what is run for a cell, whatever else is in the study."""
        return _hash(cell.digest, cell.split, *([self.run_id] if self.run_id else []))

    @cached_property
    def digest(self) -> str:
        """Hash of what is run; how it is shown may change in the file, and nothing is run again."""
        chosen_on = [self.file.choose.split] if self.file.choose else []
        start = [self.run_id] if self.run_id else []
        return _hash(self.file.split, *chosen_on, *(cell.digest for cell in self.cells), *start)


def load_study(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    run_id: str | None = None,
    variant: Mapping[str, Any] | None = None,
    only: Sequence[str] = (),
) -> Study:
    """Read a study file, and validate the config and the data of every cell in it.

    Args:
        path: the YAML file.
        overrides: ``key=value`` arguments that change ``base``.
        run_id: a compiled variant that every cell starts from.
        variant: its config as plain data, which ``base`` changes.
        only: names of cells, and values on the grid as ``KEY=VALUE``: the rows to which the study is limited.

    Raises:
        UserError: the file or the config of a cell is malformed, or its data can't be had; the message names the file,
            the cell and the key.

    Example:
        >>> from pathlib import Path
        >>> from hoptimizer import load_study
        >>> _ = Path("depth.yaml").write_text('''
        ... base:
        ...   data: {name: atlas, dev: 5}
        ...   program: {name: rag, reader: none}
        ...   retriever: {name: bm25}
        ... grid:
        ...   retriever.k: [2, 4]
        ... ''')
        >>> study = load_study(Path("depth.yaml"), ["seed=1"])
        >>> [cell.config.retriever.k for cell in study.cells]
        [2, 4]
        >>> [cell.name for cell in load_study(Path("depth.yaml"), only=["retriever.k=4"]).cells]
        ['retriever.k=4']
    """
    values = read_mapping(path)
    try:
        file = StudyFile.model_validate(values).only(only)
        base = Layers(file.base, variant=variant)
    except ValidationError as error:
        raise UserError(f"{path}: {explain(error, StudyFile)}") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    base.add_words(overrides)
    notes: dict[str, None] = {}
    sizes: dict[str, tuple[str, int]] = {}
    seeds: Sequence[int | None] = file.seeds or [None]
    cells, candidates = [], []
    for spot in _spots(file):
        name = _name(spot.place)
        for seed in seeds:
            for options in spot.options:
                changed = spot.overrides | options
                scored = {key: value for key, value in changed.items() if not key.startswith(COMPILE)}
                made = {key.removeprefix(COMPILE): changed[key] for key in changed if key.startswith(COMPILE)}
                try:
                    config = _config(path.stem, base, [scored], seed, notes)
                    cell = Cell(
                        name,
                        place={axis: _plain(value) for axis, value in spot.place.items()},
                        overrides=public(changed, HIDDEN),
                        config=config,
                        compiled=spot.compiled,
                        **_questions(config, file.split, spot.compiled, sizes),
                        options={key: _plain(value) for key, value in public(options, HIDDEN).items()},
                    )
                    if made and spot.compiled:
                        config = _config(path.stem, base, [scored, made], seed, notes)
                        on = _questions(config, file.choose.split if file.choose else "dev", True, sizes)
                        cell = replace(cell, source=_source(cell, config, spot.place, on))
                    cells.append(cell)
                    if file.choose and len(spot.options) > 1 and seed == seeds[0]:
                        other = _questions(config, file.choose.split, spot.compiled, sizes)
                        candidates.append(replace(cell, **other))
                except UserError as error:
                    raise UserError(f"{path}: cell {name!r}: {error}") from None
    for note in notes:
        _log.warning(note)
    return Study(path.stem, file, cells, run_id, candidates)


@dataclass(frozen=True)
class _Spot:
    """A combination of the axes: its values on them, what it changes, and what is chosen from for it."""

    place: dict[str, Any]
    overrides: dict[str, Any]
    compiled: bool
    options: list[dict[str, Any]]


def _spots(file: StudyFile) -> list[_Spot]:
    """Every combination of the axes."""
    named = [({NAME: cell.name}, cell.overrides, cell.compile, cell.choose) for cell in file.cells or ()]
    shared = file.choose.grid if file.choose else {}
    return [
        _Spot(
            place=public(place | point, HIDDEN),
            overrides=overrides | point,
            compiled=file.compile if compiled is None else compiled,
            options=_crossed(shared if own is None else own),
        )
        for place, overrides, compiled, own in named or [({}, {}, None, None)]
        for point in _crossed(file.grid)
    ]


def _crossed(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """All combinations of the values of keys."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def _name(place: Mapping[str, Any]) -> str:
    return ", ".join(value if axis == NAME else f"{axis}={label(value)}" for axis, value in place.items())


def _source(cell: Cell, config: Config, place: Mapping[str, Any], questions: dict[str, Any]) -> Cell | None:
    """What a cell's program is compiled as; ``None`` where that is the cell itself.

    Raises:
        UserError: it would be another program.
    """
    scored, made = cell.config.program.name, config.program.name
    if scored != made:
        raise UserError(f"compile.program: {scored} can't be scored as what {made} was compiled to; leave the key out")
    # By what it is compiled with: cells which share it call it the same.
    axes = {axis: value for axis, value in place.items() if not axis.startswith(COMPILE)}
    axes |= {axis.removeprefix(COMPILE): value for axis, value in place.items() if axis.startswith(COMPILE)}
    source = replace(cell, name=f"compile of {_name(axes)}", config=config, **questions)
    return None if source.digest == cell.digest else source


def _config(
    name: str, base: Layers, changes: Sequence[Mapping[str, Any]], seed: int | None, notes: dict[str, None]
) -> Config:
    """The config of a cell, in which later changes win; ``notes`` gets what it dropped of the base."""
    layers = base.copy()
    words = []
    # Sections before the keys in them.
    for key, value in (one for each in changes for one in sorted(each.items(), key=lambda item: item[0].count("."))):
        words.append(f"{key}={json.dumps(value, ensure_ascii=False)}")  # JSON is YAML that keeps the values' types
    words += [f"seed={seed}"] if seed is not None else []
    layers.add_words(words)
    config = make_config(layers.resolved())
    # That a cell's program has none of the options of the base's is no news.
    notes |= dict.fromkeys(layers.notes(config.public(), shared=True))
    if config.tracking.experiment is None:
        # Data sets may differ from cell to cell; MLflow nests runs within one experiment alone.
        tracking = config.tracking.model_copy(update={"experiment": name})
        config = config.model_copy(update={"tracking": tracking})
    return config


def _questions(config: Config, split: str, compiled: bool, known: dict[str, tuple[str, int]]) -> dict[str, Any]:
    """What a cell says of its questions; ``known`` has the digest of each data set, and the size of the split."""
    key = f"{config.data.model_dump_json()} {split} {compiled}"
    if key not in known:
        data = load(config.data)
        for needed in ("train", "dev") if compiled else ():
            data.split(needed)
        known[key] = (data.digest, len(data.split(split)))
    digest, n = known[key]
    return {"data": digest, "split": split, "n": n}


def _plain(value: Any) -> Any:  # noqa: ANN401 - any value of a config
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number else label(value)


def _hash(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
