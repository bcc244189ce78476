"""Makes the files of ``atlas`` from the fact tables: ``python -m hoptimizer.eval.atlas.generate [FOLDER]``."""

import argparse
import json
from pathlib import Path
from typing import Any

from hoptimizer.common.paths import write_whole
from hoptimizer.eval.atlas import DATA
from hoptimizer.eval.atlas.facts import read
from hoptimizer.eval.atlas.passages import passages
from hoptimizer.eval.atlas.selection import splits


def generate(folder: Path = DATA) -> dict[str, int]:
    """Write ``corpus.jsonl``, ``train.jsonl``, ``dev.jsonl`` and ``test.jsonl``, the same bytes on every run.

    Args:
        folder: where to write them; it is created if need be, and files of the same names are replaced.

    Returns:
        The number of rows of each file, by its name without the ending.

    Raises:
        FactError: the tables contradict themselves.
        ValueError: the tables hold too few facts for the number of questions.
    """
    facts = read()
    files = {"corpus": passages(facts), **splits(facts)}
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in files.items():
        _write(folder / f"{name}.jsonl", rows)
    return {name: len(rows) for name, rows in files.items()}


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    write_whole(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Make the files of the data set atlas.")
    parser.add_argument("folder", nargs="?", type=Path, default=DATA, help="where they go (default: the package's own)")
    folder = parser.parse_args().folder
    for name, count in generate(folder).items():
        print(f"{folder / name}.jsonl: {count}")


if __name__ == "__main__":
    main()
