"""Fine-tuned steps: what they learn from, and compiling with them on the embedded models and a real MLflow store."""

import asyncio
import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import dspy
import mlflow
import pytest
import torch
from dspy.utils.exceptions import LMInvalidRequestError, LMServerError
from scripted import Listener, RefusingRetriever, ScriptedLM, ScriptedRetriever, passage
from serving import answer_in_fresh_process, kept

from hoptimizer import Tracker, compile_variant, evaluate_variant, load_config
from hoptimizer.common.errors import RefusedQueryError, UserError
from hoptimizer.compiling import work_folder
from hoptimizer.eval.datasets.question import Hop, Question
from hoptimizer.eval.objective import Objective
from hoptimizer.optimizers import CompileContext
from hoptimizer.optimizers.labels.examples import TrainingExample
from hoptimizer.optimizers.labels.labelling import PendingExample, collect
from hoptimizer.optimizers.tuning.distill import Distill
from hoptimizer.programs import RAG, RAISF
from hoptimizer.retrieval import Corpus

WORDS = [
    *["data=atlas", "data.train=24", "data.dev=16", "retriever=bm25", "retriever.k=2", "program=ra_isf"],
    *["program.max_depth=0", "program.decomposition=false", "lm.default.max_tokens=8"],
    *["optimizer=distill", "optimizer.epochs=1"],
]


def silent(stage, done, total, remark):
    """A report that goes nowhere."""


def question(number):
    """Of eight questions those with an even number are known, and have their passages found."""
    hops = [Hop(question=f"Hop {number}.{i}?", answer=f"h{i}", passage=f"p{number}") for i in (1, 2)]
    return Question(
        id=str(number), question=f"Question {number}?", answers=[f"a{number}"], passages=[f"p{number}"], hops=hops
    )


def asked_of(number):
    return f"Question {number}?"


QUESTIONS = [question(number) for number in range(8)]
PASSAGES = [passage(f"p{number}") for number in range(8)]
FOUND = {asked_of(number): [PASSAGES[number - number % 2], PASSAGES[1]] for number in range(8)}


def script(field, inputs):
    """The scripted model knows the even questions, and no hop."""
    if field == "answer":
        number = inputs["question"].removeprefix("Question ").removesuffix("?")
        return f"A{number}." if number in "0246" else "?"
    if field == "subquestions":
        return json.dumps([f"{inputs['question']} first", f"{inputs['question']} second"])
    return "yes" if "P1" in inputs.get("passage", inputs.get("retrieved", "")) else "no"


def context(folder, lm, program=None, trainset=QUESTIONS[:4], devset=QUESTIONS[4:], teacher=None, report=silent):
    program = program or RAISF(ScriptedRetriever(FOUND), k=2)
    program.lms = dict.fromkeys(program.step_names, lm)
    return CompileContext(
        program, trainset, devset, Corpus(PASSAGES), Objective.parse("f1"), teacher, 7, 4, folder, Listener(report)
    )


