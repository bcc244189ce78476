"""Compiling, scoring, comparing and loading variants on the embedded language model and a real MLflow store."""

import shutil
from pathlib import Path

import mlflow
import pytest
from serving import answer_in_fresh_process

from hoptimizer import Tracker, UserError, compare_variants, compile_variant, evaluate_variant, load_config
from hoptimizer.comparison import log_comparison
from hoptimizer.eval import Evaluation, Question, load
from hoptimizer.eval.runner import QuestionResult
from hoptimizer.models import build_lm
from hoptimizer.programs import Direct
from hoptimizer.tracking import artifacts
from hoptimizer.variants import Variant
from hoptimizer.workbench import Workbench

SECRET = "sk-do-not-tell-anybody"


def uri():
    # Absolute: MLflow keeps one store a URI in a process, whatever the working folder.
    return f"tracking.uri=sqlite:///{Path.cwd()}/mlflow.db"


def config(*words):
    common = ["data=atlas", "data.train=12", "data.dev=6", "retriever.k=2", "lm.default.max_tokens=48", uri()]
    return load_config(None, [*common, *words])


@pytest.fixture(scope="module")
def compiled(store):
    return compile_variant(config("program=rag", "optimizer=bootstrap_few_shot", "optimizer.max_bootstrapped_demos=2"))


