"""One answer from several prompts, whose next-token distributions are mixed, by the real 135M model."""

import asyncio
import json

import dspy
import pytest
import torch
from dspy.utils.exceptions import LMError

from hoptimizer.common.errors import UserError
from hoptimizer.models import LMSettings, build_adapter, build_lm
from hoptimizer.models.engine.engine import generator
from hoptimizer.models.engine.generator import Generator
from hoptimizer.models.engine.request import GenerationRequest
from hoptimizer.models.failures import unusable
from hoptimizer.models.mixture import MixtureAdapter
from hoptimizer.models.usage import AnswerCache
from hoptimizer.models.weights.store import pull
from hoptimizer.programs import REPLUG
from hoptimizer.programs.replug import weights
from hoptimizer.retrieval import BM25Retriever, Corpus, Passage

NAME = "local/smollm2-135m-instruct"
FACTS = " ".join(f"Person {i} lives in Oslo and was born in {1900 + i}." for i in range(20))
WARSAW, PARIS, ROME = (f"Marie Curie was born in {city}." for city in ("Warsaw", "Paris", "Rome"))
TEXTS = [WARSAW, PARIS, f"{FACTS} {ROME}"]
SHARES = (0.3, 0.3, 0.4)
CURIE = Passage("curie", "Marie Curie", WARSAW)
TESLA = Passage("tesla", "Nikola Tesla", "Nikola Tesla was born in Smiljan.")
ASKED = "Where was Nikola Tesla born?"


@pytest.fixture(scope="module")
def model() -> Generator:
    return generator(NAME)


@pytest.fixture
def lm() -> dspy.LM:
    lm = build_lm(LMSettings(model=NAME, max_tokens=40, cache=False))
    with dspy.context(lm=lm, adapter=build_adapter()):
        yield lm


def prompts(
    model: Generator, question: str = "In which city was Marie Curie born?", facts: str = FACTS
) -> list[list[int]]:
    """Of unlike lengths, by default with a page in common."""
    asked = [f"{facts}\n{text}\n{question}\nAnswer:\nMarie Curie was born in" for text in TEXTS]
    return [model.tokenizer(text, add_special_tokens=False)["input_ids"] for text in asked]


def mixed(model: Generator, *more: str, tokens: int = 12, **options) -> GenerationRequest:
    first, *others = prompts(model, *more)
    return GenerationRequest(first, tokens, others=tuple(others), weights=SHARES, logprobs=True, **options)


def test_a_mixture_is_what_a_plain_loop_over_the_prompts_writes(model):
    """Against transformers' forward pass in fp32, where no rounding hides a mistake."""
    from transformers import AutoModelForCausalLM

    folder = str(pull("smollm2-135m-instruct"))
    ours = Generator(folder, dtype=torch.float32)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(ours.device)
    texts = []
    for shares in ((0.9, 0.05, 0.05), (0.05, 0.9, 0.05), SHARES):
        first, *others = asked = prompts(model, facts="")
        expected, logprobs = [], []
        for _ in range(3):
            with torch.no_grad():
                each = [reference(torch.tensor([one], device=ours.device)).logits[0, -1].softmax(-1) for one in asked]
            mixture = sum(share * one for share, one in zip(shares, each, strict=True))
            expected.append(int(mixture.argmax()))
            logprobs.append(float(mixture.max().log()))
            asked = [[*one, expected[-1]] for one in asked]
        request = GenerationRequest(first, 3, others=tuple(others), weights=shares, logprobs=True, ignore_end=True)
        written = ours.submit(request).result()
        assert written.text == model.tokenizer.decode(expected, skip_special_tokens=True)
        assert [logprob for _, logprob in written.logprobs] == pytest.approx(logprobs, abs=1e-3)
        texts.append(written.text)
    # What is written hangs on the weights.
    assert ("Warsaw" in texts[0], "Paris" in texts[1]) == (True, True), texts
    ours.close()


