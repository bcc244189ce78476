"""Keys whose values are chosen on other questions than those of the table, as papers choose hyperparameters on dev."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hoptimizer.eval.display.format import figure, heading
from hoptimizer.eval.display.sheet import Sheet
from hoptimizer.study.cells import Cell, Study
from hoptimizer.study.file import label
from hoptimizer.study.lines import told_n


@dataclass(frozen=True)
class Choice:
    """What was chosen for one combination of the axes.

    Attributes:
        name: the combination's.
        options: the values that there were to choose from.
        figures: the figure that each came to; ``None`` where it failed.
        chosen: the number of the best ones, the first of equal ones; ``None`` where any failed: what would be chosen
            then is not known.
    """

    name: str
    options: list[dict[str, Any]]
    figures: list[float | None]

    @property
    def chosen(self) -> int | None:
        known = [value for value in self.figures if value is not None]
        return self.figures.index(max(known)) if known and len(known) == len(self.figures) else None

    def as_dict(self) -> dict[str, Any]:
        """The choice in what ``hop study --json`` prints."""
        found = [options | {"figure": value} for options, value in zip(self.options, self.figures, strict=True)]
        return {"name": self.name, "chosen": None if self.chosen is None else self.options[self.chosen], "of": found}


def chosen_by(study: Study) -> str:
    """The figure that the best values have."""
    return (study.file.choose and study.file.choose.by) or study.config.objective.name


def choices(study: Study, results: Sequence[tuple[Cell, dict[str, float]]]) -> list[Choice]:
    """What is chosen, by each combination of the axes.

    Args:
        study: what is run.
        results: each candidate with its figures, of which a failed one has none.
    """
    found: dict[str, Choice] = {}
    for cell, figures in results:
        choice = found.setdefault(cell.name, Choice(cell.name, [], []))
        choice.options.append(cell.options)
        choice.figures.append(figures.get(chosen_by(study)))
    return list(found.values())


def chosen_cells(study: Study, made: Sequence[Choice]) -> list[tuple[Cell, str | None]]:
    """The cells of the table, each with the reason why it can't be run, or ``None``.

    Args:
        study: what is run.
        made: what was chosen.
    """
    by_name = {choice.name: choice for choice in made}
    cells: list[tuple[Cell, str | None]] = []
    for cell in study.cells:
        choice = by_name.get(cell.name)
        if choice is None:
            cells.append((cell, None))
        elif choice.chosen is not None:
            cells += [(cell, None)] if cell.options == choice.options[choice.chosen] else []
        elif cell.options == choice.options[0]:
            count = sum(value is None for value in choice.figures)
            none = f"{count} of {len(choice.figures)} values to choose from have no {chosen_by(study)}"
            cells.append((cell, f"{none}; the same command tries them again"))
    return cells


def choice_sheet(study: Study, made: Sequence[Choice]) -> Sheet:
    """What there was to choose from, and what was chosen."""
    by, split = chosen_by(study), study.candidates[0].split
    keys = list(dict.fromkeys(key for choice in made for options in choice.options for key in options))
    rows = [(choice, number, options) for choice in made for number, options in enumerate(choice.options)]
    return Sheet(
        title=f"{study.name}: chosen by {heading(by)} on {split}, {told_n(cell.n for cell in study.candidates)}",
        header=["cell", *keys, heading(by)],
        labels=1,
        rows=[
            [
                choice.name or study.name,
                *(label(options[key]) if key in options else "–" for key in keys),
                figure(by, choice.figures[number]),
            ]
            for choice, number, options in rows
        ],
        bold=frozenset((row, len(keys) + 1) for row, (choice, number, _) in enumerate(rows) if number == choice.chosen),
        note="Bold: what is chosen.",
    )
