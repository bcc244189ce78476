"""What is read of the runs of a store, whatever the store says."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from botocore.exceptions import NoCredentialsError
from mlflow.store.entities import PagedList

from hoptimizer.cli import main
from hoptimizer.cli.screen.options import store_uri
from hoptimizer.common.errors import UserError
from hoptimizer.tracking import fetching
from hoptimizer.tracking.pages import _free_port
from hoptimizer.tracking.reading import StoredRuns, oldest_first

RUN = SimpleNamespace(info=SimpleNamespace(run_id="1f2e3d", artifact_uri="s3://bucket/1f2e3d"))


class Paged:
    """A store that gives its runs three at a time, as MLflow gives a thousand."""

    def search_runs(self, experiments, words, view, order_by, page_token):
        start = int(page_token or 0)
        return PagedList(list(range(10))[start : start + 3], str(start + 3) if start + 3 < 10 else None)


def test_all_runs_are_found_however_many_there_are():
    assert list(oldest_first(Paged(), ["1"])) == list(range(10))


def test_what_looks_like_a_number_stays_what_it_is(monkeypatch):
    table = {
        "columns": ["id", "question", "answer", "em", "steps"],
        "data": [["0001", "1984", "07", 1.0, []], ["1", "2 + 2", None, 0.0, [{"step": "reader"}]]],
    }
    monkeypatch.setattr(StoredRuns, "_read", lambda *_: json.dumps(table))
    read = StoredRuns("sqlite:///mlflow.db", None, None)._table(RUN, "predictions.json")
    assert list(read["id"]) == ["0001", "1"]
    assert list(read["question"]) == ["1984", "2 + 2"]
    assert read["answer"].iloc[0] == "07"
    assert read["answer"].isna().tolist() == [False, True]
    assert read["em"].sum() == 1.0


def test_a_bucket_without_credentials_is_one_line(monkeypatch, tmp_path):
    def fails(*_, **__):
        raise NoCredentialsError

    monkeypatch.setattr("mlflow.artifacts.download_artifacts", fails)
    with pytest.raises(UserError, match=r"can't be fetched .* Unable to locate credentials"):
        fetching.fetch("models:/reader/1", f"sqlite:///{tmp_path}/mlflow.db", tmp_path)


def test_a_server_that_refuses_to_show_its_runs_is_one_line(monkeypatch, capsys):
    class Handler(BaseHTTPRequestHandler):
        def _reply(self):
            self.send_response(200 if self.path == "/health" else 403)
            self.end_headers()

        do_GET = do_POST = _reply

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr("sys.argv", ["hop", "ui", f"tracking.uri=http://127.0.0.1:{server.server_port}"])
    with pytest.raises(SystemExit) as end:
        main()
    server.shutdown()
    said = capsys.readouterr().err
    assert (end.value.code, "refuses" in said, "Traceback" in said) == (2, True, False), said


@pytest.mark.parametrize("word", ["tracking.uri=sqlite:///other.db", "tracking={uri: 'sqlite:///other.db'}"])
def test_the_store_may_be_named_in_any_notation(word):
    assert store_uri(["data=atlas", word]).endswith("/other.db")


def test_a_free_port_is_found_at_an_address_of_version_6():
    assert _free_port("::1", 0) > 0
