"""How likely a model in this process finds an answer that it is given."""

import math

import dspy
import pytest

from hoptimizer.models import LMSettings, build_adapter, build_lm
from hoptimizer.models.engine.engine import generator
from hoptimizer.models.engine.request import GenerationRequest
from hoptimizer.programs import REPLUG
from hoptimizer.retrieval import BM25Retriever, Corpus, Passage

NAME = "local/smollm2-135m-instruct"
CURIE = Passage("curie", "Marie Curie", "Marie Curie was born in Warsaw.")
TESLA = Passage("tesla", "Nikola Tesla", "Nikola Tesla was born in Smiljan.")
ASKED = "Where was Nikola Tesla born?"


def test_a_reply_is_as_likely_as_the_same_text_that_the_model_writes():
    model = generator(NAME)
    prompt = model.tokenizer("The capital of France is", add_special_tokens=False)["input_ids"]
    written = model.submit(GenerationRequest(prompt, 2, logprobs=True)).result()
    tokens = tuple(model.tokenizer(written.text, add_special_tokens=False)["input_ids"])
    scored = model.submit(GenerationRequest(prompt, len(tokens) + 1, logprobs=True, reply=tokens)).result()
    assert (scored.text, scored.finished) == (written.text, True)
    assert [one for _, one in scored.logprobs] == pytest.approx([one for _, one in written.logprobs], abs=1e-3)


def test_each_answer_is_scored_with_every_passage():
    lm = build_lm(LMSettings(model=NAME, max_tokens=64))
    with dspy.context(lm=lm, adapter=build_adapter()):
        prediction = REPLUG(BM25Retriever(Corpus([CURIE, TESLA])), k=2)(question=ASKED)
    readings = [record for record in prediction.steps if record.step == "reader"]
    scores = [record for record in prediction.steps if record.step == "score"]
    assert [record.inputs["context"] for record in scores] == [["tesla"]] * 2 + [["curie"]] * 2
    assert [record.outputs["answer"] for record in scores] == [record.outputs["answer"] for record in readings] * 2
    assert all(record.calls == 1 and 0 < record.outputs["probability"] <= 1 for record in scores)
    # What was written is scored as it was written, but for the end of the object, about which there was no choice.
    own = [scores[0], scores[3]]
    for reading, scored in zip(readings, own, strict=True):
        assert math.log(scored.outputs["probability"]) == pytest.approx(
            math.log(reading.outputs["probability"]), abs=1.0
        )
    assert scores[0].outputs["probability"] > scores[2].outputs["probability"]
