"""Runs of processes that were killed, and processes that open one store at once."""

import os
import signal
import subprocess
import sys
import threading
import time

import mlflow
import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session

from hoptimizer import ServiceError, Tracker, UserError, load_config
from hoptimizer.compiling import work_folder
from hoptimizer.tracking.holding import HeldRuns
from hoptimizer.tracking.naming import FINGERPRINT

STARTS = """
import sys, time
from hoptimizer.tracking.tracker import Tracker
tracker = Tracker(sys.argv[1], "left")
with tracker.run("study", "outer", "the work") as outer, tracker.run("eval", "inner") as inner:
    print(outer.info.run_id, inner.info.run_id, flush=True)
    time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def uri(tmp_path):
    return f"sqlite:///{tmp_path}/mlflow.db"


def started(uri, seconds):
    process = subprocess.Popen([sys.executable, "-c", STARTS, uri, str(seconds)], stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().split()


def statuses(tracker):
    runs = tracker.client.search_runs([tracker.experiment.experiment_id])
    return {run.info.run_id: run.info.status for run in runs}


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM])
def test_the_runs_of_a_killed_process_end_with_the_next_command_and_its_work_goes_on(uri, by):
    process, (outer, inner) = started(uri, 60)
    tracker = Tracker(uri, "left")
    with pytest.raises(UserError, match=f"run {outer} is under way"), tracker.run("study", "outer", "the work"):
        pass
    assert set(statuses(tracker).values()) == {"RUNNING"}
    os.kill(process.pid, by)
    process.wait()
    with tracker.run("compare", "another"):
        pass
    assert [statuses(tracker)[run] for run in (outer, inner)] == ["KILLED", "KILLED"]
    with tracker.run("study", "outer", "the work") as run:
        assert run.info.run_id == outer
    assert statuses(tracker)[outer] == "FINISHED"
    assert list(HeldRuns(uri).left()) == []


def test_a_run_that_another_process_only_looks_after_is_waited_for(uri):
    held, looking = HeldRuns(uri), HeldRuns(uri)
    with pytest.raises(KeyError), held.hold("0" * 32):
        raise KeyError  # it is one of those that were left
    looked = threading.Event()

    def look():
        for _ in looking.left():
            looked.set()
            time.sleep(0.5)

    looker = threading.Thread(target=look)
    looker.start()
    looked.wait()
    with held.hold("0" * 32):
        pass
    looker.join()


def test_a_run_that_is_under_way_on_another_machine_stays_that_ones(uri, tmp_path, monkeypatch):
    process, (outer, _) = started(uri, 60)
    monkeypatch.setenv("HOPTIMIZER_HOME", str(tmp_path / "another"))
    tracker = Tracker(uri, "left")
    with tracker.run("study", "outer", "the work") as run:
        assert run.info.run_id != outer
    assert statuses(tracker)[outer] == "RUNNING"
    process.kill()
    process.wait()


def test_processes_that_open_a_new_store_at_once_do_not_hinder_each_other(uri):
    processes = [
        subprocess.Popen([sys.executable, "-c", STARTS.replace('"the work"', "None"), uri, "0"]) for _ in range(4)
    ]
    assert [process.wait() for process in processes] == [0] * 4
    assert sorted(statuses(Tracker(uri, "left")).values()) == ["FINISHED"] * 8


def test_a_server_that_is_not_there_is_said_at_once():
    with pytest.raises(ServiceError, match=r"no answer from http://127\.0\.0\.1:9 .*is the MLflow server up"):
        Tracker("http://user:secret@127.0.0.1:9", "x")


def test_a_store_that_fails_in_the_middle_is_one_line(uri, tmp_path):
    def work():
        with tracker.run("eval", "x"):
            (tmp_path / "mlflow.db").write_bytes(b"this is no database" * 1000)
            mlflow.set_tag("hop.some", "thing")

    tracker = Tracker(uri, "left")
    with pytest.raises(ServiceError, match=r"mlflow\.db failed: .*give the same command again") as caught:
        work()
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="can't open"):
        Tracker(uri, "left")


def test_an_interruption_in_the_middle_of_a_session_comes_after_it(uri):
    """Broken off there, SQLAlchemy told of a transaction in a wrong state, and the run was said to have failed."""

    interrupted = []

    def interrupt(*_):
        if not interrupted:
            interrupted.append(True)
            signal.raise_signal(signal.SIGINT)

    def work():
        with tracker.run("eval", "x"):
            event.listen(Session, "after_transaction_end", interrupt)
            mlflow.log_metrics({"f1": 0.5, "em": 0.25})

    tracker = Tracker(uri, "left")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            work()
    finally:
        signal.signal(signal.SIGINT, before)
        # Not while SQLAlchemy goes through the listeners, of which there may be others.
        event.remove(Session, "after_transaction_end", interrupt)
    assert interrupted
    assert set(statuses(tracker).values()) == {"KILLED"}
    with tracker.run("eval", "another"):
        mlflow.set_tag("hop.some", "thing")


def test_the_same_work_in_two_folders_is_two_pieces_of_work(tmp_path, monkeypatch):
    config = load_config(None, ["data=atlas", "program=direct"])
    folders = set()
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        folders.add(work_folder(config, "the same"))
    assert len(folders) == 2


def test_a_relative_store_is_that_of_the_folder_that_is_worked_in(tmp_path, monkeypatch):
    runs = {}
    for name in ("one", "other"):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        with Tracker("sqlite:///mlflow.db", "x").run("eval", name) as run:
            runs[name] = run.info.run_id
    assert {run.info.run_id for run in Tracker(f"sqlite:///{tmp_path}/one/mlflow.db", "x").runs()} == {runs["one"]}
    assert {run.info.run_id for run in Tracker(f"sqlite:///{tmp_path}/other/mlflow.db", "x").runs()} == {runs["other"]}


def test_what_a_worker_left_with_its_node_ends_once_nobody_is_at_it(tmp_path):
    tracker = Tracker(f"sqlite:///{tmp_path}/mlflow.db", "one")
    left, other = (
        tracker.client.create_run(tracker.experiment.experiment_id, tags={FINGERPRINT: name}) for name in ("a", "b")
    )
    assert tracker.is_elsewhere(left)
    tracker.end_running("a")
    assert [tracker.get(run.info.run_id).info.status for run in (left, other)] == ["KILLED", "RUNNING"]
