"""Objectives: metrics and weighted sums, as DSPy's optimizers, evaluations and studies see them."""

import sys
import threading
import types

import dspy
import mlflow
import pytest
import yaml
from dspy.utils import DummyLM
from scripted import ScriptedRetriever, passage

from hoptimizer import Tracker, load_study
from hoptimizer.common.errors import UserError
from hoptimizer.eval import Question
from hoptimizer.eval.objective import Objective
from hoptimizer.eval.runner import Evaluation, QuestionResult, evaluate, mean_scores
from hoptimizer.programs import RAG, StepRecord
from hoptimizer.study.lines import Figures, aggregate
from hoptimizer.study.table import sheets
from hoptimizer.tracking.artifacts import Links, log_evaluation
from hoptimizer.tracking.naming import predictions_file

QUESTION = Question(id="q", question="Where?", answers=["Lyon"], passages=["a", "b"])
BARE = Question(id="r", question="Where else?", answers=["Lyon"])


def prediction(answer, *ids, calls=0):
    steps = [StepRecord("reader", "lm", {}, {}, calls=calls)]
    return dspy.Prediction(answer=answer, passages=[passage(id) for id in ids], steps=steps)


def test_a_metric_scores_the_examples_of_dspy():
    example = QUESTION.to_dspy()
    assert Objective.parse("f1")(example, dspy.Prediction(answer="in Lyon", passages=[])) == pytest.approx(2 / 3)
    assert Objective.parse("recall")(example, prediction("", "a"), None) == 0.5
    assert Objective.parse("recall")(BARE.to_dspy(), prediction("", "a")) == 0


def test_a_weighted_sum_sets_calls_against_answers():
    objective = Objective.parse({"f1": 1, "recall": 0.5, "lm_calls": -0.01})
    assert objective(QUESTION.to_dspy(), prediction("Lyon", "a", calls=3)) == pytest.approx(1 + 0.25 - 0.03)
    assert objective(BARE.to_dspy(), prediction("Lyon", "a", calls=3)) == pytest.approx(1 - 0.03)
    assert objective.of({"f1": 0.5, "lm_calls": 2.0}) == pytest.approx(0.48)


class Constant(dspy.Module):
    """Answers every question alike."""

    def forward(self, question):
        return prediction("the Lyon", calls=2)


def test_dspy_evaluates_by_it_in_threads():
    devset = [QUESTION.to_dspy()] * 8
    evaluation = dspy.Evaluate(devset=devset, metric=Objective.parse({"em": 1, "lm_calls": -0.1}), num_threads=4)
    assert evaluation(Constant()).score == pytest.approx(80)


@pytest.mark.parametrize(
    ("value", "name", "label"),
    [
        ("f1", "f1", "f1"),
        ({"em": 1}, "em", "em"),
        ({"em": 1, "lm_calls": 0}, "em", "em"),
        ({"em": 2}, "objective", "2 em"),
        ({"f1": 1.0, "lm_calls": -0.01}, "objective", "f1 - 0.01 lm_calls"),
        ({"passages": -1, "f1": 3, "em": 0.5}, "objective", "- passages + 3 f1 + 0.5 em"),
    ],
)
def test_it_is_called_what_it_is(value, name, label):
    objective = Objective.parse(value)
    assert (objective.name, objective.label) == (name, label)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("recal", "did you mean 'recall'"),
        ({"f1": 1, "lm_cals": -1}, "did you mean 'lm_calls'"),
        ({"f1": 1, "seconds": -1}, "there is no metric or count 'seconds'"),
        ("passages", "at least one of em, f1, recall, .*accuracy with a weight above 0.* got 'passages'"),
        ({"lm_calls": -0.01}, "with a weight above 0"),
        ({"f1": 0.0, "em": 0}, "with a weight above 0"),
        ({}, "with a weight above 0"),
        ({"f1": float("inf")}, r"metric\.f1: expected a finite number"),
        ({"f1": True}, r"metric\.f1: expected a finite number"),
        ({"f1": "much"}, r"metric\.f1: expected a finite number"),
        (["f1"], "expected a name, or names with weights"),
    ],
)
def test_a_mistake_is_one_line(value, says):
    with pytest.raises(UserError, match=says) as error:
        Objective.parse(value)
    assert "\n" not in str(error.value)


def check_is_taken(name, monkeypatch):
    own = types.ModuleType("own_metrics")
    own.__dict__["score"] = score = lambda example, prediction: 1.0
    score.__name__ = name
    monkeypatch.setitem(sys.modules, "own_metrics", own)
    with pytest.raises(UserError, match="one of your own is called"):
        Objective.parse("own_metrics:score")


