"""Drafts of the in-process engine: what is written with them is what is written without, in fewer passes."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from hoptimizer.models.engine.engine import generator
from hoptimizer.models.engine.generator import Generator
from hoptimizer.models.engine.request import GenerationRequest
from hoptimizer.models.weights.store import pull

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU nothing is drafted")

PEOPLE = ["Ada Lovelace", "Emmy Noether", "Sofia Kovalevskaya", "Mary Somerville", "Hypatia"]
PASSAGES = "\n".join(f"[{i}] {name} is written about in volume {i} of the lexicon." for i, name in enumerate(PEOPLE))
SCHEMA = {
    "type": "object",
    "properties": {"quote": {"type": "string"}, "names": {"type": "array", "items": {"type": "string"}}},
    "required": ["quote", "names"],
    "additionalProperties": False,
}
ASKED = [f"{PASSAGES}\nCopy what is said of {name}, word for word." for name in PEOPLE]


@pytest.fixture(scope="module", params=["as it is", "fp32"])
def model(request) -> Generator:
    if request.param == "fp32":
        return Generator(str(pull("smollm2-135m-instruct")), dtype=torch.float32)
    return generator("local/smollm2-135m-instruct")


def _written(model: Generator, count: int, drafting: int, **options):
    """What is written for so many requests at once, and the passes that it takes; their prompts are known by then."""
    requests = []
    for text in ASKED[:count]:
        chat = [{"role": "user", "content": text}]
        prompt = model.tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        requests.append(GenerationRequest(model.tokenizer(prompt)["input_ids"], 40, logprobs=True, **options))
    for request in requests:
        model.submit(GenerationRequest(request.tokens, 1)).result()
    with patch.object(model, "limits", replace(model.limits, decoded_tokens=drafting)):
        before = model.counts.passes
        with model._wake:  # all of them are in the first pass
            futures = [model.submit(request) for request in requests]
        return [future.result() for future in futures], model.counts.passes - before


def _compare(model: Generator, count: int, **options) -> tuple[int, int]:
    """The passes without drafts and with them, where the same is written."""
    plain, passes = _written(model, count, 0, **options)
    drafted, fewer = _written(model, count, 16, **options)
    assert [one.text for one in drafted] == [one.text for one in plain]
    for one, other in zip(drafted, plain, strict=True):
        expected = [number for _, number in other.logprobs]
        # In fp32 on some processors, sums depend on the number of rows: by other texts of the batch as by drafts.
        if model._model.dtype == torch.float32:
            expected = pytest.approx(expected, abs=1e-3)
        assert [number for _, number in one.logprobs] == expected
    return passes, fewer


@pytest.mark.parametrize("count", [1, 3, 5])
def test_free_text_is_the_same_in_fewer_passes(model, count):
    passes, fewer = _compare(model, count)
    assert fewer < passes


@pytest.mark.parametrize("options", [{"temperature": 0.8, "seed": 3}, {"stop": ("volume",)}], ids=str)
def test_so_are_samples_and_texts_that_end_at_a_word(model, options):
    passes, fewer = _compare(model, 3, **options)
    assert fewer <= passes


@pytest.mark.parametrize("count", [1, 5])
def test_so_is_json(model, count):
    passes, fewer = _compare(model, count, grammar=model.compiler.compile(SCHEMA))
    assert fewer < passes


def test_a_text_has_no_more_tokens_than_were_asked_for():
    """Even where the draft would go on."""
    model = generator("local/smollm2-135m-instruct")
    prompt = model.tokenizer("one two three four one two three four one two three four one two")["input_ids"]
    for most in (1, 2, 3, 8):
        assert model.submit(GenerationRequest(prompt, most, ignore_end=True)).result().tokens == most


def test_of_several_prompts_none_is_drafted_for():
    model = generator("local/smollm2-135m-instruct")
    prompt = model.tokenizer("one two three four one two three four one two")["input_ids"]
    before = model.counts.passes
    mixed = GenerationRequest(prompt, 6, others=(prompt,), weights=(0.5, 0.5), ignore_end=True)
    assert model.submit(mixed).result().tokens == 6
    assert model.counts.passes - before >= 6
