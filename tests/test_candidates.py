"""A compile's candidates, figures and settings in a real MLflow store."""

import mlflow
import pytest

from hoptimizer.models.usage import Usage
from hoptimizer.optimizers.candidates import Candidate
from hoptimizer.tracking.compile_log import CompileLog


def state(instructions: str) -> dict:
    return {
        "reader": {"signature": {"instructions": instructions}, "demos": [{"question": "?"}]},
        "program": {"prompt_format": "plain"},
    }


def candidate(number: int, score: float, calls: int, n: int = 8) -> Candidate:
    scores = {f"q{question}": score for question in range(n)}
    return Candidate(number, state(f"Instructions {number}."), scores, n >= 8, 0, Usage(calls=calls, seconds=1.5))


@pytest.mark.parametrize(
    ("scores", "above"),
    [
        ([1, 0, 0, 1], False),  # as the other
        ([1, 1, 0, 1], False),  # one question makes the difference
        ([1, 1, 1, 1], True),
        ([0, 1, 1, 1], False),  # two for it, one against it
        ([1.1, 0.1, 0.1, 1.1], True),
        ([0, 0, 0, 1], False),
    ],
)
def test_a_candidate_is_above_another_by_more_than_a_standard_error(scores, above):
    def scored(each):
        return Candidate(0, {}, {f"q{n}": score for n, score in enumerate(each)}, True, 0, Usage())

    assert scored(scores).is_above(scored([1, 0, 0, 1])) == above
    assert not scored(scores[1:2]).is_above(scored([0])), "one question tells nothing"


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    return mlflow.MlflowClient(f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db")


@pytest.fixture
def run(client, tmp_path):
    experiment = client.create_experiment(tmp_path.name, artifact_location=str(tmp_path))
    return client.create_run(experiment)


def opened(client, run):
    log = CompileLog()
    log.open(client.tracking_uri, client, run)
    return log


def children(client, run):
    found = client.search_runs(
        [run.info.experiment_id], "tags.`hop.kind` = 'candidate'", order_by=["tags.hop.candidate"]
    )
    assert all(child.data.tags["mlflow.parentRunId"] == run.info.run_id for child in found)
    return found


def test_each_candidate_is_a_run_with_its_score_instructions_and_demonstrations(client, run):
    log = opened(client, run)
    for one in (candidate(0, 0.25, 8), candidate(1, 0.5, 16), candidate(2, 0.375, 24)):
        log.candidate(one)
    log.mark_winner(state("Instructions 1."))

    first, second, third = children(client, run)
    assert second.data.metrics == {
        "score": 0.5, "n": 8, "failures": 0, "spent/calls": 16, "spent/seconds": 1.5
    }  # fmt: skip
    assert second.data.params == {
        "reader.instructions": "Instructions 1.",
        "reader.demos": "1",
        "prompt_format": "plain",
    }
    assert [artifact.path for artifact in client.list_artifacts(second.info.run_id)] == ["program.json"]
    assert [child.data.tags.get("hop.winner") for child in (first, second, third)] == [None, "true", None]
    assert client.get_run(run.info.run_id).data.tags["hop.winner"] == "1"
    best = client.get_metric_history(run.info.run_id, "workings/search/best_of_8")
    assert [(point.step, point.value) for point in best] == [(8, 0.25), (16, 0.5), (24, 0.5)]


def test_a_compile_that_is_continued_finds_its_candidates_again(client, run):
    opened(client, run).candidate(candidate(0, 0.25, 8))
    again = opened(client, client.get_run(run.info.run_id))
    again.candidate(candidate(0, 0.25, 8))
    again.candidate(candidate(0, 0.3, 30, n=20))
    (child,) = children(client, run)
    assert child.data.metrics["score"] == 0.3
    assert child.data.metrics["n"] == 20
    assert len(client.get_metric_history(run.info.run_id, "workings/search/score")) == 2


def test_a_candidate_that_was_half_kept_is_kept_again(client, run, monkeypatch):
    class Killed(BaseException):
        pass

    def killed(*_, **__):
        raise Killed

    log = opened(client, run)
    for step in ("log_text", "set_terminated"):
        with monkeypatch.context() as patched:
            patched.setattr(client, step, killed)
            with pytest.raises(Killed):
                log.candidate(candidate(0, 0.25, 8))
        log = opened(client, client.get_run(run.info.run_id))
    log.candidate(candidate(0, 0.25, 8))
    (child,) = children(client, run)
    assert child.info.status == "FINISHED"
    assert [artifact.path for artifact in client.list_artifacts(child.info.run_id)] == ["program.json"]
    assert client.get_run(run.info.run_id).data.metrics["workings/search/best_of_8"] == 0.25


def test_the_first_value_of_a_setting_is_kept(client, run):
    log = opened(client, run)
    log.settle({"MIPROv2.seed": 7})
    log.settle({"MIPROv2.seed": 8, "MIPROv2.num_trials": 3})
    opened(client, client.get_run(run.info.run_id)).settle({"MIPROv2.seed": 9})
    assert client.get_run(run.info.run_id).data.params == {
        "workings/MIPROv2.seed": "7",
        "workings/MIPROv2.num_trials": "3",
    }


def test_costs_are_metrics_and_at_hand(client, run):
    log = opened(client, run)
    log.record("estimate", {"calls": 100.0}, 0)
    log.record("spent", {"calls": 80.0}, 80)
    assert log.costs == {"estimate": {"calls": 100.0}, "spent": {"calls": 80.0}}
    assert client.get_run(run.info.run_id).data.metrics == {
        "workings/estimate/calls": 100.0,
        "workings/spent/calls": 80.0,
    }
