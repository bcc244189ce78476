"""What happens on a disk that takes no more."""

import subprocess
import sys

import pytest

from hoptimizer import ServiceError, Tracker
from hoptimizer.cli import main
from hoptimizer.tracking import databases


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """A disk of 600 kB, on which a store's tables do not find room; gives a function that enlarges it."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o"]
    if subprocess.run([*mount, "size=600k", "tmpfs", place], capture_output=True, check=False).returncode:
        pytest.skip("only root mounts a file system")
    monkeypatch.chdir(place)
    yield lambda: subprocess.run([*mount, "remount,size=50m", place], check=True)
    monkeypatch.chdir(tmp_path)
    subprocess.run(["umount", "-l", place], check=True)


def test_a_store_that_found_no_room_is_made_once_there_is_some(disk, tmp_path, monkeypatch):
    monkeypatch.setenv("HOPTIMIZER_HOME", str(tmp_path / "home"))
    with pytest.raises(ServiceError, match=r"can't open 'sqlite:///mlflow.db': no space is left on the disk"):
        Tracker("sqlite:///mlflow.db", "x")
    disk()
    assert Tracker("sqlite:///mlflow.db", "x").runs() == []


def test_a_store_whose_making_was_killed_is_made_anew(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    left = tmp_path / ".mlflow.db.making-x"
    left.mkdir()
    (left / "mlflow.db").write_bytes(b"half")
    assert Tracker("sqlite:///mlflow.db", "x").runs() == []
    assert [file.name for file in tmp_path.iterdir() if "mlflow.db" in file.name] == ["mlflow.db"]


@pytest.mark.parametrize("uri", ["sqlite:///:memory:", "sqlite:///x.db?timeout=5", "http://127.0.0.1:9", "mlruns"])
def test_what_is_no_new_file_is_left_to_mlflow(uri, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    databases.make_store(uri)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(28, "No space left on device", "/data/x"), "hop: no space is left on the disk ([Errno 28] No space"),
        (OSError(30, "Read-only file system", "/data/x"), "hop: the disk can't be written to ([Errno 30] Read-only"),
    ],
)
def test_a_disk_that_takes_no_more_is_one_line(error, says, monkeypatch, capsys):
    def work(**_):
        try:
            raise error
        except OSError as first:
            raise RuntimeError("a library's own words") from first

    monkeypatch.setattr("hoptimizer.cli.app.app", work)
    monkeypatch.setattr(sys, "argv", ["hop"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    printed = capsys.readouterr().err
    assert printed.startswith(says)
    assert printed.count("\n") == 1
