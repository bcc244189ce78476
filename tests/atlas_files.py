"""The files of the bundled data set."""

import json

from hoptimizer.eval.atlas import DATA

SIZES = {"train": 200, "dev": 60, "test": 200}


def read_rows(name: str) -> list[dict]:
    """The rows of one of the data set's files."""
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