def test_equal_prompts_are_one_prompt(model):
    prompt = prompts(model)[0]
    alone = model.submit(GenerationRequest(prompt, 12)).result()
    several = model.submit(GenerationRequest(prompt, 12, others=(prompt, prompt), weights=SHARES)).result()
    assert several.text == alone.text
    assert (several.prompt_tokens, several.tokens) == (3 * len(prompt), alone.tokens)


def test_texts_of_several_prompts_and_of_one_share_a_small_batch():
    """Two places are left over by a text of three prompts, which another such text may not begin to take."""
    small = Generator(str(pull("smollm2-135m-instruct")), slots=5)
    questions = [f"Where was Marie Curie born in {year}?" for year in range(1890, 1896)]
    requests = [mixed(small, question, tokens=6) for question in questions]
    alone = [small.submit(request).result().text for request in requests]
    small.forget()
    singles = [small.submit(GenerationRequest(prompt, 6)) for prompt in prompts(small)]
    together = [small.submit(request) for request in requests]
    assert [future.result(60).text for future in together] == alone
    assert all(future.result(60).tokens for future in singles)
    assert (small._rows, small._free) == ([], [0, 1, 2, 3, 4])
    with pytest.raises(UserError, match=r"6 prompts are read together, the memory here holds 5: lower retriever\.k"):
        small.submit(GenerationRequest([1], 2, others=([1],) * 5, weights=(1 / 6,) * 6))
    small.close()


def test_a_prefix_of_all_prompts_is_computed_once(model):
    fresh = Generator(str(pull("smollm2-135m-instruct")))
    written = fresh.submit(mixed(fresh)).result()
    assert written.cached_tokens > 2 * 200
    assert fresh.counts.prompt_tokens + written.cached_tokens == written.prompt_tokens
    fresh.close()


def test_a_cancelled_mixture_leaves_the_batch(model):
    future = model.submit(mixed(model, tokens=1000, ignore_end=True))
    other = model.submit(GenerationRequest(prompts(model)[0], 4))
    assert other.result(60).tokens
    assert future.cancel()
    assert model.submit(GenerationRequest(prompts(model)[0], 2)).result(60).tokens
    assert not model._rows


class Judged(dspy.Signature):
    """Judge the city."""

    context: list[str] = dspy.InputField()
    question: str = dspy.InputField()
    cities: list[str] = dspy.OutputField()
    sure: bool = dspy.OutputField()


@pytest.mark.parametrize("max_tokens", [4, 16, 64])
def test_a_mixture_is_held_to_the_schema(lm, max_tokens):
    with dspy.context(adapter=MixtureAdapter(build_adapter(), "context", list(SHARES))):
        prediction = dspy.Predict(Judged)(context=TEXTS, question="Where?", config={"max_tokens": max_tokens})
    assert isinstance(prediction.sure, bool)
    assert list(json.loads(lm.history[-1]["outputs"][0])) == ["cities", "sure"]


@pytest.mark.parametrize("prompt_format", ["plain", "json", "chat"])
def test_one_item_is_the_plain_call(prompt_format):
    lm = build_lm(LMSettings(model=NAME, max_tokens=24, prompt_format=prompt_format))
    read = dspy.Predict("context: list[str], question -> answer")
    inputs = {"context": TEXTS[:1], "question": "Where was Marie Curie born?"}
    with dspy.context(lm=lm, adapter=build_adapter()):
        plain = asyncio.run(read.acall(**inputs))
        with dspy.context(adapter=MixtureAdapter(build_adapter(), "context", [1.0])):
            single = asyncio.run(read.acall(**inputs))
    assert single.answer == plain.answer
    assert not lm.history[-1]["usage"]  # the cache knows the call


