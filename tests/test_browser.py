"""MLflow's pages of a variant in a real browser, as they open. The language model is scripted."""

import sys
from pathlib import Path

import pytest
from chat_server import ChatServer

from hoptimizer import UserError, compile_variant, evaluate_variant, load_config

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import screenshots  # the command that makes those of the docs


@pytest.mark.slow(reason="starts MLflow and a browser: nothing else shows what a user sees")
def test_the_pages_of_a_variant_show_headlines_documents_and_names(tmp_path):
    try:
        with screenshots.browser():
            pass
    except UserError as error:
        pytest.skip(str(error))
    with ChatServer(lambda _: "[[ ## answer ## ]]\nLyon\n\n[[ ## completed ## ]]") as lm:
        words = ["data=atlas", "data.train=4", "data.dev=3", "retriever=bm25", "lm.default.model=openai/gpt-x"]
        words += [f"lm.default.api_base={lm.url}", f"tracking.uri=sqlite:///{tmp_path}/mlflow.db"]
        compiled = compile_variant(load_config(None, [*words, *screenshots.COMPILE]))
        other = evaluate_variant(load_config(None, [*words, "program=direct"]))
    config, runs = compiled.config, (other.run_id, compiled.run_id)
    lacking = screenshots.take(config.tracking.uri, config.experiment, runs, tmp_path / "shots")
    assert lacking == {name: [] for name in ("report", "experiment", "run", "trace", "prompt", "model", "compare")}
    assert all(file.stat().st_size > 10_000 for file in (tmp_path / "shots").glob("*.png"))
