"""What MLflow's users find of a variant: names, headlines, models, and the pages. The language model is scripted."""

import contextlib
import json
import math
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import dspy
import mlflow
import pytest
import requests
import sqlalchemy
from chat_server import ChatServer
from dspy.utils import DummyLM
from mlflow.genai.utils.trace_utils import extract_retrieval_context_from_trace
from mlflow.tracing.client import TracingClient

from hoptimizer import (
    Tracker,
    UserError,
    compare_variants,
    compile_variant,
    evaluate_variant,
    evaluation_dataset,
    load_config,
    load_variant,
    make_config,
    predictor,
    register_variant,
    scorers,
)
from hoptimizer.cli import main
from hoptimizer.common.progress import silent
from hoptimizer.comparison import log_comparison, page_of
from hoptimizer.eval import DataSet, Question, load
from hoptimizer.eval.runner import QuestionResult
from hoptimizer.genai.choice import chosen
from hoptimizer.genai.traces import TracedRun, log_traces
from hoptimizer.programs import DSP, RAG, StepRecord
from hoptimizer.retrieval import BM25Retriever, Corpus, Passage
from hoptimizer.serving.sources import variant
from hoptimizer.tracking.server import Unreachable, check_server, point_mlflow_at

DIRECT = {"data": "atlas", "program": "direct"}


def reply(body):
    return "[[ ## answer ## ]]\nLyon\n\n[[ ## completed ## ]]"


@pytest.fixture(scope="module")
def lm():
    with ChatServer(reply) as lm:
        yield lm


@pytest.fixture
def settings(lm, store):
    words = [
        "data=atlas",
        "data.train=4",
        "data.dev=3",
        "data.test=3",
        "program=rag",
        "retriever=bm25",
        "retriever.k=2",
    ]
    served = ["lm.default.model=openai/gpt-x.1", f"lm.default.api_base={lm.url}", "optimizer=labeled_few_shot"]
    return load_config(None, [*words, *served, f"tracking.uri=sqlite:///{store}/mlflow.db"])


@pytest.fixture(scope="module")
def compiled_once(lm, store):
    return []


@pytest.fixture
def compiled(settings, compiled_once):
    if not compiled_once:
        compiled_once.append(compile_variant(settings))
    return compiled_once[0]


def test_runs_and_models_are_named_after_what_differs(compiled, settings):
    scored = evaluate_variant(settings)
    names = [mlflow.get_run(one.run_id).info.run_name for one in (compiled, scored)]
    assert names == ["rag labeled_few_shot gpt-x.1", "rag uncompiled gpt-x.1"]
    [output] = mlflow.get_run(compiled.run_id).outputs.model_outputs
    model = mlflow.get_logged_model(output.model_id)
    assert model.name == "rag-labeled_few_shot-gpt-x-1"
    assert model.params["program.name"] == "rag"


def test_a_run_has_few_headlines_and_all_else_is_folded_behind_them(compiled):
    metrics = mlflow.get_run(compiled.run_id).data.metrics
    names = list(metrics)
    # A run's page lists them in this order.
    assert names[:5] == [f"dev/{name}" for name in ("em", "f1", "recall", "passages", "lm_calls")]
    assert not any(map(math.isnan, metrics.values()))
    heads = [name for name in names if not name.startswith("workings/")]
    assert sorted(heads) == sorted(names)[: len(heads)]
    assert {"dev/em", "dev/f1", "dev/recall"} <= set(heads)
    assert all(name.startswith("dev/") for name in heads)
    assert len(heads) <= 8
    assert {"workings/dev/contains", "workings/dev/before/f1", "workings/spent/calls"} <= set(names)


def test_the_scores_of_a_model_are_those_of_every_run_that_scored_it(compiled, settings):
    on_test = evaluate_variant(settings, split="test", run_id=compiled.run_id)
    [output] = mlflow.get_run(compiled.run_id).outputs.model_outputs
    scores = {(metric.key, metric.run_id): metric for metric in mlflow.get_logged_model(output.model_id).metrics}
    assert scores["dev/f1", compiled.run_id].value == compiled.after.metrics["f1"]
    assert not [name for name, _ in scores if name.startswith("workings/")]
    assert scores["dev/f1", compiled.run_id].dataset_name == "atlas-dev"
    assert scores["test/f1", on_test.run_id].dataset_name == "atlas-test"
    assert [one.model_id for one in mlflow.get_run(on_test.run_id).inputs.model_inputs] == [output.model_id]