def compiled(context, **options):
    with dspy.context(adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        return Distill(**options).compile(context)


def rows(folder, name):
    lines = (folder / f"{name}.jsonl").read_text().splitlines()
    return {tuple(row["inputs"].values()): row["output"] for row in map(json.loads, lines)}


def test_self_knowledge_is_what_the_model_answers_right_by_itself(tmp_path):
    lm, told = ScriptedLM(script), []
    some = context(tmp_path, lm, report=lambda stage, *rest: told.append(stage))
    program = compiled(some, steps=["self_knowledge"], self_knowledge="encoder", epochs=1)
    expected = {("Question 0?",): "yes", ("Question 1?",): "no", ("Question 2?",): "yes", ("Question 3?",): "no"}
    hops = {(f"Hop {n}.{i}?",): "no" for n in range(4) for i in (1, 2)}
    assert rows(tmp_path, "self_knowledge-train") == expected | hops
    assert {field for field, _ in lm.asked} == {"answer"}
    assert "self_knowledge: examples from train, 12 in all, no 10, yes 2" in told
    assert program.models["self_knowledge"].card.train.classes == {"no": 10, "yes": 2}
    with dspy.context(adapter=dspy.ChatAdapter()):
        record = program(question="Question 9?").steps[0]
    assert (record.step, record.kind, record.calls) == ("self_knowledge", "model", 0)


def test_self_knowledge_by_the_probability_of_the_answer_asks_for_it_once(tmp_path):
    def likelihood(field, inputs):
        return 0.5 if script(field, inputs) != "?" else 0.3

    program = compiled(context(tmp_path, ScriptedLM(script, likelihood=likelihood)), steps=["self_knowledge"])
    card = program.models["self_knowledge"].card
    assert card.threshold == pytest.approx(0.4)
    assert card.train.classes == {"no": 10, "yes": 2}
    assert card.scores == {"f1": 1.0, "precision": 1.0, "recall": 1.0, "balanced_accuracy": 1.0, "n": 12.0}
    asked = [question for question, _ in rows(tmp_path, "self_knowledge-train")]
    assert asked[:4] == [asked_of(number) for number in range(4)]
    known, unknown = (run(program, question, likelihood) for question in ("Question 6?", "Question 7?"))
    assert known == [("closed_book", "lm", 1), ("self_knowledge", "model", 0), ("settle", "outcome", 0)]
    assert unknown[:3] == [("closed_book", "lm", 1), ("self_knowledge", "model", 0), ("retrieve", "retrieval", 0)]


def run(program, question, likelihood):
    program.lms = dict.fromkeys(program.step_names, ScriptedLM(script, likelihood=likelihood))
    with dspy.context(adapter=dspy.ChatAdapter()):
        return [(record.step, record.kind, record.calls) for record in program(question=question).steps]


def test_no_question_is_asked_with_its_own_answer_shown(tmp_path):
    demonstrations = []

    class Reading(ScriptedLM):
        async def acall(self, prompt=None, messages=None, **kwargs):
            asked = messages[-1]["content"]
            demonstrated = [message["content"] for message in messages[1:-1] if message["role"] == "user"]
            assert not any(f"Question {n}?" in asked and f"Question {n}?" in "".join(demonstrated) for n in range(4))
            demonstrations.append(len(demonstrated))
            return await super().acall(prompt, messages, **kwargs)

    some = context(tmp_path, Reading(script))
    demos = [dspy.Example(question=question.question, answer=question.answers[0]) for question in some.trainset[:2]]
    some.program.closed_book.demos = demos
    compiled(some, steps=["self_knowledge"], self_knowledge="encoder", epochs=1)
    assert set(demonstrations) == {1, 2}


def test_a_model_that_does_not_tell_probabilities_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"does not tell how likely its answers are; take .*=encoder") as error:
        compiled(context(tmp_path, ScriptedLM(script)), steps=["self_knowledge"])
    assert "\n" not in str(error.value)


def test_relevance_is_support_and_dev_holds_what_is_found(tmp_path):
    program = compiled(context(tmp_path, ScriptedLM(script)), steps=["relevance"], epochs=1)
    train = rows(tmp_path, "relevance-train")
    assert train[("Question 3?", str(PASSAGES[3]))] == "yes"
    assert train[("Question 3?", str(PASSAGES[2]))] == "no"
    assert train[("Hop 3.1?", str(PASSAGES[3]))] == "yes"
    dev = rows(tmp_path, "relevance-dev")
    assert len(dev) == 8
    assert [key[0] for key, output in dev.items() if output == "yes"] == ["Question 4?", "Question 6?"]
    assert program.models["relevance"].card.scores["n"] == 8


def test_a_teacher_judges_what_is_found(tmp_path):
    own, teacher = ScriptedLM(script), ScriptedLM(script)
    some = context(tmp_path, own, teacher=teacher)
    compiled(some, steps=["relevance"], labels="teacher", epochs=1)
    assert own.asked == []
    assert len(teacher.asked) == 16
    labels = rows(tmp_path, "relevance-train")
    assert {passage for (_, passage), label in labels.items() if label == "yes"} == {str(PASSAGES[1])}


def together(tmp_path, **given):
    """A compile of a program that judges passages together, of questions with a chain of two hops, each of which has
    its own passage; that of the first hop is found for every question, and that of the second for every other one."""
    hops = [
        [Hop(question=f"H{n}?", answer=f"b{n}", passage=f"p{n}"), Hop(question=f"b{n}?", answer="a", passage=f"q{n}")]
        for n in range(8)
    ]
    questions = [
        Question(id=str(n), question=asked_of(n), answers=["a"], passages=[f"p{n}", f"q{n}"], hops=hops[n])
        for n in range(8)
    ]
    last = [passage(f"q{n}") for n in range(8)]
    found = {asked_of(n): [PASSAGES[n], last[n - n % 2]] for n in range(8)}
    program = RAISF(ScriptedRetriever(found), k=2, relevance="sufficiency", ordered_subquestions=True)
    some = context(tmp_path, ScriptedLM(script), program, questions[:4], questions[4:], **given)
    return replace(some, corpus=Corpus([*PASSAGES, *last]))


