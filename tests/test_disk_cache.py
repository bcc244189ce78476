"""Answers on a disk that is damaged or full."""

import contextlib
import sqlite3
import threading

import psutil
import pytest

from hoptimizer.models import disk_cache
from hoptimizer.models.disk_cache import open_disk
from hoptimizer.models.usage import AnswerCache


def asked(number):
    return {"model": "some", "prompt": f"question {number}"}


def answered(cache, numbers):
    return [number for number in numbers if cache.get(asked(number)) is not None]


def test_a_cache_that_cannot_be_opened_on_a_full_disk_is_not_damaged(tmp_path, monkeypatch):
    cache = AnswerCache(tmp_path)
    cache.put(asked(1), {"text": "1"})
    cache.disk_cache.close()

    def full(*_, **__):
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", full)
        with pytest.raises(sqlite3.OperationalError):
            AnswerCache(tmp_path)
    assert not list(tmp_path.glob("*.damaged"))
    assert answered(AnswerCache(tmp_path), [1]) == [1]


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


def test_threads_do_not_each_hold_the_answers_in_memory(tmp_path):
    writer = AnswerCache(tmp_path)
    for number in range(1000):
        writer.put(asked(number), {"text": "words " * 2000})
    cache, done = AnswerCache(tmp_path), threading.Barrier(9, timeout=60)
    keys = [cache.cache_key(asked(number)) for number in range(1000)]
    before = psutil.Process().memory_info().rss

    def read():
        for key in keys:
            assert cache.disk_cache.get(key)
        done.wait()  # the threads hold their connections until all are measured
        done.wait()

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    done.wait()
    grown = psutil.Process().memory_info().rss - before
    done.wait()
    for thread in threads:
        thread.join()
    assert grown < 60e6, "12 MB of answers, read by eight threads, were 140 MB"


def test_what_cannot_be_kept_is_said_once_and_stops_nothing(tmp_path, caplog, monkeypatch):
    cache = AnswerCache(tmp_path)

    def full(*_):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(cache.disk_cache._disk, "set", full)
    for number in range(3):
        cache.put(asked(number), {"text": "words"})
    assert answered(cache, range(3)) == [0, 1, 2], "they are in memory"
    assert caplog.text.count("answers can't be kept (database or disk is full)") == 1


def test_what_cannot_be_kept_beside_another_process_is_said(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(disk_cache, "_TIMEOUT", 0.1)
    disk = open_disk(tmp_path, 1 << 30)
    with contextlib.ExitStack() as held:
        for database in tmp_path.glob("*/cache.db"):
            writer = held.enter_context(contextlib.closing(sqlite3.connect(database, isolation_level=None)))
            writer.execute("BEGIN IMMEDIATE")
        assert not disk.set("key", "value")
    assert caplog.text.count("answers can't be kept (another process holds the database)") == 1
    assert disk.set("key", "value")
