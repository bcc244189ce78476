"""A wide table on a narrow screen."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from hoptimizer.eval.display.sheet import Sheet

# A column has room for what is in it, or for so many characters.
_LEAST = 20
# Between two columns.
_GAP = 2


@dataclass(frozen=True)
class Parts:
    """A table in as many parts, one below the other, as it takes to be no wider than the screen.

    Each has the columns that say what a row is. What rich has no room for it leaves out without a word.

    Attributes:
        shown: the table.
    """

    shown: Sheet

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        parts = self._columns(options.max_width)
        for number, columns in enumerate(parts):
            if number:
                yield Text()
            yield self._part(columns, options.max_width, is_first=number == 0, is_last=number == len(parts) - 1)

    def _columns(self, width: int) -> list[list[int]]:
        labels = list(range(self.shown.labels))
        parts: list[list[int]] = [labels]
        for column in range(self.shown.labels, len(self.shown.header)):
            wider = [*parts[-1], column]
            taken = sum(self._least(each, width) for each in wider) + _GAP * (len(wider) - 1)
            if taken > width and parts[-1] != labels:
                parts.append([*labels, column])
            else:
                parts[-1] = wider
        return parts

    def _least(self, column: int, width: int) -> int:
        """The fewest characters that a column is shown in; the first one, of names, gets what the others leave."""
        texts = (*self.shown.header[column].split(), *(row[column] for row in self.shown.rows))
        return min(max(map(cell_len, texts), default=0), _LEAST if column == 0 else max(_LEAST, width // 3))

    def _part(self, columns: Sequence[int], width: int, *, is_first: bool, is_last: bool) -> Table:
        table = Table(box=None, header_style="bold", pad_edge=False, title_justify="left", caption_justify="left")
        for column in columns:
            justify: Literal["left", "right"] = "left" if column < self.shown.labels else "right"
            least = self._least(column, width)
            fixed = least if column else None
            table.add_column(self.shown.header[column], justify=justify, overflow="fold", width=fixed, min_width=least)
        for number, row in enumerate(self.shown.rows):
            styles = ["bold" if (number, column) in self.shown.bold else "" for column in columns]
            table.add_row(*map(Text, (row[column] for column in columns), styles))
        table.title = self.shown.title if is_first else None
        table.caption = (self.shown.note or None) if is_last else None
        return table