def test_sufficiency_is_all_that_supports_and_dev_holds_what_is_found(tmp_path):
    program = compiled(together(tmp_path), steps=["sufficiency"], epochs=1)
    train = [json.loads(line) for line in (tmp_path / "sufficiency-train.jsonl").read_text().splitlines()]
    labels = {(row["inputs"]["question"], frozenset(row["inputs"]["retrieved"])): row["output"] for row in train}
    first, other, last = str(PASSAGES[1]), str(passage("q0")), str(passage("q1"))
    assert labels[asked_of(1), frozenset([first, other])] == "no"
    assert labels[asked_of(1), frozenset([first, last])] == "yes"
    assert labels[asked_of(1), frozenset([last, other])] == "no"
    assert labels["H1?", frozenset([first])] == "yes"
    dev = [json.loads(line) for line in (tmp_path / "sufficiency-dev.jsonl").read_text().splitlines()]
    assert [row["output"] for row in dev] == ["yes", "no", "yes", "no"]
    card = program.models["sufficiency"].card
    assert (card.inputs, card.output, card.labels) == (("retrieved", "question"), "sufficient", ("no", "yes"))
    assert card.config["max_tokens"] == 512
    program.self_knowledge = program.decompose = None
    with dspy.context(adapter=dspy.ChatAdapter()):
        record = program(question=asked_of(5)).steps[1]
    assert (record.step, record.kind, record.calls, record.failure) == ("sufficiency", "model", 0, None)