@pytest.mark.parametrize("name", ["failures", "seconds_median", "answer", "trace", "hits@5"])
def test_a_metric_is_called_as_nothing_else_and_as_stores_take_it(name, monkeypatch):
    check_is_taken(name, monkeypatch)


def test_a_metric_is_called_as_no_column_of_the_stored_predictions(tmp_path, monkeypatch):
    judged = QuestionResult(QUESTION, "Lyon", ["a"], {"f1": 1.0}, [], judge_failure="the judge gave no verdict")
    unanswered = QuestionResult(BARE, "", [], {}, [], failure="no answer", is_answered=False)
    with Tracker(f"sqlite:///{tmp_path}/mlflow.db", "columns").run("eval", "columns") as run:
        log_evaluation(Evaluation([judged, unanswered], 1.0), "dev", "after", Links(traces={"q": "trace"}))
    columns = mlflow.artifacts.load_dict(f"{run.info.artifact_uri}/{predictions_file('dev', 'after')}")["columns"]
    assert {"trace", "judge_failure", "unanswered"} < {*columns}
    for name in columns:
        check_is_taken(name, monkeypatch)


def evaluation(objective):
    retriever = ScriptedRetriever({"Where?": [passage("a")]})
    seen = []
    script = {"Where?": {"answer": "Lyon"}, "Where else?": {"answer": "Paris"}}
    with dspy.context(lm=DummyLM(script), adapter=dspy.ChatAdapter()):
        scored = evaluate(
            RAG(retriever), [QUESTION, BARE], objective=objective, progress=lambda *told: seen.append(told[2])
        )
    return scored, seen


def test_an_evaluation_has_the_sum_of_each_question_and_its_mean():
    objective = Objective.parse({"f1": 1, "lm_calls": -0.25})
    scored, seen = evaluation(objective)
    assert scored.scores("objective") == [0.75, -0.25]
    assert scored.metrics["objective"] == seen[-1]["objective"] == 0.25
    assert objective.of(mean_scores(scored.rows)) == 0.25


def test_failing_is_never_worth_more_than_a_wrong_answer():
    objective = Objective.parse({"f1": 1, "lm_calls": -0.25})
    assert Objective.parse("f1").worst == 0
    assert objective.worst == -1
    assert objective.of({"f1": 0, "lm_calls": 40}) == objective.worst


def test_a_plain_metric_adds_no_score():
    assert set(evaluation(Objective.parse("f1"))[0].metrics) == set(evaluation(None)[0].metrics)
    assert "objective" not in evaluation(None)[0].metrics


def test_a_studys_tables_show_the_sum(tmp_path):
    path = tmp_path / "small.yaml"
    base = {"data": {"name": "atlas", "dev": 2}, "program": "direct", "metric": {"f1": 1, "lm_calls": -0.01}}
    shown = {"columns": "retriever.k", "figures": ["objective", "accuracy", "judge_failures"]}
    path.write_text(yaml.safe_dump({"base": base, "grid": {"retriever.k": [1, 2]}} | shown))
    study = load_study(path)
    lines = aggregate(study, [(cell, Figures({"f1": 0.5, "lm_calls": 1.0, "objective": 0.49})) for cell in study.cells])
    crossed, complete = sheets(study, lines)
    assert crossed.title.startswith("small: f1 - 0.01 lm_calls on")
    assert crossed.rows == [["0.490", "0.490"]]
    assert complete.header == ["k", "objective"]
    variant = {"metric": {"em": 1.0, "passages": -0.1}}
    assert load_study(path, variant=study.config.public() | variant).config.metric == base["metric"]


def test_a_metric_of_the_users_that_waits_holds_up_no_other_question(monkeypatch):
    together = threading.Barrier(4, timeout=10)  # is passed by four at once alone

    def judged(example, given, trace=None):
        together.wait()
        return 1.0

    module = types.ModuleType("waiting")
    module.judged = judged
    monkeypatch.setitem(sys.modules, "waiting", module)
    questions = [QUESTION.model_copy(update={"id": str(n), "question": f"Where {n}?"}) for n in range(4)]
    with dspy.context(lm=DummyLM([{"answer": "Lyon"}] * 4)):
        evaluation = evaluate(
            RAG(ScriptedRetriever({}), k=1), questions, workers=4, objective=Objective.parse("waiting:judged")
        )
    assert [row.scores["judged"] for row in evaluation.rows] == [1.0] * 4
