"""The main job, as `make demo` runs it: the embedded models, questions of atlas test, real MLflow runs."""

import json
import subprocess
import sys

import mlflow
import pytest

pytestmark = pytest.mark.slow(reason="five minutes: what the README promises first, from the models to paired gains")


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-m", "hoptimizer.cli", "demo", "--json"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout), folder


def test_the_demo_prints_one_json_object_with_its_variants(demo):
    result, _ = demo
    assert [(v["program"], v["compiled"]) for v in result["variants"]] == [
        ("direct", False), ("rag", False), ("rag", True), ("ircot", False), ("ircot", True),
        ("ra_isf", False), ("ra_isf", True), ("efficient_rag", False), ("efficient_rag", True),
    ]  # fmt: skip
    assert all(v["n"] == 60 for v in result["variants"])
    assert 0 < result["blind_guess"]["em"] <= result["blind_guess"]["f1"] < 0.5


def test_every_variant_of_the_demo_is_a_finished_run(demo):
    result, folder = demo
    client = mlflow.MlflowClient(f"sqlite:///{folder}/mlflow.db")
    for variant in result["variants"]:
        run = client.get_run(variant["run_id"])
        assert run.info.status == "FINISHED"
        assert run.data.metrics["test/f1"] == pytest.approx(variant["metrics"]["f1"])


def test_no_compile_makes_a_program_worse_beyond_chance(demo):
    result, _ = demo
    assert [c["program"] for c in result["comparisons"]] == ["rag", "ircot", "ra_isf", "efficient_rag"]
    for comparison in result["comparisons"]:
        assert comparison["metric"] == "f1"
        assert comparison["after"] == pytest.approx(comparison["before"] + comparison["difference"])
        assert comparison["interval"][1] >= 0


def test_the_trained_labeler_finds_passages_that_one_search_misses(demo):
    [before, after] = [v["metrics"]["recall"] for v in demo[0]["variants"] if v["program"] == "efficient_rag"]
    assert after >= before + 0.1


def test_no_output_of_the_embedded_model_fails_to_parse(demo):
    assert demo[0]["parse_failures"] == 0
