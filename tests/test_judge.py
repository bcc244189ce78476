"""Accuracy by a judge: scripted judges for the control flow, the embedded model as a real one."""

import io
from pathlib import Path

import dspy
import pytest
from dspy.utils import DummyLM
from dspy.utils.exceptions import ContextWindowExceededError, LMTransportError
from rich.console import Console
from scripted import ScriptedLM

from hoptimizer import UserError, compile_variant, load_config
from hoptimizer.cli.screen import tables
from hoptimizer.common.errors import ServiceError
from hoptimizer.eval import Question
from hoptimizer.eval.objective import Objective
from hoptimizer.eval.runner import evaluate
from hoptimizer.programs import Direct
from hoptimizer.variants import Variant

GIVEN = {"a": "the city of Lyon", "b": "Lyon", "c": "", "d": "Paris"}
QUESTIONS = [Question(id=name, question=f"Where is {name}?", answers=["Lyon", "Lyons"]) for name in GIVEN]


class Failing(ScriptedLM):
    """A judge that fails on Paris."""

    def __init__(self, error):
        super().__init__(lambda *_: True)
        self.error = error

    async def acall(self, prompt=None, messages=None, **kwargs):
        if "Paris" in messages[-1]["content"]:
            raise self.error
        return await super().acall(prompt, messages, **kwargs)


def verdict(field, inputs):
    return "Lyon" in inputs["answer"]


def evaluated(judge, objective=None):
    answers = {f"Where is {name}?": {"answer": answer} for name, answer in GIVEN.items()}
    with dspy.context(lm=DummyLM(answers), adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        return evaluate(Direct(), QUESTIONS, judge=judge, objective=objective)


def test_only_what_wording_leaves_open_is_judged_and_concurrently():
    judge = ScriptedLM(verdict, together=2)
    scored = evaluated(judge)
    assert scored.scores("accuracy") == [1.0, 1.0, 0.0, 0.0]
    assert scored.scores("em") == [0.0, 1.0, 0.0, 0.0]
    assert {inputs["answer"] for _, inputs in judge.asked} == {"the city of Lyon", "Paris"}
    assert judge.asked[0][0] == "correct"
    assert "Lyons" in judge.asked[0][1]["right_answers"]
    assert judge.most == 2
    assert scored.metrics["lm_calls"] == 1, "the judge's calls are none of the program's"
    assert scored.metrics["judge_failures"] == 0


def test_without_a_judge_there_is_no_accuracy():
    assert {"accuracy", "judge_failures"}.isdisjoint(evaluated(None).metrics)


@pytest.mark.parametrize("judge", [Failing(ContextWindowExceededError(message="busy")), ScriptedLM(lambda *_: ("hm",))])
def test_a_judge_that_fails_leaves_the_question_without_accuracy_and_is_counted(judge):
    scored = evaluated(judge, Objective.parse({"accuracy": 1, "lm_calls": -0.5}))
    unjudged = [row for row in scored.rows if row.judge_failure]
    assert "Paris" in [row.answer for row in unjudged]
    assert all({"accuracy", "objective"}.isdisjoint(row.scores) for row in unjudged)
    assert scored.metrics["judge_failures"] == len(unjudged)
    assert scored.metrics["accuracy"] == pytest.approx((3 - len(unjudged)) / (4 - len(unjudged)))
    assert scored.metrics["objective"] == pytest.approx(scored.metrics["accuracy"] - 0.5)
    assert len(evaluated(judge, Objective.parse({"f1": 1, "lm_calls": -1})).scores("objective")) == 4


def test_a_judge_that_cannot_be_reached_leaves_no_question_with_a_result():
    with pytest.raises(ServiceError, match=r"1 of 4 questions got no answer.*connection refused"):
        evaluated(Failing(LMTransportError(message="connection\nrefused")))


class Constant(dspy.Module):
    """Gives the answer that belongs to a question."""

    def forward(self, question):
        return dspy.Prediction(answer=GIVEN[question[9]], passages=[], steps=[])


def test_dspys_optimizers_ask_the_judge_from_their_threads_and_its_failures_are_kept():
    objective = Objective((("accuracy", 1.0),), judge=Failing(ContextWindowExceededError(message="busy")))
    devset = [question.to_dspy() for question in QUESTIONS] * 3
    with dspy.context(adapter=dspy.ChatAdapter()):
        result = dspy.Evaluate(devset=devset, metric=objective, num_threads=6)(Constant())
    assert result.score == 50
    assert len(objective.judge_failures) == 3
    assert "busy" in objective.judge_failures[0]


def test_the_judges_call_is_not_in_the_trace_of_the_program():
    objective = Objective((("accuracy", 1.0),), judge=ScriptedLM(verdict))
    answer = dspy.Prediction(answer="the city of Lyon", passages=[], steps=[])
    with dspy.context(adapter=dspy.ChatAdapter(), trace=[]):
        assert objective(QUESTIONS[0].to_dspy(), answer) == 1
        assert dspy.settings.trace == []


def test_without_its_judge_an_objective_says_so():
    with pytest.raises(UserError, match=r"lm\.judge="):
        Objective.parse("accuracy")(QUESTIONS[0].to_dspy(), dspy.Prediction(answer="x", passages=[], steps=[]))


def test_the_summary_counts_the_judges_failures():
    words = ["data=atlas", "metric.accuracy=1", "metric.passages=-0.1", "lm.judge=openai/x"]
    config = load_config(None, words)
    failed, judged = (
        evaluated(judge, config.objective) for judge in (Failing(ContextWindowExceededError()), ScriptedLM(verdict))
    )

    def shown(variant):
        console = Console(file=io.StringIO(), width=200)
        console.print(tables.before_and_after(variant))
        return " ".join(console.file.getvalue().split())

    text = shown(Variant("run", config, True, "dev", judged, failed))
    assert "1 answers got no verdict, objective: accuracy - 0.1 passages" in text
    assert "em f1 accuracy objective passages" in text
    assert "verdict" not in shown(Variant("run", config, False, "dev", judged))


def test_the_embedded_model_judges_while_compiling(store):
    model = "local/smollm2-135m-instruct"
    words = ["data=atlas", "data.train=4", "data.dev=2", "program=direct", "lm.default.max_tokens=16"]
    words += [f"lm.judge={model}", "metric=accuracy", "optimizer=bootstrap_few_shot", "optimizer.metric_threshold=0"]
    words += ["optimizer.max_bootstrapped_demos=1", "optimizer.max_labeled_demos=1"]
    variant = compile_variant(load_config(None, [*words, f"tracking.uri=sqlite:///{Path.cwd()}/mlflow.db"]))
    for scored in (variant.before, variant.after):
        assert set(scored.scores("accuracy")) <= {0.0, 1.0}
        assert len(scored.scores("accuracy")) == 2
        assert (scored.metrics["judge_failures"], scored.metrics["lm_calls"]) == (0, 1)