def test_each_answer_of_the_sample_is_a_trace_with_its_documents_and_scores(compiled, settings):
    table = Tracker(settings.tracking.uri, "atlas").predictions(compiled.run_id, "dev").table
    assert len(table["trace"].dropna()) == 3
    [output] = mlflow.get_run(compiled.run_id).outputs.model_outputs
    for row, trace_id in zip(compiled.after.rows, table["trace"], strict=True):
        trace = mlflow.get_trace(trace_id)
        root, retrieval, reader = trace.data.spans
        assert (root.inputs["question"], root.outputs["answer"]) == (row.question.question, row.answer)
        assert [span.parent_id for span in (retrieval, reader)] == [root.span_id] * 2
        assert (retrieval.span_type, reader.span_type) == ("RETRIEVER", "LLM")
        assert [document["id"] for document in retrieval.outputs] == row.passages
        assert all(document["page_content"] for document in retrieval.outputs)
        assert root.start_time_ns <= retrieval.start_time_ns <= retrieval.end_time_ns <= reader.end_time_ns
        marks = {mark.name: mark.value for mark in trace.info.assessments}
        assert marks["f1"] == row.scores["f1"]
        assert marks["answers"] == row.question.answers
        metadata = trace.info.trace_metadata
        assert (metadata["mlflow.sourceRun"], metadata["mlflow.modelId"]) == (compiled.run_id, output.model_id)
    assert len(mlflow.search_traces(run_id=compiled.run_id, return_type="list")) == 3


def test_what_a_server_found_that_is_in_no_corpus_here_is_in_the_traces(settings, tmp_path):
    (tmp_path / "dev.jsonl").write_text(json.dumps({"id": "1", "question": "Where is it?", "answers": ["Lyon"]}) + "\n")
    with ChatServer(reply) as server:
        server.get = lambda: (200, {"topk": [{"text": "Rhone | It flows through Lyon.", "pid": 7, "score": 2.0}]})
        base = settings.model_dump() | {"data": str(tmp_path), "retriever": {"url": server.url, "k": 1}}
        words = [f"lm.default.api_base={server.url}", "tracking.experiment=searched"]
        scored = evaluate_variant(load_config(None, words, base))
        program = load_variant(f"runs:/{scored.run_id}", tracking_uri=settings.tracking.uri)
        mlflow.set_experiment("asked")
        predictor(program)(question="Where is it?")
    for experiment in ("searched", "asked"):
        place = mlflow.get_experiment_by_name(experiment).experiment_id
        [trace] = mlflow.search_traces(locations=[place], return_type="list")
        [document] = next(span for span in trace.data.spans if span.span_type == "RETRIEVER").outputs
        assert (document["page_content"], document["metadata"]["title"]) == ("It flows through Lyon.", "Rhone")


@pytest.mark.parametrize(("which", "count"), [("none", 0), ("failures", 4), ("all", 30), ("sample", 20)])
def test_traces_are_of_the_questions_that_the_config_says(which, count):
    question = Question(id="1", question="Where?", answers=["Warsaw"])
    rows = [QuestionResult(question, "", [], {"f1": float(number > 3)}, []) for number in range(30)]
    assert len(chosen(rows, which)) == count


