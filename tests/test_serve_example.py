"""The example of a variant in an application of one's own: loaded, on another language model, over HTTP, streamed."""

import sys
from pathlib import Path

from fastapi.testclient import TestClient

from hoptimizer import compile_variant, load_config

EXAMPLES = Path(__file__).parents[1] / "examples"
QUESTION = {"question": "Where was Marie Curie born?"}


def test_a_variant_answers_over_http_and_streams_what_it_does(store, monkeypatch):
    words = ["data=atlas", "data.train=4", "data.dev=1", "program=rag", "retriever=bm25", "retriever.k=2"]
    words += ["lm.default.max_tokens=8", "optimizer=labeled_few_shot", f"tracking.uri=sqlite:///{store}/mlflow.db"]
    variant = compile_variant(load_config(None, words), score_before=False)
    monkeypatch.setenv("VARIANT", f"runs:/{variant.run_id}")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store}/mlflow.db")
    monkeypatch.setenv("LM", "{model: local/smollm2-135m-instruct, max_tokens: 12}")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import serve_variant

    try:
        assert serve_variant.support.variant.config.lm["default"].max_tokens == 12
        client = TestClient(serve_variant.app)
        told = client.get("/answer", params=QUESTION).json()
        assert len(told["titles"]) == 2
        *steps, last = client.get("/stream", params=QUESTION).text.splitlines()
        assert steps[0] == "asking local/smollm2-135m-instruct"
        assert last == told["answer"]
    finally:
        sys.modules.pop("serve_variant", None)
