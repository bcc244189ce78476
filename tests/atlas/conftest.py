"""The bundled data set, for the tests of its files and of its language."""

from itertools import chain

import pytest
from atlas_files import SIZES, read_rows

from hoptimizer.eval.atlas.facts import Facts, read


@pytest.fixture(scope="module")
def corpus() -> dict[str, dict]:
    return {passage["id"]: passage for passage in read_rows("corpus")}


@pytest.fixture(scope="module")
def splits() -> dict[str, list[dict]]:
    return {split: read_rows(split) for split in SIZES}


@pytest.fixture(scope="module")
def questions(splits) -> list[dict]:
    return list(chain.from_iterable(splits.values()))


@pytest.fixture(scope="module")
def facts() -> Facts:
    return read()
