"""Runs whose MLflow server gives no answer are kept in the journal, and delivered later.

The MLflow server is a real one, which is out of reach at times; the language model is a scripted server.
"""

import json
import shutil
import socket
import sys
from collections import Counter

import mlflow
import pytest
from chat_server import ChatServer
from mlflow_server import MlflowServer

from hoptimizer import (
    ServiceError,
    Tracker,
    UserError,
    compile_variant,
    evaluate_variant,
    load_config,
    load_study,
    load_variant,
    run_study,
    sync_runs,
)
from hoptimizer.cli import main
from hoptimizer.common.paths import home
from hoptimizer.compiling import work_folder
from hoptimizer.study import cell_runs
from hoptimizer.tracking.holding import HeldRuns
from hoptimizer.tracking.journal import Journal, journals
from hoptimizer.tracking.models import local_folder
from hoptimizer.tracking.reading import StoredRuns

SAID = "the run is kept in the journal; `hop sync` delivers it"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with MlflowServer(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def server(running, tmp_path, monkeypatch):
    """The server, within reach, with an experiment, a home and a working folder for the test alone."""
    # MLflow's pauses between its requests are not what is tested.
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("HOPTIMIZER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    running.start()
    yield running
    running.start()


@pytest.fixture
def lm():
    """A language model that is right for half of the questions."""

    def reply(body):
        question = body["messages"][-1]["content"]
        return f"[[ ## answer ## ]]\n{(len(question) % 2 and 'yes') or 'no'}\n\n[[ ## completed ## ]]"

    with ChatServer(reply) as lm:
        yield lm


def words(server, lm, tmp_path):
    served = ["lm.default.model=openai/x", f"lm.default.api_base={lm.url}", "lm.default.num_retries=0"]
    return ["data=atlas", *served, f"tracking.uri={server.url}", f"tracking.experiment={tmp_path.name}"]


SEARCHING = ["program.name=rag", "program.reader=none", "retriever=bm25", "data.dev=4"]


def stops(lm, server, at):
    """Lets the MLflow server be out of reach from the language model's call of a number on."""
    reply = lm.answer

    def stopping(body):
        if len(lm.bodies) == at:
            server.stop()
        return reply(body)

    lm.answer = stopping


def kept(uri, experiment):
    """The runs of an experiment by their kind and name; no two are alike."""
    client = mlflow.MlflowClient(uri)
    found = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    runs = {f"{run.data.tags['hop.kind']}: {run.info.run_name}": run for run in found}
    assert len(runs) == len(found), [run.info.run_name for run in found]
    return runs


def predictions(uri, experiment, run_id):
    return StoredRuns(uri, mlflow.MlflowClient(uri), experiment).predictions(run_id, "dev").table


@pytest.fixture
def hop(monkeypatch, capsys):
    """Runs ``hop``; gives exit code, stdout and the lines of stderr."""

    def run(*given):
        monkeypatch.setattr(sys, "argv", ["hop", *given])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err.splitlines()

    return run


def test_an_evaluation_whose_server_dies_ends_in_the_journal_and_is_delivered_once(server, lm, hop, tmp_path):
    stops(lm, server, at=3)
    given = ["data.dev=6", "lm.default.cache=false", "workers=1", "program=direct", *words(server, lm, tmp_path)]
    code, out, told = hop("eval", *given, "--json")
    run_id, [line] = json.loads(out)["run_id"], [line for line in told if "tracking.uri" in line]
    assert code == 0
    assert line.startswith(f"tracking.uri: no answer from {server.url} (")
    assert line.endswith(f"{SAID}")
    assert len(lm.bodies) == 6, "no question is asked twice"
    journal = Journal(server.url)
    table = predictions(journal.uri, tmp_path.name, run_id)
    assert len(table) == 6

    code, out, told = hop("sync", "--json")
    assert (code, json.loads(out)) == (1, {"delivered": []})
    assert [line.count("runs that wait in the journal: 1") for line in told] == [1]
    server.start()
    _, _, told = hop("compare", "data=atlas", *(word for word in given if word.startswith("tracking.")))
    assert "1 run waits in the journal: `hop sync` delivers it" in told
    code, out, _ = hop("sync", "--json")
    [delivered] = json.loads(out)["delivered"]
    assert (code, delivered["journal_id"], delivered["tracking_uri"]) == (0, run_id, server.url)
    client = mlflow.MlflowClient(server.url)
    run, source = client.get_run(delivered["run_id"]), journal.client.get_run(run_id)
    assert (run.info.status, run.data.tags["hop.journal"]) == ("FINISHED", run_id)
    assert (run.data.params, run.data.metrics) == (source.data.params, source.data.metrics)
    assert (run.info.start_time, run.info.end_time) == (source.info.start_time, source.info.end_time)
    assert [one.dataset.name for one in run.inputs.dataset_inputs] == ["atlas-dev"]
    assert predictions(server.url, tmp_path.name, run.info.run_id).equals(table)
    left = [one.info for one in client.search_runs([run.info.experiment_id], "attributes.status != 'FINISHED'")]
    assert [one.status for one in left] == ["KILLED"], "what the server had is not running any more"
    assert hop("sync")[:2] == (0, "No runs were delivered.\n")
    assert [file for file in journal.folder.rglob("*") if run_id in str(file)] == []


def scored(compiling):
    return {row.question.id: row.answer for row in compiling.after.rows}


def killed_after(step, server, monkeypatch):
    """Ends a delivery as Ctrl-C does, once a step was done in the journal."""
    whole = getattr(mlflow.MlflowClient, step)

    def ending(client, *given):
        whole(client, *given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(mlflow.MlflowClient, step, ending)
        with pytest.raises(KeyboardInterrupt):
            sync_runs(server.url)


def test_a_compile_goes_on_without_its_server_and_its_model_loads_from_there_afterwards(
    server, lm, tmp_path, monkeypatch
):
    search = ["program=direct", "optimizer=bootstrap_random_search", "optimizer.num_candidate_programs=2"]
    search += ["optimizer.max_bootstrapped_demos=1", "data.train=6", "data.dev=10", "workers=1"]
    # More of dev than an estimate asks with demonstrations, or the candidate that shows these makes no call itself.
    stops(lm, server, at=10)
    config = load_config(None, [*words(server, lm, tmp_path), *search])
    variant = compile_variant(config)
    journal = Journal(server.url)
    assert max(Counter(json.dumps(body) for body in lm.bodies).values()) == 1
    again = evaluate_variant(config, run_id=variant.run_id)
    assert scored(again) == scored(variant)
    source = kept(journal.uri, tmp_path.name)
    waiting = load_variant(f"runs:/{variant.run_id}", tracking_uri=server.url)

    server.start()
    killed_after("delete_logged_model", server, monkeypatch)
    ids = {run.journal_id: run.run_id for run in sync_runs(server.url)}
    runs = kept(server.url, tmp_path.name)
    assert runs.keys() == source.keys()
    assert set(ids) == {run.info.run_id for run in source.values()}
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    compiled = runs["compile: direct bootstrap_random_search x"].info.run_id
    candidates = [run for name, run in runs.items() if name.startswith("candidate")]
    assert len(candidates) >= 3
    assert {run.data.tags["mlflow.parentRunId"] for run in candidates} == {compiled} == {ids[variant.run_id]}
    assert runs["eval: direct bootstrap_random_search x"].data.tags["hop.variant"] == compiled
    client = mlflow.MlflowClient(server.url)
    points = client.get_metric_history(compiled, "workings/search/score")
    assert len({point.step for point in points}) == len(points) == len(candidates)
    program = load_variant(f"runs:/{compiled}", tracking_uri=server.url)
    question = variant.after.rows[0].question.question
    assert program(question=question).answer == variant.after.rows[0].answer
    assert program.program.dump_state() == waiting.program.dump_state()
    mlflow.set_tracking_uri(server.url)
    model = client.get_logged_model(runs["compile: direct bootstrap_random_search x"].outputs.model_outputs[0].model_id)
    assert mlflow.pyfunc.load_model(model.model_uri).predict([question])[0]["answer"]
    scored_by = {(metric.key, metric.run_id) for metric in model.metrics}
    assert {("dev/f1", compiled), ("dev/f1", runs["eval: direct bootstrap_random_search x"].info.run_id)} <= scored_by
    assert (str(model.status), model.source_run_id) == ("READY", compiled)
    [linked] = json.loads(model.tags["mlflow.linkedPrompts"])
    assert client.load_prompt(f"prompts:/{linked['name']}/{linked['version']}").template[0]["role"] == "system"
    traces = mlflow.search_traces(run_id=compiled, locations=[model.experiment_id], return_type="list")
    assert traces
    assert {trace.info.trace_metadata["mlflow.modelId"] for trace in traces} == {model.model_id}
    assert {trace.info.trace_id for trace in traces} == {*predictions(server.url, tmp_path.name, compiled)["trace"]}
    assert sync_runs(server.url) == []


def test_a_compile_that_finds_its_server_again_is_kept_there(server, lm, tmp_path):
    search = ["program=direct", "optimizer=bootstrap_random_search", "optimizer.num_candidate_programs=1"]
    search += ["optimizer.max_bootstrapped_demos=1", "data.train=6", "data.dev=4", "workers=1"]
    stops(lm, server, at=3)

    def report(stage, done, total, remark):
        if stage.startswith("direct compiled on dev"):
            server.start()

    variant = compile_variant(load_config(None, [*words(server, lm, tmp_path), *search]), report=report)
    runs = kept(server.url, tmp_path.name)
    candidates = [run for name, run in runs.items() if name.startswith("candidate")]
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert {run.data.tags["mlflow.parentRunId"] for run in candidates} == {variant.run_id}
    assert len(candidates) == len(runs) - 1 >= 3
    assert not Journal(server.url).exists


@pytest.fixture
def study(server, lm, tmp_path):
    """Three cells that only search."""
    (tmp_path / "depth.yaml").write_text("grid: {retriever.k: [1, 2, 3]}")
    return load_study(tmp_path / "depth.yaml", [*words(server, lm, tmp_path), *SEARCHING])


def killed_at(step, server, monkeypatch):
    """Ends a delivery as Ctrl-C does, at the second time of a step."""
    times = []
    whole = getattr(mlflow.MlflowClient, step)

    def ending(client, *given, **options):
        if client.tracking_uri == server.url:
            times.append(step)
            if len(times) == 2:
                raise KeyboardInterrupt
        return whole(client, *given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(mlflow.MlflowClient, step, ending)
        with pytest.raises(KeyboardInterrupt):
            sync_runs(server.url)


def test_a_study_whose_server_dies_is_whole_after_deliveries_that_were_killed(study, server, tmp_path, monkeypatch):
    score, ran = cell_runs.evaluate_variant, []

    def run(config, **options):
        ran.append(options["name"])
        if len(ran) == 2:
            server.stop()
        return score(config, **options)

    monkeypatch.setattr(cell_runs, "evaluate_variant", run)
    result = run_study(study)
    assert ran == [cell.name for cell in study.cells]

    server.start()
    for step in ("create_run", "log_artifacts", "set_terminated"):
        killed_at(step, server, monkeypatch)
    assert 0 < len(sync_runs(server.url)) < 3, "what was delivered before the kills is not delivered again"
    runs = kept(server.url, tmp_path.name)
    [parent] = [run for name, run in runs.items() if name.startswith("study")]
    cells = [run for name, run in runs.items() if name.startswith("eval")]
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert [run.data.tags["mlflow.parentRunId"] for run in cells] == [parent.info.run_id] * 3
    mlflow.set_tracking_uri(server.url)
    table = mlflow.artifacts.load_dict(f"runs:/{parent.info.run_id}/study.json")
    assert {table["run_id"], *(cell["run_id"] for cell in table["cells"])} == {run.info.run_id for run in runs.values()}

    again = run_study(study)
    assert (ran[3:], again.run_id) == ([], parent.info.run_id), "the same command has nothing left to do"
    assert [one.metrics for one in again.outcomes] == [one.metrics for one in result.outcomes]


@pytest.fixture
def ran(monkeypatch):
    """The names of the cells that were run; while ``ran.fails`` has a name, that cell fails."""

    class Ran(list):
        fails = None

    score, ran = cell_runs.evaluate_variant, Ran()

    def run(config, **options):
        ran.append(options["name"])
        if options["name"] == ran.fails:
            raise UserError("no such day")
        return score(config, **options)

    monkeypatch.setattr(cell_runs, "evaluate_variant", run)
    return ran


def test_a_study_that_finished_later_on_the_server_keeps_its_tables(study, server, tmp_path, monkeypatch, ran):
    server.stop()
    ran.fails = "retriever.k=2"
    assert len(run_study(study).failed) == 1
    server.start()
    ran.fails = None
    with monkeypatch.context() as patch:
        patch.setenv("HOPTIMIZER_HOME", str(tmp_path / "another"))
        later = run_study(study)
    assert later.failed == []

    delivered = {run.kind: run.run_id for run in sync_runs(server.url)}
    assert delivered["study"] == later.run_id
    client = mlflow.MlflowClient(server.url)
    run = client.get_run(later.run_id)
    assert (run.info.status, run.data.tags.get("hop.failure")) == ("FINISHED", None)
    mlflow.set_tracking_uri(server.url)
    table = mlflow.artifacts.load_dict(f"runs:/{later.run_id}/study.json")
    assert [cell["run_id"] for cell in table["cells"]] == [outcome.run_id for outcome in later.outcomes]
    cells = client.search_runs([run.info.experiment_id], f"tags.`mlflow.parentRunId` = '{later.run_id}'")
    assert sorted(cell.info.status for cell in cells) == ["FAILED", *["FINISHED"] * 5]
    assert Journal(server.url).waiting() == []


def test_a_study_whose_finished_cells_wait_asks_for_their_delivery_and_runs_none_twice(study, server, ran, tmp_path):
    server.stop()
    ran.fails = "retriever.k=2"
    run_study(study)
    server.start()
    ran.clear()
    with pytest.raises(UserError, match=r"study depth: 2 finished cells wait in the journal.*`hop sync` first"):
        run_study(study)
    assert ran == []
    sync_runs(server.url)
    ran.fails = None
    assert run_study(study).failed == []
    assert ran == ["retriever.k=2"]
    assert {run.info.status for run in kept(server.url, tmp_path.name).values()} == {"FINISHED"}


COMPILING = ["program=direct", "optimizer=labeled_few_shot", "data.train=4", "data.dev=2"]


def test_a_compile_that_ended_while_its_model_was_logged_is_delivered_without_it(server, lm, tmp_path, monkeypatch):
    server.stop()
    config = load_config(None, [*words(server, lm, tmp_path), *COMPILING])

    def ending(*given, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(mlflow.MlflowClient, "log_model_artifacts", ending)
        with pytest.raises(KeyboardInterrupt):
            compile_variant(config, score_before=False)
    evaluate_variant(config)
    journal = Journal(server.url)
    [compiled] = [run for run in journal.waiting() if run.data.tags["hop.kind"] == "compile"]
    assert compiled.outputs.model_outputs
    server.start()
    assert {"compile", "eval"} <= {run.kind for run in sync_runs(server.url)}
    statuses = {run.data.tags["hop.kind"]: run.info.status for run in kept(server.url, tmp_path.name).values()}
    assert statuses == {"compile": "KILLED", "candidate": "FINISHED", "eval": "FINISHED"}
    assert journal.waiting() == []
    assert not local_folder(compiled.info.artifact_uri).exists()


def test_a_run_that_cannot_be_delivered_does_not_stop_the_others(server, lm, hop, tmp_path):
    client = mlflow.MlflowClient(server.url)
    gone = client.create_experiment(f"{tmp_path.name}-gone")
    server.stop()
    given = [*words(server, lm, tmp_path), *COMPILING]
    evaluate_variant(load_config(None, [*given, f"tracking.experiment={tmp_path.name}-gone"]))
    variant = compile_variant(load_config(None, given), score_before=False)
    evaluate_variant(load_config(None, [*given, "data.dev=3"]))
    journal = Journal(server.url)
    [output] = journal.client.get_run(variant.run_id).outputs.model_outputs
    shutil.rmtree(local_folder(journal.client.get_logged_model(output.model_id).artifact_location))
    server.start()
    client.delete_experiment(gone)

    code, out, told = hop("sync", "--json")
    assert code == 2
    assert sorted(run["kind"] for run in json.loads(out)["delivered"]) == ["candidate", "eval"]
    lines = [line for line in told if "can't deliver" in line]
    assert len(lines) == 2
    assert "can't deliver 'direct uncompiled x'" in lines[0]
    assert "deleted" in lines[0]
    assert "can't deliver 'direct labeled_few_shot x'" in lines[1]
    assert lines[1].split("; ")[-2:] == ["runs that wait in the journal: 2", f"tracking.uri={journal.uri} opens it"]
    assert kept(server.url, tmp_path.name)["eval: direct uncompiled x"].info.status == "FINISHED"


def odbc(server, password):
    words = f"DRIVER%3D%7BODBC+Driver%7D%3BSERVER%3D{server}%3BUID%3Dme%3BPWD%3D%7B{password}%3B%7D"
    return f"mssql+pyodbc:///?odbc_connect={words}"


@pytest.mark.parametrize(
    ("uri", "same"),
    [
        ("http://me:old@h:5000", "http://me:new@h:5000"),
        ("http://h:5000", "http://h:5000/"),
        ("postgresql://me:o/l#d@h/mlflow", "postgresql://h/mlflow"),
        ("postgresql://h/mlflow?user=me&password=old&sslmode=require", "postgresql://h/mlflow?sslmode=require"),
        (odbc("alpha", "old"), odbc("alpha", "new")),
    ],
)
def test_another_password_or_a_slash_makes_no_other_store(uri, same, tmp_path, monkeypatch):
    monkeypatch.setenv("HOPTIMIZER_HOME", str(tmp_path))
    assert places(uri) == places(same)


def places(uri):
    """Where what is kept on this machine for a store lies."""
    config = load_config(None, ["data=atlas", "program=direct", "tracking.experiment=x", f"tracking.uri={uri}"])
    return Journal(uri).folder, HeldRuns(uri)._folder, work_folder(config, "the same")


@pytest.mark.parametrize(
    ("uri", "other"),
    [
        (odbc("alpha", "word"), odbc("beta", "word")),
        ("postgresql://h/mlflow?sslkey=one.key", "postgresql://h/mlflow?sslkey=other.key"),
    ],
)
def test_stores_that_only_hidden_parts_of_their_addresses_tell_apart_have_their_own_journals(
    uri, other, tmp_path, monkeypatch
):
    monkeypatch.setenv("HOPTIMIZER_HOME", str(tmp_path))
    assert not set(places(uri)) & set(places(other))
    tracker = Journal(uri).open("x")
    with tracker.run("eval", "one"):
        pass
    assert sync_runs(other) == []
    [shown] = journals()
    with pytest.raises(UserError, match="with the whole address"):
        sync_runs(shown)
    assert len(Journal(uri).waiting()) == 1


@pytest.fixture
def answering(tmp_path, monkeypatch):
    """Gives the address of a server that answers MLflow with a status."""
    monkeypatch.setenv("HOPTIMIZER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with ChatServer() as server:

        def with_status(status, code):
            server.get = lambda: (status, {"error_code": code, "message": "not for you"})
            server.url = server.url.removesuffix("/v1")
            return server

        yield with_status


def test_what_the_server_refuses_is_an_error_and_kept_nowhere(answering, lm, tmp_path):
    given = [*words(answering(403, "PERMISSION_DENIED"), lm, tmp_path), *SEARCHING]
    with pytest.raises(UserError, match=r"can't open .*not for you") as caught:
        evaluate_variant(load_config(None, given))
    assert not isinstance(caught.value, ServiceError)
    assert not (home() / "journal").exists()


def test_a_server_that_answers_with_errors_is_out_of_reach(answering, lm, tmp_path, caplog):
    server = answering(503, "TEMPORARILY_UNAVAILABLE")
    variant = evaluate_variant(load_config(None, [*words(server, lm, tmp_path), *SEARCHING]))
    assert f"no answer from {server.url} (status 503): {SAID}" in caplog.text
    assert Journal(server.url).has(variant.run_id)
    with pytest.raises(ServiceError, match=r"503.*runs that wait in the journal: 1"):
        sync_runs(server.url)


def test_a_server_that_takes_connections_and_says_nothing_is_out_of_reach(monkeypatch):
    monkeypatch.setattr("hoptimizer.tracking.server._TIMEOUT", (0.2, 0.2))
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(ServiceError, match=r"no answer .*timed out"):
        Tracker(f"http://127.0.0.1:{silent.getsockname()[1]}", "x")
