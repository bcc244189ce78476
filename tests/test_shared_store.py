"""Runs in a team's store: a real PostgreSQL server, and a real S3-like one (moto's server); the model is scripted."""

import json
import subprocess
import sys
import threading

import boto3
import mlflow
import pytest
from chat_server import ChatServer
from moto.server import ThreadedMotoServer
from postgres import Postgres, binaries

from hoptimizer import Tracker, UserError, compile_variant, load_config, load_variant, sync_runs
from hoptimizer.cli import main
from hoptimizer.tracking import databases
from hoptimizer.tracking.journal import Journal, keep_run
from hoptimizer.tracking.server import Unreachable

pytestmark = pytest.mark.skipif(
    binaries() is None, reason="PostgreSQL's server is not installed: apt-get install postgresql"
)
BUCKET = "s3://team"


@pytest.fixture(scope="module")
def postgres():
    with Postgres() as server:
        yield server


@pytest.fixture(scope="module")
def uri(postgres, tmp_path_factory):
    """A database with MLflow's tables, which take seconds to make."""
    uri = postgres.create("mlflow")
    Tracker(uri, "Default")
    return uri


@pytest.fixture(scope="module")
def bucket():
    """An S3-like server with a bucket, named by the variables of the environment that MLflow and boto3 read."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_S3_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "team")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "canary-s3-77d0")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        client = boto3.client("s3", endpoint_url=f"http://{host}:{port}")
        client.create_bucket(Bucket="team")
        yield client
    server.stop()


@pytest.fixture(autouse=True)
def _place(tmp_path, monkeypatch):
    monkeypatch.setenv("HOPTIMIZER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def config(uri, bucket, tmp_path):
    """A config whose language model is a scripted server."""
    with ChatServer(lambda body: "[[ ## answer ## ]]\nOslo\n\n[[ ## completed ## ]]") as lm:
        lm_words = ["lm.default.model=openai/x", f"lm.default.api_base={lm.url}", "lm.default.num_retries=0"]
        program = ["data=atlas", "data.train=4", "data.dev=2", "program=direct"]
        store = [f"tracking.uri={uri}", f"tracking.experiment={tmp_path.name}", f"tracking.artifacts={BUCKET}"]
        yield load_config(None, [*program, "optimizer=labeled_few_shot", *lm_words, *store])


def runs_of(uri, experiment):
    client = mlflow.MlflowClient(uri)
    return client.search_runs([client.get_experiment_by_name(experiment).experiment_id])


def test_a_variant_is_kept_in_postgres_and_s3_and_loaded_from_there_and_nothing_holds_the_password(
    config, bucket, postgres, tmp_path
):
    variant = compile_variant(config)
    keys = [found["Key"] for found in bucket.list_objects_v2(Bucket="team")["Contents"]]
    assert any(key.endswith("variant/program.json") for key in keys)
    assert any("predictions/" in key for key in keys)
    [run] = [run for run in runs_of(config.tracking.uri, tmp_path.name) if run.info.run_id == variant.run_id]
    assert run.info.status == "FINISHED"
    assert run.info.artifact_uri.startswith(BUCKET)
    program = load_variant(f"runs:/{variant.run_id}", tracking_uri=config.tracking.uri)
    assert program(question="What is the capital of Norway?").answer == "Oslo"

    dumped = postgres.dump(config.tracking.uri)
    assert variant.run_id in dumped
    written = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    written += [bucket.get_object(Bucket="team", Key=key)["Body"].read() for key in keys]
    for secret in (postgres.password, "canary-s3-77d0"):
        assert secret not in dumped
        assert not any(secret.encode() in content for content in written)


WRITER = """
import sys
import mlflow
from hoptimizer import load_config
from hoptimizer.tracking.journal import keep_run

def work(tracker):
    for number in range(int(sys.argv[2])):
        with tracker.run("eval", f"{sys.argv[1]}-{number}") as run:
            mlflow.log_metric("f1", number)