def test_a_failed_step_is_marked_in_its_trace_and_a_key_in_it_is_hidden(settings):
    asked = Question(id="1", question="Where?", answers=["Warsaw"])
    record = StepRecord(
        "reader", "lm", {"question": "Where?"}, {"answer": None}, calls=1, failure="at http://me:sk-1@x/"
    )
    row = QuestionResult(asked, "", [], {"f1": 0.0}, [record], failure="no answer")
    with Tracker(settings.tracking.uri, "failing").run("eval", "failing") as run:
        of = TracedRun(settings.tracking.uri, run.info.experiment_id, run.info.run_id, "rag")
        ids = log_traces([row], of, lambda _: None, "f1")
        assert log_traces([row], of, lambda _: None, "f1") == ids  # as where a run is continued
    [trace] = mlflow.search_traces(run_id=run.info.run_id, return_type="list")
    assert trace.info.state == "ERROR"
    assert trace.data.spans[1].status.status_code == "ERROR"
    assert "sk-1" not in str(trace.to_json())


def answered(number, failure=None):
    question = Question(id=str(number), question="Where?", answers=["Warsaw"])
    record = StepRecord("reader", "lm", {"question": "Where?"}, {"answer": "Oslo"}, calls=1)
    return QuestionResult(question, "Oslo", [], {"f1": 0.0}, [record], failure=failure)


def test_traces_that_are_there_already_do_not_cost_those_that_are_logged_with_them(settings):
    with Tracker(settings.tracking.uri, "again").run("eval", "again") as run:
        of = TracedRun(settings.tracking.uri, run.info.experiment_id, run.info.run_id, "rag")
        log_traces([answered(2)], of, lambda _: None, "f1")
        ids = log_traces([answered(1), answered(2), answered(3)], of, lambda _: None, "f1")
    found = mlflow.search_traces(run_id=run.info.run_id, return_type="list")
    assert sorted(trace.info.trace_id for trace in found) == sorted(ids.values())
    assert [len(trace.data.spans) for trace in found] == [2, 2, 2]
    assert [len(trace.info.assessments) for trace in found] == [2, 2, 2]


def test_traces_that_are_logged_together_are_one_commit_of_a_sqlite_store(settings):
    commits = []
    count = commits.append
    with Tracker(settings.tracking.uri, "together").run("eval", "together") as run:
        of = TracedRun(settings.tracking.uri, run.info.experiment_id, run.info.run_id, "rag")
        store = TracingClient(settings.tracking.uri).store
        sqlalchemy.event.listen(store.engine, "commit", count)
        log_traces([answered(number) for number in range(5)], of, lambda _: None, "f1")
        sqlalchemy.event.remove(store.engine, "commit", count)
    assert len(commits) == 1


