"""Answers on a disk that is damaged or full."""

import sqlite3

import pytest

from hoptimizer.models.usage import AnswerCache


def asked(number):
    return {"model": "some", "prompt": f"question {number}"}


def answered(cache, numbers):
    return [number for number in numbers if cache.get(asked(number)) is not None]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda content: b"no database" * 1000, id="overwritten"),
        pytest.param(lambda content: content[: len(content) // 2], id="cut off"),
        pytest.param(lambda content: content[:4096] + bytes(len(content) - 4096), id="zeros"),
    ],
)
def test_a_cache_with_a_damaged_part_loses_that_part_alone_and_keeps_what_is_new(tmp_path, caplog, damage):
    cache = AnswerCache(tmp_path)
    for number in range(60):
        cache.put(asked(number), {"text": str(number)})
    cache.disk_cache.close()
    damaged = sorted(tmp_path.glob("*/cache.db"))[0]
    damaged.write_bytes(damage(damaged.read_bytes()))
    cache = AnswerCache(tmp_path)
    kept = answered(cache, range(60))
    assert 40 <= len(kept) < 60
    assert "a part of the cached answers is damaged" in caplog.text
    assert len(list(tmp_path.glob("*.damaged"))) == 1
    for number in range(60):
        cache.put(asked(number), {"text": str(number)})
    cache.disk_cache.close()
    assert answered(AnswerCache(tmp_path), range(60)) == list(range(60))


def test_what_cannot_be_kept_is_said_once_and_stops_nothing(tmp_path, caplog, monkeypatch):
    cache = AnswerCache(tmp_path)

    def full(*_):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(cache.disk_cache._disk, "set", full)
    for number in range(3):
        cache.put(asked(number), {"text": "words"})
    assert answered(cache, range(3)) == [0, 1, 2], "they are in memory"
    assert caplog.text.count("answers can't be kept (database or disk is full)") == 1