keep_run(load_config(None, ["data=atlas", *sys.argv[3:]]), work)
"""


def test_processes_that_write_at_once_lose_no_run(uri, tmp_path):
    words = [f"tracking.uri={uri}", f"tracking.experiment={tmp_path.name}"]
    command = [sys.executable, "-c", WRITER]
    writers = [subprocess.Popen([*command, str(name), "5", *words]) for name in range(2)]
    assert [writer.wait() for writer in writers] == [0, 0]
    runs = runs_of(uri, tmp_path.name)
    assert {run.info.run_name for run in runs} == {f"{name}-{number}" for name in range(2) for number in range(5)}
    assert {run.info.status for run in runs} == {"FINISHED"}


def test_a_database_that_restarts_between_two_runs_is_waited_for_and_said_once(postgres, uri, tmp_path, caplog):
    config = load_config(None, ["data=atlas", f"tracking.uri={uri}", f"tracking.experiment={tmp_path.name}"])

    def work(tracker):
        for name in ("before", "after"):
            with tracker.run("eval", name):
                mlflow.log_metric("f1", 1.0)
            if name == "before":
                postgres.stop()
                threading.Timer(0.5, postgres.start).start()

    keep_run(config, work)
    assert {run.info.run_name: run.info.status for run in runs_of(uri, tmp_path.name)} == {
        "before": "FINISHED",
        "after": "FINISHED",
    }
    [line] = [record.getMessage() for record in caplog.records if "tracking.uri" in record.getMessage()]
    assert line.startswith("tracking.uri: the database gives no answer; waiting for it")


def test_a_database_that_stays_away_leaves_its_runs_in_the_journal(postgres, uri, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(databases, "_PATIENCE", 0.5)
    config = load_config(None, ["data=atlas", f"tracking.uri={uri}", f"tracking.experiment={tmp_path.name}"])
    tries = []

    def work(tracker):
        with tracker.run("eval", "one") as run:
            if not tries:
                postgres.stop()
            tries.append(tracker.uri)
            mlflow.log_metric("f1", 1.0)
        return run.info.run_id

    try:
        run_id = keep_run(config, work)
        assert tries == [uri, Journal(uri).uri]
        told = [record.getMessage() for record in caplog.records if "tracking.uri" in record.getMessage()]
        assert told[-1].startswith("tracking.uri: no answer from postgresql://127.0.0.1")
        assert told[-1].endswith("the run is kept in the journal; `hop sync` delivers it")
        assert postgres.password not in caplog.text
    finally:
        postgres.start()
    [delivered] = sync_runs(uri)
    assert delivered.journal_id == run_id
    found = {run.info.run_id: run for run in runs_of(uri, tmp_path.name)}
    assert found[delivered.run_id].data.metrics == {"f1": 1.0}
    assert {run.info.status for run in found.values() if run.info.run_id != delivered.run_id} == {"KILLED"}


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (lambda uri: uri.replace("canary-postgres", "wrong"), "refuses: .*password authentication failed"),
        (lambda uri: uri.replace("/mlflow", "/other"), 'refuses: .*database "other" does not exist'),
        (lambda uri: uri.replace("postgresql:", "postgresql+nothing:"), "needs a driver"),
    ],
)
def test_a_database_that_refuses_is_one_line_at_once(uri, mistake, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["hop", "compare", "data=atlas", f"tracking.uri={mistake(uri)}"])
    with pytest.raises(SystemExit) as ended:
        main()
    err = capsys.readouterr().err
    assert ended.value.code == 2
    assert len(err.splitlines()) == 1
    with pytest.raises(UserError, match=said):
        Tracker(mistake(uri), "x")
    assert "2f9b" not in err


def test_an_experiment_whose_artifacts_lie_elsewhere_is_said(uri, tmp_path):
    assert Tracker(uri, tmp_path.name, f"{BUCKET}/here").experiment.artifact_location.startswith(f"{BUCKET}/here/")
    words = [f"tracking.uri={uri}", f"tracking.experiment={tmp_path.name}", f"tracking.artifacts={BUCKET}/there"]
    with pytest.raises(UserError, match=r"keeps its artifacts in s3://team/here/.*, not in s3://team/there"):
        keep_run(load_config(None, ["data=atlas", *words]), lambda tracker: None)


def test_a_bucket_that_is_away_is_one_line_and_the_run_waits_in_the_journal(config, monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")

    def work(tracker):
        with tracker.run("eval", "one"):
            mlflow.log_text(json.dumps({}), "some.json")

    keep_run(config, work)
    assert "http://127.0.0.1:9" in caplog.text
    assert len(Journal(config.tracking.uri).waiting()) == 1
    with pytest.raises((UserError, Unreachable)):
        sync_runs(config.tracking.uri)