def test_a_compiled_variant_is_a_run_with_everything_that_made_it(compiled):
    run = mlflow.get_run(compiled.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["program.name"] == "rag"
    assert run.data.params["optimizer.max_bootstrapped_demos"] == "2"
    assert run.data.params["lm.default.model"] == "local/smollm2-135m-instruct"
    assert {"dev/f1", "workings/dev/before/f1", "dev/recall", "dev/lm_calls", "workings/dev/parse_failures"} <= set(
        run.data.metrics
    )
    assert run.data.metrics["workings/dev/parse_failures"] == 0
    assert {item.dataset.name for item in run.inputs.dataset_inputs} == {"atlas-train", "atlas-dev"}
    assert len(compiled.after.rows) == 6


def test_a_compiled_variant_holds_demonstrations_and_answers_with_them(compiled):
    tracker = Tracker(compiled.config.tracking.uri, compiled.config.experiment)
    state = tracker.load_state(compiled.run_id)
    assert len(state["reader"]["demos"]) >= 1
    again = evaluate_variant(compiled.config, run_id=compiled.run_id)
    assert [row.answer for row in again.after.rows] == [row.answer for row in compiled.after.rows]


def test_another_programs_state_is_refused(compiled):
    with pytest.raises(UserError, match="steps"):
        evaluate_variant(config("program=ircot"), run_id=compiled.run_id)


def test_variants_are_compared_on_the_same_questions(compiled):
    direct = evaluate_variant(config("program=direct"))
    tracker = Tracker(compiled.config.tracking.uri, compiled.config.experiment)
    comparison = compare_variants(tracker, [direct.run_id, compiled.run_id])
    [difference] = comparison.differences
    assert difference.before.mean == pytest.approx(direct.after.metrics["f1"])
    assert difference.after.mean == pytest.approx(compiled.after.metrics["f1"])
    assert [v.compiled for v in comparison.variants] == [False, True]
    logged = log_comparison(tracker, comparison)
    names = {item.path for item in mlflow.MlflowClient().list_artifacts(logged)}
    assert {"comparison.json", "differences.png", "scores.png", "cost.png"} <= names
    with pytest.raises(UserError, match="no answers on test"):
        compare_variants(tracker, [direct.run_id], split="test")
    with pytest.raises(UserError, match="no scores of 'f2'"):
        compare_variants(tracker, [direct.run_id], metric="f2")


def test_variants_are_compared_by_a_weighted_sum_where_their_weights_agree(store):
    words = ["metric.f1=1", "metric.lm_calls=-0.01", "data.dev=3", "tracking.experiment=weighed"]
    first, second = (evaluate_variant(config(f"program={program}", *words)) for program in ("direct", "cot"))
    metrics = mlflow.get_run(first.run_id).data.metrics
    assert metrics["dev/objective"] == pytest.approx(metrics["dev/f1"] - 0.01 * metrics["dev/lm_calls"])
    tracker = Tracker(first.config.tracking.uri, first.config.experiment)
    comparison = compare_variants(tracker, [first.run_id, second.run_id], metric="objective")
    [difference] = comparison.differences
    assert difference.after.mean == pytest.approx(second.after.metrics["objective"])
    assert log_comparison(tracker, comparison)
    other = evaluate_variant(config("program=direct", *words, "metric.lm_calls=-0.1"))
    with pytest.raises(UserError, match=r"no scores of 'objective' in common .*same weights"):
        compare_variants(tracker, [first.run_id, other.run_id], metric="objective")
    assert "objective" not in compare_variants(tracker, [first.run_id, other.run_id]).variants[0].scores
    again = load_config(None, [], tracker.config_values(first.run_id))
    assert again.digest == first.config.digest


def test_the_mlflow_model_loads_in_a_fresh_process_without_unpickling(compiled, store):
    answer = answer_in_fresh_process(compiled, compiled.after.rows[0].question.question, store)
    assert answer["answer"] == compiled.after.rows[0].answer


def test_a_key_is_nowhere_in_the_store(store, tmp_path):
    server = config("program=direct", "lm.default.model=openai/x", f"lm.default.api_key={SECRET}")
    tracker = Tracker(server.tracking.uri, server.experiment)
    program = Direct()
    program.lms = {"reader": build_lm(server.lm["default"])}
    assert SECRET in str(program.lms["reader"].kwargs), "the model itself has the key"
    with tracker.run("compile", "with a key"):
        artifacts.log_config(server, load(server.data), compiled=True)
        artifacts.log_variant(server, program, tmp_path, tracker.client)
    for path in store.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path


def test_a_password_in_an_address_is_nowhere_in_the_store(store):
    words = ["program=direct", "lm.default.model=openai/x", f"lm.default.api_base=http://me:{SECRET}@127.0.0.1:9/v1"]
    for work in (evaluate_variant, compile_variant):
        with pytest.raises(UserError, match=r"the server at http://127\.0\.0\.1:9/v1 can't be reached") as error:
            work(config(*words, "optimizer=labeled_few_shot", "tracking.experiment=out of reach"))
        assert SECRET not in str(error.value)
    assert not any(SECRET.encode() in path.read_bytes() for path in store.rglob("*") if path.is_file())


@pytest.mark.parametrize("optimizer", ["labeled_few_shot", "bootstrap_random_search"])
def test_every_optimizer_compiles_ircot(store, optimizer):
    words = ["program=ircot", "program.max_steps=2", "data.train=6", "data.dev=2", f"optimizer={optimizer}"]
    if optimizer == "bootstrap_random_search":
        words += ["optimizer.num_candidate_programs=1", "optimizer.max_bootstrapped_demos=1"]
        words += ["optimizer.max_labeled_demos=1", "optimizer.metric_threshold=0"]
    else:
        words += ["optimizer.k=2"]
    variant = compile_variant(config(*words))
    assert variant.after.metrics["parse_failures"] == 0
    assert variant.after.metrics["lm_calls"] >= 2


def test_a_run_is_found_by_the_start_of_its_id(compiled):
    tracker = Tracker(compiled.config.tracking.uri, compiled.config.experiment)
    assert tracker.whole_id(compiled.run_id[:8]) == compiled.run_id
    with pytest.raises(UserError, match=r"run 'zzz': not in sqlite.*tracking\.uri=URI names another store"):
        tracker.whole_id("zzz")


def stopped(*words, **options):
    """A compile that ends as it starts."""

    def report(stage, done, total, remark):
        if stage.startswith("compiling"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile_variant(config("program=direct", "optimizer=labeled_few_shot", *words), report=report, **options)


def runs(store):
    tracker = Tracker(f"sqlite:///{store}/mlflow.db", "changing")
    found = tracker.client.search_runs([tracker.experiment.experiment_id], "tags.`hop.kind` = 'compile'")
    return {run.info.run_id: run.info.status for run in found}


def test_a_compile_goes_on_with_other_workers_but_not_with_other_data(store):
    files = shutil.copytree(load(config().data).folder, store / "changing")
    words = [f"data.name={files}", "tracking.experiment=changing"]
    stopped(*words, "workers=2")
    assert list(runs(store).values()) == ["KILLED"]
    with (files / "train.jsonl").open() as file:
        lines = file.readlines()
    (files / "train.jsonl").write_text("".join(reversed(lines)))
    stopped(*words, "workers=2")
    assert list(runs(store).values()) == ["KILLED", "KILLED"]
    (files / "train.jsonl").write_text("".join(lines))
    ended = compile_variant(config("program=direct", "optimizer=labeled_few_shot", *words, "workers=3"))
    assert sorted(runs(store).values()) == ["FINISHED", "KILLED"]
    assert runs(store)[ended.run_id] == "FINISHED"


def test_a_compile_is_not_taken_up_twice_at_once(store):
    words = ["program=direct", "optimizer=labeled_few_shot", "tracking.experiment=twice"]

    def report(stage, done, total, remark):
        if stage.startswith("compiling"):
            compile_variant(config(*words))

    with pytest.raises(UserError, match="under way in another process"):
        compile_variant(config(*words), report=report)


def test_what_can_not_be_done_leaves_no_run(store):
    with pytest.raises(UserError, match="no language model reflects"):
        compile_variant(config("program=direct", "optimizer=gepa", "tracking.experiment=refused"))
    tracker = Tracker(config().tracking.uri, "refused")
    assert not tracker.client.search_runs([tracker.experiment.experiment_id])


@pytest.mark.parametrize("work", [compile_variant, evaluate_variant])
def test_a_model_that_does_not_answer_is_told_before_an_index_is_built_and_a_run_is_made(store, monkeypatch, work):
    monkeypatch.setattr(Workbench, "retriever", property(lambda _: pytest.fail("the index is built")))
    experiment = f"silent {work.__name__}"
    words = ["program=rag", "optimizer=labeled_few_shot", f"tracking.experiment={experiment}"]
    with pytest.raises(UserError, match=r"lm\.default: .* can't be reached"):
        work(config(*words, "lm.default.model=openai/x", "lm.default.api_base=http://127.0.0.1:9/v1"))
    tracker = Tracker(config().tracking.uri, experiment)
    assert not tracker.client.search_runs([tracker.experiment.experiment_id])


@pytest.mark.parametrize(("split", "said"), [("dev", True), ("test", False)])
def test_a_gain_on_dev_is_said_to_be_of_the_questions_that_chose(split, said):
    def scored(*scores):
        asked = Question(id="1", question="Where?", answers=["Lyon"])
        return Evaluation([QuestionResult(asked, "Lyon", [], {"f1": score}, []) for score in scores], 1.0)

    variant = Variant("run", config("program=direct"), True, split, scored(0.5, 1.0, 0.5), scored(0.0, 1.0, 0.5))
    assert ("report the test split" in variant.gain) is said