def test_a_teacher_judges_all_that_is_found_in_one_call(tmp_path):
    teacher = ScriptedLM(script)
    some, optimizer = together(tmp_path, teacher=teacher), Distill(steps=["sufficiency"], labels="teacher")
    with dspy.context(adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        made = optimizer.gather(some, "sufficiency", "train", some.trainset)
    assert [example.output for example in made] == ["no", "yes", "no", "no"]
    assert len(teacher.asked) == 4


def test_a_decomposition_of_a_chain_refers_to_earlier_answers(tmp_path):
    some = together(tmp_path)
    made = Distill(steps=["decompose"]).gather(some, "decompose", "train", some.trainset)
    assert [example.output for example in made] == [[f"H{n}?", "#1?"] for n in range(4)]
    Distill(steps=["decompose"]).check(some)
    alone = replace(some, program=RAISF(ScriptedRetriever({})))
    with pytest.raises(UserError, match=r"independent hops, .*take program.ordered_subquestions=true") as error:
        Distill(steps=["decompose"]).check(alone)
    assert "\n" not in str(error.value)


def test_a_decomposition_is_the_hops_or_the_teachers(tmp_path):
    def pending(folder, **options):
        optimizer = Distill(steps=["decompose"], **options)
        some = context(folder, ScriptedLM(script), teacher=ScriptedLM(script))
        with dspy.context(adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
            return optimizer.gather(some, "decompose", "train", QUESTIONS[:1])

    assert pending(tmp_path / "a")[0].output == ["Hop 0.1?", "Hop 0.2?"]
    assert pending(tmp_path / "b", labels="teacher")[0].output == ["Question 0? first", "Question 0? second"]


def test_a_teacher_that_fails_half_way_leaves_what_it_labelled_and_is_not_asked_it_again(tmp_path):
    calls = []

    def failing(field, inputs):
        calls.append(inputs)
        if len(calls) > 5:
            raise LMServerError(message="overloaded\nfor now")
        return script(field, inputs)

    options = {"steps": ["relevance"], "labels": "teacher", "epochs": 1}
    with pytest.raises(UserError, match=r"the language model gave no answer: .*overloaded for now") as error:
        compiled(context(tmp_path, None, teacher=ScriptedLM(failing)), **options)
    assert "\n" not in str(error.value)
    assert len(rows(tmp_path, "relevance-train")) == 5


def test_a_prompt_that_is_refused_and_a_search_that_is_cost_their_own_examples(tmp_path, caplog):
    async def label(number):
        if number == 1:
            raise LMInvalidRequestError("the prompt was filtered")
        if number == 3:
            raise RefusedQueryError("engine: the query is too long")
        return TrainingExample({"question": str(number)}, "yes")

    pending = [PendingExample({"question": str(n)}, partial(label, n)) for n in range(5)]
    examples = collect(pending, tmp_path / "some-train.jsonl", 1, lambda *_: None)
    assert [example.inputs["question"] for example in examples] == ["0", "2", "4"]
    assert "some-train: 2 of 5 left out, as they were refused: LMInvalidRequestError: the prompt was" in caplog.text
    assert len((tmp_path / "some-train.jsonl").read_text().splitlines()) == 5


def test_a_question_whose_search_is_refused_has_no_examples_and_the_others_theirs(tmp_path):
    program = RAISF(RefusingRetriever(FOUND, asked_of(0)), k=2)
    examples = Distill(steps=["relevance"]).gather(context(tmp_path, None, program), "relevance", "dev", QUESTIONS[:3])
    assert [example.inputs["question"] for example in examples] == [asked_of(1)] * 2 + [asked_of(2)] * 2


def test_what_is_wanted_is_labelled_once_and_comes_in_its_order(tmp_path):
    labelled = []

    async def label(number):
        await asyncio.sleep((5 - number % 5) / 1000)
        labelled.append(number)
        return None if number == 2 else TrainingExample({"question": str(number), "length": 1}, str(number))

    file = tmp_path / "rows.jsonl"
    file.write_text('{"inputs": {"question": "4"}, "out')  # what a kill leaves of a row
    told = []
    pending = [PendingExample({"question": str(n)}, lambda n=n: label(n)) for n in [*range(6), 0]]
    examples = collect(pending, file, 2, lambda done, total: told.append((done, total)))
    assert sorted(labelled) == list(range(6))
    assert [example.output for example in examples] == ["0", "1", "3", "4", "5"]
    assert told == [(n, 6) for n in range(1, 7)]
    assert len([json.loads(line) for line in file.read_text().splitlines()]) == 6


BARE = [Question(id="1", question="Q?", answers=["a"])]


@pytest.mark.parametrize(
    ("options", "given", "line"),
    [
        ({"questions": 9}, {}, r"optimizer\.questions: 9 of 4 train questions"),
        ({}, {"trainset": BARE}, "'relevance' learns from the questions' passages, which no train question has"),
        ({}, {"devset": BARE}, "which no dev question has"),
        ({"steps": ["decompose"]}, {"trainset": BARE}, "learns from the questions' hops"),
        ({"labels": "teacher"}, {}, "there is no teacher"),
        ({}, {"program": RAG(ScriptedRetriever({}))}, "RAG has no step 'self_knowledge'; .*known: reader"),
        ({}, {"program": RAISF(ScriptedRetriever({}), relevance="none")}, "'relevance' is switched off"),
        ({"steps": ["sufficiency"]}, {}, "'sufficiency' is switched off"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_asked(tmp_path, options, given, line):
    lm = ScriptedLM(script)
    with pytest.raises(UserError, match=line) as error:
        Distill(**options).check(context(tmp_path, lm, **given))
    assert "\n" not in str(error.value)
    assert lm.asked == []


def test_a_step_that_a_small_model_takes_already_is_refused(tmp_path):
    some = context(tmp_path, None)
    some.program.models["relevance"] = object()
    with pytest.raises(UserError, match=r"program\.steps\.relevance names a small model for it"):
        Distill().check(some)


def test_an_unknown_step_is_one_line():
    with pytest.raises(UserError, match=r"optimizer\.steps\.0: .*'relevance'.* got 'relevence'") as error:
        load_config(None, [*WORDS, "optimizer.steps=[relevence]"])
    assert "\n" not in str(error.value)


def config(store, *words):
    return load_config(None, [*WORDS, f"tracking.uri=sqlite:///{store}/mlflow.db", *words])


@pytest.fixture(scope="module")
def variant(store):
    """Compiled in two parts: the first is stopped amid the training."""

    def stop(stage, done, total, remark):
        if stage == "relevance: training" and done == 3:
            raise KeyboardInterrupt

    settings = config(store, "optimizer.steps=[relevance]")
    with pytest.raises(KeyboardInterrupt):
        compile_variant(settings, report=stop)
    [killed] = mlflow.search_runs(experiment_names=["atlas"], output_format="list")
    work = work_folder(settings, killed.data.tags["hop.fingerprint"])
    labelled = {file.name: sorted(file.read_bytes().splitlines()) for file in work.glob("*.jsonl")}
    variant = compile_variant(settings)
    assert variant.run_id == killed.info.run_id
    assert not work.exists()
    kept = mlflow.artifacts.download_artifacts(run_id=variant.run_id, artifact_path="examples")
    assert {file.name: sorted(file.read_bytes().splitlines()) for file in Path(kept).iterdir()} == labelled
    return variant


def judged(variant):
    steps = [step for row in variant.after.rows for step in row.steps if step.step == "relevance"]
    assert {step.kind for step in steps} == {"model"}
    return [step.outputs for step in steps]


def assert_judged_alike(variant, other):
    """To the last digit; on a GPU, that depends on what is computed together."""
    apart = 1e-3 if torch.cuda.is_available() else 0
    for one, same in zip(judged(variant), judged(other), strict=True):
        assert one == {**same, "probability": pytest.approx(same["probability"], rel=0, abs=apart)}


def test_the_run_holds_the_small_models_and_their_scores(variant):
    client = mlflow.MlflowClient()
    names = {file.name for file in kept(variant.run_id, variant.config.tracking.uri, "steps/relevance").iterdir()}
    assert {"card.json", "model.safetensors"} <= names
    assert not client.list_artifacts(variant.run_id, "variant/steps"), "the weights are in the MLflow model, once"
    assert {item.path for item in client.list_artifacts(variant.run_id, "examples")} == {
        "examples/relevance-dev.jsonl",
        "examples/relevance-train.jsonl",
    }
    scores = variant.as_dict()["steps"]["relevance"]
    assert set(scores) == {"f1", "precision", "recall", "balanced_accuracy", "n"}
    assert scores["n"] == 108  # two passages for each of 16 questions and of their 38 hops
    assert mlflow.get_run(variant.run_id).data.metrics["workings/steps/relevance/f1"] == scores["f1"]
    assert variant.before.metrics["model_calls"] == 0 < variant.after.metrics["model_calls"]
    assert variant.after.metrics["lm_calls"] < variant.before.metrics["lm_calls"]


def test_a_compile_goes_on_from_a_variant(variant, store):
    few_shot = ["optimizer=labeled_few_shot", "optimizer.prompt_formats=[plain]", "optimizer.k=2"]
    both = compile_variant(load_config(None, few_shot, config(store).public()), run_id=variant.run_id)
    assert_judged_alike(both, variant)
    assert both.steps == variant.steps
    assert [row.answer for row in both.before.rows] == [row.answer for row in variant.after.rows]
    state = Tracker(both.config.tracking.uri, "atlas").load_state(both.run_id)
    assert len(state["reader"]["demos"]) == 2
    assert state["program"] == {"prompt_format": "plain", "models": ["relevance"], "lms": {}}
    again = evaluate_variant(both.config, run_id=both.run_id)
    assert [row.answer for row in again.after.rows] == [row.answer for row in both.after.rows]


def test_scoring_the_run_uses_its_small_models(variant):
    again = evaluate_variant(variant.config, run_id=variant.run_id)
    assert_judged_alike(again, variant)
    assert [row.answer for row in again.after.rows] == [row.answer for row in variant.after.rows]


def test_an_ablation_of_the_run_leaves_out_the_steps_that_are_switched_off(variant, store):
    without = evaluate_variant(config(store, "program.relevance=false"), run_id=variant.run_id)
    assert without.after.metrics["model_calls"] == without.after.metrics["retrievals"] == 0


def test_a_config_names_the_small_model_of_a_run(variant, store):
    source = f"program.steps.relevance=runs:/{variant.run_id}/variant/steps/relevance"
    named = evaluate_variant(config(store, source))
    assert_judged_alike(named, variant)
    with pytest.raises(UserError, match="can't be fetched from sqlite") as error:
        evaluate_variant(config(store, source.replace(variant.run_id, "0" * 32)))
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="is a small model for the step 'relevance', not for 'decompose'"):
        evaluate_variant(config(store, "program.decomposition=true", source.replace(".relevance=", ".decompose=")))


def test_a_variant_takes_its_own_copy_of_a_small_model_that_its_config_named(variant, store, tmp_path):
    [kept_model] = kept(variant.run_id, variant.config.tracking.uri, "steps").iterdir()
    named = shutil.copytree(kept_model, tmp_path / "relevance")
    words = ["optimizer=labeled_few_shot", "optimizer.prompt_formats=[plain]", f"program.steps.relevance={named}"]
    compiled = compile_variant(load_config(None, words, config(store).public()), score_before=False)
    shutil.rmtree(named)
    tracker = Tracker(compiled.config.tracking.uri, "atlas")
    assert tracker.config_values(compiled.run_id)["program"]["steps"] == {}
    again = evaluate_variant(load_config(None, [], tracker.config_values(compiled.run_id)), run_id=compiled.run_id)
    assert_judged_alike(again, compiled)


def test_the_served_model_uses_them_in_a_fresh_process_without_unpickling(variant, store, tmp_path):
    row = next(row for row in variant.after.rows if row.scores["model_calls"])
    answer = answer_in_fresh_process(variant, row.question.question, tmp_path)
    assert answer["answer"] == row.answer
    assert [step["kind"] for step in answer["steps"] if step["step"] == "relevance"] == ["model", "model"]