def test_a_mixture_is_one_call_which_its_weights_tell_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(dspy, "cache", AnswerCache(tmp_path))
    lm = build_lm(LMSettings(model=NAME, max_tokens=24))
    read = dspy.Predict("context: list[str], question -> answer")
    answers = []
    for shares in ([0.9, 0.1], [0.9, 0.1], [0.1, 0.9]):
        with dspy.context(lm=lm, adapter=MixtureAdapter(build_adapter(), "context", shares)):
            answers.append(read(context=TEXTS[:2], question="In which city was Marie Curie born?").answer)
    assert answers[0] == answers[1]
    assert ("Warsaw" in answers[0], "Paris" in answers[2]) == (True, True)
    computed, cached, other = lm.history
    assert not cached["usage"]
    assert 0 < computed["usage"]["prompt_tokens"] == other["usage"]["prompt_tokens"]


@pytest.mark.parametrize("prompt_format", ["plain", "json"])
def test_all_prompts_are_laid_out_alike(prompt_format):
    """In whatever order they come: the first one goes through DSPy, the others through the metadata."""
    lm = build_lm(LMSettings(model=NAME, max_tokens=24, prompt_format=prompt_format))
    read = dspy.Predict("context: list[str], question -> answer")
    said = []
    for step in (1, -1):
        adapter = MixtureAdapter(build_adapter(), "context", [0.6, 0.4][::step])
        with dspy.context(lm=lm, adapter=adapter):
            said.append(
                read(context=TEXTS[:2][::step], question="Where was Marie Curie born?", config={"logprobs": True})
            )
    assert said[0].answer == said[1].answer
    first, second = ([token["logprob"] for token in one.logprobs["content"]] for one in said)
    assert first == pytest.approx(second, abs=0.05)


def test_the_chat_prompt_format_asks_once():
    """DSPy asks again in JSON where it can't read an answer, which would leave the other prompts as they were."""
    lm = build_lm(LMSettings(model=NAME, max_tokens=8, prompt_format="chat"))
    with dspy.context(lm=lm, adapter=build_adapter()):
        prediction = REPLUG(BM25Retriever(Corpus([CURIE, TESLA])), k=2)(question=ASKED)
    [step] = [record for record in prediction.steps if record.step == "reader"]
    assert (step.calls, prediction.answer) == (1, "")
    assert "failed to parse" in step.failure


def test_replug_reads_all_passages_in_one_step(lm):
    retriever = BM25Retriever(Corpus([CURIE, TESLA]))
    with dspy.context(trace=[]):
        prediction = REPLUG(retriever, k=2)(question=ASKED)
        traced = list(dspy.settings.trace)
    assert "Smiljan" in prediction.answer
    [step] = [record for record in prediction.steps if record.step == "reader"]
    assert step.inputs == {"question": ASKED, "context": ["tesla", "curie"]}
    assert (step.calls, step.failure) == (1, None)
    assert 0 < step.outputs["probability"] <= 1
    # Demonstrations are made from what is traced: they show one passage each, as the prompts do.
    assert [inputs["context"] for _, inputs, _ in traced] == [[str(TESLA)], [str(CURIE)]]
    assert {said.answer for _, _, said in traced} == {prediction.answer}
    # The same, called by hand.
    shares = weights(prediction.passages, 1.0)
    with dspy.context(adapter=MixtureAdapter(build_adapter(), "context", shares)):
        assert REPLUG(retriever).reader(context=[str(TESLA), str(CURIE)], question=ASKED).answer == prediction.answer


def test_more_passages_than_the_batch_holds_are_one_line(lm, model, monkeypatch):
    monkeypatch.setattr(model._states, "slots", 1)
    with pytest.raises(LMError) as error:
        REPLUG(BM25Retriever(Corpus([CURIE, TESLA])), k=2)(question=ASKED)
    line = "2 prompts are read together, the memory here holds 1: lower retriever.k"
    assert str(unusable(error.value, "the model", "lm")) == line


def test_a_passage_beyond_the_context_is_cut(lm):
    long = Passage("tesla", "Nikola Tesla", f"Nikola Tesla was born in Smiljan. {FACTS * 60}")
    prediction = REPLUG(BM25Retriever(Corpus([CURIE, long])), k=2)(question=ASKED)
    [step] = [record for record in prediction.steps if record.step == "reader"]
    assert step.calls > 1
    assert step.failure is None
    assert prediction.answer
