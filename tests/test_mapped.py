"""Vectors on disk are read as they were written, from anywhere."""

import sys

import numpy as np
import psutil
import pytest
import torch

from hoptimizer.retrieval import mapped as mapped_files
from hoptimizer.retrieval.index_folder import BrokenIndexError
from hoptimizer.retrieval.mapped import ScatteredRows, mapped

# More than a page of memory has, and not a multiple of it.
ROWS, WIDTH = 1001, 7


@pytest.fixture
def file(tmp_path):
    numbers = np.arange(ROWS * WIDTH, dtype=np.float32)
    (tmp_path / "rows").write_bytes(numbers.tobytes())
    return tmp_path / "rows"


@pytest.mark.parametrize("read", [mapped, lambda *what: ScatteredRows(*what).rows], ids=["in their order", "scattered"])
def test_rows_are_those_of_the_file(file, read):
    expected = torch.arange(ROWS * WIDTH, dtype=torch.float32).view(ROWS, WIDTH)
    assert torch.equal(read(file, torch.float32, (ROWS, WIDTH)), expected)
    with pytest.raises(BrokenIndexError, match="rows has another size than 1000 vectors of 7 numbers"):
        read(file, torch.float32, (1000, WIDTH))
    with pytest.raises(BrokenIndexError, match="nowhere has another size"):
        read(file.with_name("nowhere"), torch.float32, (ROWS, WIDTH))


def test_rows_can_be_expected_up_to_the_last(file):
    scattered = ScatteredRows(file, torch.float32, (ROWS, WIDTH))
    scattered.expect(np.array([0, 500, ROWS - 1]), np.array([1, 400, 1]))
    assert scattered.rows[-1].tolist() == list(range((ROWS - 1) * WIDTH, ROWS * WIDTH))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems take the advice as they like")
@pytest.mark.parametrize(("stays", "left"), [(1 << 30, 32 << 20), (1 << 20, 0)], ids=["small", "large"])
def test_what_was_read_of_a_large_file_leaves_the_process(tmp_path, monkeypatch, stays, left):
    monkeypatch.setattr(mapped_files, "_STAYS", stays)
    (tmp_path / "rows").write_bytes(bytes(32 << 20))
    scattered = ScatteredRows(tmp_path / "rows", torch.uint8, (32 << 10, 1 << 10))

    def resident() -> int:
        return sum(of.rss for of in psutil.Process().memory_maps() if of.path == str(tmp_path / "rows"))

    scattered.expect(np.array([0]), np.array([32 << 10]))
    assert scattered.rows.sum() == 0
    assert resident() == 32 << 20
    scattered.expect(np.array([5]), np.array([1]))
    assert resident() == left
    assert scattered.rows[5:6].sum() == 0