def test_the_prompts_of_a_model_are_versions_in_the_registry_linked_to_it(compiled, settings):
    [output] = mlflow.get_run(compiled.run_id).outputs.model_outputs
    name = "rag-labeled_few_shot-gpt-x-1.reader"
    assert json.loads(mlflow.get_logged_model(output.model_id).tags["mlflow.linkedPrompts"]) == [
        {"name": name, "version": "1"}
    ]
    prompt = mlflow.genai.load_prompt(f"prompts:/{name}/1")
    assert prompt.variables == {"question", "context"}
    roles = [message["role"] for message in prompt.template]
    assert roles == ["system", *["user", "assistant"] * ((len(roles) - 2) // 2), "user"]
    assert len(roles) > 2  # the demonstrations
    again = compile_variant(settings, score_before=False)
    assert "mlflow.linkedPrompts" in mlflow.get_run(again.run_id).data.tags
    assert mlflow.genai.load_prompt(f"prompts:/{name}@latest").version == 1  # nothing is new in it


def test_a_prompt_that_the_registry_refuses_is_said_and_nothing_is_lost(settings, monkeypatch, caplog):
    def refuse(*_, **__):
        raise mlflow.exceptions.MlflowException("not allowed here")

    monkeypatch.setattr(mlflow.MlflowClient, "register_prompt", refuse)
    words = {"experiment": "refusing", "uri": settings.tracking.uri}
    changed = settings.model_copy(update={"tracking": settings.tracking.model_copy(update=words), "seed": 8})
    made = compile_variant(changed.model_copy(update={"program": make_config(DIRECT).program}), score_before=False)
    assert "the prompt registry refuses direct-labeled_few_shot-gpt-x-1.reader: not allowed here" in caplog.text
    assert mlflow.get_run(made.run_id).outputs.model_outputs


@pytest.fixture
def _autologged():
    """MLflow's evaluation traces DSPy's calls, unless somebody in this process has ever said that it should not."""
    mlflow.dspy.autolog()
    yield
    mlflow.dspy.autolog(disable=True)


@pytest.mark.usefixtures("_autologged")
def test_mlflows_own_evaluation_runs_on_a_variant_with_our_metrics_and_data(compiled, settings, monkeypatch):
    monkeypatch.setenv("MLFLOW_GENAI_EVAL_SKIP_TRACE_VALIDATION", "true")
    point_mlflow_at(settings.tracking.uri)
    experiment = mlflow.set_experiment("genai")
    dataset = evaluation_dataset(load(settings.data), "dev", experiment_id=experiment.experiment_id)
    again = evaluation_dataset(load(settings.data), "dev", experiment_id=experiment.experiment_id)
    assert (again.name, len(again.to_df())) == (dataset.name, 3)
    data = load(settings.data)
    twice = [one.model_copy(update={"id": id}) for one in data.split("dev")[:1] for id in "ab"]
    with pytest.raises(UserError, match="is asked twice"):
        evaluation_dataset(DataSet(data.name, data.folder, data.corpus, {"dev": twice}), "dev")
    program = load_variant(f"runs:/{compiled.run_id}", tracking_uri=settings.tracking.uri)
    result = mlflow.genai.evaluate(data=dataset, scorers=scorers(["f1", "recall"]), predict_fn=predictor(program))
    assert result.metrics["f1/mean"] == pytest.approx(compiled.after.metrics["f1"])
    assert result.metrics["recall/mean"] == pytest.approx(compiled.after.metrics["recall"])
    [trace, *_] = mlflow.search_traces(run_id=result.run_id, return_type="list")
    [retrieved] = trace.search_spans(span_type="RETRIEVER")  # of the one search of the program
    assert [document["id"] for document in retrieved.outputs]
    assert len(trace.search_spans(name="Predict.forward")) == 1
    assert not trace.search_spans(name="reader")
    assert len(extract_retrieval_context_from_trace(trace)) == 1


@pytest.mark.skipif(not hasattr(mlflow.genai, "compare_evaluations"), reason="MLflow has it from 3.18 on")
def test_mlflow_compares_its_evaluations_of_two_variants_by_our_metrics(settings, monkeypatch):
    monkeypatch.setenv("MLFLOW_GENAI_EVAL_SKIP_TRACE_VALIDATION", "true")
    point_mlflow_at(settings.tracking.uri)
    experiment = mlflow.set_experiment("evaluations")
    data = load(load_config(None, ["data=atlas", "data.dev=8"]).data)
    dataset = evaluation_dataset(data, "dev", experiment_id=experiment.experiment_id)
    baseline, candidate = (
        mlflow.genai.evaluate(
            data=dataset,
            scorers=scorers(["recall"]),
            predict_fn=predictor(RAG(BM25Retriever(data.corpus), k=k, reader="none")),
        )
        for k in (1, 8)
    )
    compared = mlflow.genai.compare_evaluations(candidate.run_id, baseline.run_id)
    assert not [*compared.unpaired_baseline_trace_ids, *compared.unpaired_candidate_trace_ids]
    recall = compared.scorers["recall"]
    assert (recall.status, recall.n_paired) == ("ok", 8)
    means = [result.metrics["recall/mean"] for result in (baseline, candidate)]
    assert [recall.baseline_mean, recall.candidate_mean] == pytest.approx(means)
    assert recall.diff > 0


def test_documents_have_their_texts_where_the_program_kept_them_and_where_not(settings):
    corpus = Corpus([Passage("oslo", "Oslo", "A city."), Passage("rhine", "Rhine", "A river.")])
    program = DSP(BM25Retriever(corpus), k=2, max_passages=1, reader="none", hops=1)
    with dspy.context(lm=DummyLM([{"first_query": "Which city or river?"}])):
        answered = predictor(program)(question="What?")
    assert len(answered["passages"]) == 1
    mlflow.flush_trace_async_logging()
    trace = mlflow.get_trace(mlflow.get_last_active_trace_id())
    [retrieved] = trace.search_spans(span_type="RETRIEVER")
    assert sorted(one["page_content"] for one in retrieved.outputs) == ["A city.", "A river."]
    assert sorted(one["metadata"]["title"] for one in retrieved.outputs) == ["Oslo", "Rhine"]


def test_documents_have_their_texts_where_a_module_of_ones_own_has_the_program(settings):
    corpus = Corpus([Passage("oslo", "Oslo", "A city."), Passage("rhine", "Rhine", "A river.")])

    class Own(dspy.Module):
        def forward(self, question, main=None):
            return RAG(BM25Retriever(corpus), k=2, reader="none")(question=question)

    predictor(Own())(question="Which city or river?")
    mlflow.flush_trace_async_logging()
    [retrieved] = mlflow.get_trace(mlflow.get_last_active_trace_id()).search_spans(span_type="RETRIEVER")
    assert sorted(one["page_content"] for one in retrieved.outputs) == ["A city.", "A river."]


def test_comparisons_lie_beside_the_experiment_of_the_runs(compiled, settings):
    tracker = Tracker(settings.tracking.uri, "atlas")
    logged = log_comparison(tracker, compare_variants(tracker, [compiled.run_id]))
    aside = mlflow.get_experiment(mlflow.get_run(logged).info.experiment_id)
    assert aside.name == "atlas comparisons"


def test_runs_whose_metrics_have_the_older_names_are_read_as_before(compiled, settings):
    tracker = Tracker(settings.tracking.uri, "older")
    with tracker.run("eval", "older") as run:
        older = {"dev/f1": 0.5, "dev/contains": 0.75, "dev/before/f1": 0.25, "steps/x/f1": 0.1, "spent/calls": 8.0}
        mlflow.log_metrics(older)
    found = tracker.metrics(run.info.run_id, "dev")
    assert found == {"f1": 0.5, "contains": 0.75, "steps/x/f1": 0.1, "compile_calls": 8.0}
    assert tracker.metrics(compiled.run_id, "dev")["contains"] == compiled.after.metrics["contains"]


def test_a_variant_is_registered_by_a_name_and_a_name_that_is_refused_loses_nothing(compiled, settings, capsys):
    store = settings.tracking.uri
    made = register_variant(store, compiled.run_id, "capitals")
    assert register_variant(store, compiled.run_id, "capitals") == made  # once is enough
    assert mlflow.pyfunc.load_model(made.uri).metadata.model_id == made.model_id
    with pytest.raises(UserError, match=r"--name 'no/name': the registry of .* refuses"):
        register_variant(store, compiled.run_id, "no/name")
    mlflow.MlflowClient(store).register_prompt("wording", "Who is {{name}}?")
    with pytest.raises(UserError, match=r"--name 'wording': .* refuses: .* is already taken by a prompt"):
        register_variant(store, compiled.run_id, "wording")
    assert mlflow.MlflowClient(store).load_prompt("prompts:/wording@latest").template == "Who is {{name}}?"
    hop("register", compiled.run_id[:8], f"tracking.uri={store}", "--json")
    assert json.loads(capsys.readouterr().out)["uri"] == "models:/rag-labeled_few_shot-gpt-x-1/1"
    scored = evaluate_variant(settings, run_id=compiled.run_id)
    with pytest.raises(UserError, match=f"scored that of run {compiled.run_id}; register that one"):
        register_variant(store, scored.run_id, "capitals")


def test_an_uncompiled_program_that_was_scored_is_registered_loaded_and_asked(settings, capsys):
    store = settings.tracking.uri
    scored = evaluate_variant(settings)
    made = register_variant(store, scored.run_id, "plain")
    model = mlflow.get_logged_model(made.model_id)
    assert model.name == "rag-uncompiled-gpt-x-1"
    scores = {metric.key: metric for metric in model.metrics}
    assert (scores["dev/f1"].value, scores["dev/f1"].dataset_name) == (scored.after.metrics["f1"], "atlas-dev")
    trace = mlflow.search_traces(run_id=scored.run_id, return_type="list")[0]
    assert trace.info.trace_metadata["mlflow.modelId"] == made.model_id
    question = scored.after.rows[0].question.question
    for source in (made.uri, f"runs:/{scored.run_id}"):
        assert load_variant(source, tracking_uri=store)(question=question).answer == "Lyon"
    assert mlflow.pyfunc.load_model(made.uri).predict([question])[0]["answer"] == "Lyon"
    capsys.readouterr()
    hop("ask", question, "--run", scored.run_id, f"tracking.uri={store}", "--json")
    assert json.loads(capsys.readouterr().out)["answer"] == "Lyon"
    assert variant(scored.run_id[:8], [], store, silent)(question=question).answer == "Lyon"


def test_a_variant_with_another_language_model_has_a_model_and_scores_of_its_own(compiled, settings, lm):
    store = settings.tracking.uri
    other = load_config(None, ["lm.default.model=openai/gpt-y"], settings.model_dump())
    swapped = evaluate_variant(other, run_id=compiled.run_id)
    [made] = mlflow.get_run(compiled.run_id).outputs.model_outputs
    [own] = mlflow.get_run(swapped.run_id).outputs.model_outputs
    assert not mlflow.get_run(swapped.run_id).inputs.model_inputs
    model = mlflow.get_logged_model(own.model_id)
    assert (model.name, model.params["lm.default.model"]) == ("rag-labeled_few_shot-gpt-y", "openai/gpt-y")
    assert {metric.run_id for metric in model.metrics} == {swapped.run_id}
    assert swapped.run_id not in {metric.run_id for metric in mlflow.get_logged_model(made.model_id).metrics}
    question = swapped.after.rows[0].question.question
    uri = register_variant(store, swapped.run_id, "swapped").uri
    program = load_variant(uri, tracking_uri=store)
    assert program.config.lm["default"].model == "openai/gpt-y"
    assert program.program.reader.demos, "its demonstrations came along"
    assert program(question=question).answer == "Lyon"
    # What scores it again scores the same model; who judges answers nothing.
    judged = load_config(None, ["lm.judge.model=openai/z", f"lm.judge.api_base={lm.url}"], other.model_dump())
    again = evaluate_variant(judged, run_id=swapped.run_id)
    assert [one.model_id for one in mlflow.get_run(again.run_id).inputs.model_inputs] == [own.model_id]


def test_what_scores_or_starts_from_an_uncompiled_program_is_told_from_a_compiled_one(settings):
    scored = evaluate_variant(settings)
    on_test = evaluate_variant(settings, split="test", run_id=scored.run_id)
    run = mlflow.get_run(on_test.run_id)
    assert (run.info.run_name, on_test.compiled) == ("rag uncompiled gpt-x.1", False)
    assert [one.model_id for one in run.inputs.model_inputs] == [
        one.model_id for one in mlflow.get_run(scored.run_id).outputs.model_outputs
    ]
    compiled = compile_variant(settings, run_id=scored.run_id, score_before=False)
    tracker = Tracker(settings.tracking.uri, "atlas")
    shown = {one.run_id: one.compiled for one in compare_variants(tracker, []).variants}
    assert (shown[scored.run_id], shown[compiled.run_id]) == (False, True)
    assert not compare_variants(tracker, [on_test.run_id], split="test").variants[0].compiled


def hop(*words):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hop", *words])
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code, words


def test_the_store_of_the_environment_is_the_one_that_is_used(monkeypatch, tmp_path, settings):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/own.db")
    assert load_config(None, ["data=atlas"]).tracking.uri == f"sqlite:///{tmp_path}/own.db"
    assert load_config(None, ["data=atlas", "tracking.uri=sqlite:///x.db"]).tracking.uri == "sqlite:///x.db"
    Tracker(settings.tracking.uri, "atlas")  # MLflow would leave its own store there
    assert load_config(None, ["data=atlas"]).tracking.uri == f"sqlite:///{tmp_path}/own.db"


@pytest.mark.parametrize("address", ["http://{}", "postgresql://me:secret@{}/mlflow"])
@pytest.mark.parametrize("listens", [True, False])
def test_a_store_that_gives_no_answer_is_said_within_five_seconds(address, listens):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if listens:
            silent.listen(0)
        start = time.monotonic()
        with pytest.raises(Unreachable, match="no answer from") as raised:
            check_server(address.format(f"127.0.0.1:{silent.getsockname()[1]}"))
        assert time.monotonic() - start < 5
    assert "secret" not in str(raised.value)


def test_hop_ui_shows_the_runs_of_a_store_and_opens_at_their_headlines(compiled, settings):
    command = [sys.executable, "-m", "hoptimizer.cli", "ui", "--port", "0", f"tracking.uri={settings.tracking.uri}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stderr.readline()
            page = line.removeprefix("MLflow: ").strip()
            assert "viewStateShareKey=hop" in page, line
            assert requests.get(page.partition("#")[0], timeout=30).ok
        finally:
            process.terminate()
            process.wait()
    tags = mlflow.get_experiment_by_name("atlas").tags
    assert "metrics.`dev/f1`" in json.loads(tags["mlflow.sharedViewState.hop"])["selectedColumns"]


def test_hop_ui_opens_at_runs_that_came_to_something_before_those_that_could_not_start(tmp_path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    made, failed = Tracker(uri, "made"), Tracker(uri, "failed")
    with contextlib.suppress(UserError), failed.run("compile", "no key"):
        raise UserError("no key")
    assert page_of(uri).startswith(f"/#/experiments/{failed.experiment.experiment_id}/runs?")
    with made.run("eval", "one"):
        mlflow.log_metric("dev/f1", 0.5)
    with contextlib.suppress(UserError), failed.run("eval", "no cluster"):
        raise UserError("no cluster")
    assert page_of(uri).startswith(f"/#/experiments/{made.experiment.experiment_id}/runs?")
    with failed.run("compile", "under way"):
        assert page_of(uri).startswith(f"/#/experiments/{failed.experiment.experiment_id}/runs?")


def test_what_tells_runs_of_one_name_apart_is_a_column_of_their_page(tmp_path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    tracker = Tracker(uri, "retrievers")
    options = {"program.name": "rag", "retriever.k": 5, "data.seed": 0, "lm.default.model": "openai/gpt-x"}
    sampling = {"lm.default.max_tokens": 32, "lm.default.temperature": 0.0}
    for name, tokens in (("bm25", 32), ("dense", 32), ("dense", 64)):
        with tracker.run("eval", "rag uncompiled gpt-x"):
            mlflow.log_params(options | sampling | {"retriever.name": name, "lm.default.max_tokens": tokens})
    page_of(uri)
    tags = tracker.client.get_experiment(tracker.experiment.experiment_id).tags
    said = ["program.name", "optimizer.name", "lm.default.model", "retriever.name", "lm.default.max_tokens"]
    columns = json.loads(tags["mlflow.sharedViewState.hop"])["selectedColumns"]
    assert columns == [f"params.`{name}`" for name in said]


def test_an_account_that_may_only_read_sees_the_runs_in_columns_of_mlflow(tmp_path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    tracker = Tracker(uri, "read")
    with tracker.run("eval", "one"):
        mlflow.log_metric("dev/f1", 0.5)
    runs = f"/#/experiments/{tracker.experiment.experiment_id}/runs?"
    assert page_of(uri).startswith(f"{runs}viewStateShareKey=hop&")
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as store:
        store.execute("DELETE FROM experiment_tags")
        store.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON experiment_tags BEGIN SELECT RAISE(ABORT, 'you may only read'); END"
        )
        store.commit()
    assert page_of(uri) == f"{runs}workflowType=machine_learning"


def test_hop_ui_says_that_there_is_no_store(tmp_path, capsys):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hop", "ui", f"tracking.uri=sqlite:///{tmp_path}/none.db"])
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 2
    assert "there is no store" in capsys.readouterr().err
    assert not Path(tmp_path / "none.db").exists()
