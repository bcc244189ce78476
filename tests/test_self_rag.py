"""Self-RAG where the language model tells how likely its decisions are, and where it does not."""

import asyncio
import json
import math
import re
from statistics import fmean

import dspy
import pytest
from chat_server import ChatServer
from scripted import ScriptedLM, ScriptedRetriever, passage

from hoptimizer.models import LMSettings, build_adapter, build_lm
from hoptimizer.programs import SelfRAG
from hoptimizer.programs.trace import StepTrace, recording
from hoptimizer.retrieval import BM25Retriever, Corpus, Passage

ASKED = "How did US states get their names?"

# After figure 1 of the paper, where one passage is relevant and supports its answer and one is irrelevant. Between them
# is one on which all is decided as on the first.
SAID = {
    "names": ("11 of 50", "yes", "fully", "completely"),
    "persons": ("from people", "yes", "fully", "completely"),
    "texas": ("by the legislature", "no", "no", "mostly"),
}
FIELDS = ("answer", "relevant", "supported", "useful")
SURE = {"answer": 0.5, "relevant": 0.9, "supported": 0.9, "useful": 0.9}
FOUND = [passage(name) for name in SAID]
RELEVANCE_ALONE = {"supported_weight": 0, "useful_weight": 0}


def said(field, inputs):
    """The passage that a step is about, and what the scripted model says."""
    seen = f"{inputs.get('passage')} {inputs.get('context')} {inputs.get('candidate')}"
    [name] = [name for name, values in SAID.items() if f"{name} {name}" in seen or values[0] in seen]
    return name, SAID[name][FIELDS.index(field)]


def scripted(likely):
    """A scripted model that is as sure as it says, by passage and output field; with ``None`` it does not tell."""
    sure = None if likely is None else lambda field, inputs: (SURE | likely.get(said(field, inputs)[0], {}))[field]
    return ScriptedLM(lambda field, inputs: said(field, inputs)[1], likelihood=sure)


def program(**options):
    return SelfRAG(ScriptedRetriever({ASKED: FOUND}), k=3, always_retrieve=True, **options)


def ask(lm, **options):
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        return program(**options)(question=ASKED)


@pytest.mark.parametrize(
    ("likely", "options", "answer"),
    [
        (None, {}, "11 of 50"),
        ({}, {}, "11 of 50"),
        ({"persons": {"supported": 0.95}}, {}, "from people"),
        ({"persons": {"relevant": 0.95}}, {}, "from people"),
        ({"persons": {"useful": 0.95}}, {}, "from people"),
        ({"persons": {"useful": 0.95}}, {"useful_weight": 0}, "11 of 50"),
        ({"persons": {"answer": 0.6}}, {}, "from people"),
        ({"persons": {"answer": 0.6, "relevant": 0.75}}, {}, "11 of 50"),
        # It spends more on other words than on its decisions: a no is at most worth as much as a yes.
        ({name: {"relevant": 0.3} for name in SAID}, RELEVANCE_ALONE, "11 of 50"),
    ],
)
def test_decisions_count_by_their_probabilities(likely, options, answer):
    assert ask(scripted(likely), **options).answer == answer


def test_a_score_is_the_probability_of_the_answer_and_the_weighted_sum():
    async def scores():
        with recording(StepTrace()):
            return [(await program().candidate(ASKED, found)).score for found in FOUND]

    likely = {"names": {"answer": 0.25, "relevant": 0.8, "supported": 0.7, "useful": 0.6}}
    with dspy.context(lm=scripted(likely), adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        first, _, last = asyncio.run(scores())
    supported = 0.7 + 0.3 * fmean([0.5, 0])
    assert first == pytest.approx(0.25 + 0.8 + supported + 0.5 * (0.6 + 0.4 * fmean([0.5, 0, -0.5, -1])))
    unsupported = 0.1 * fmean([1, 0.5])
    assert last == pytest.approx(0.5 + 0.1 + unsupported + 0.5 * (0.9 * 0.5 + 0.1 * fmean([1, 0, -0.5, -1])))


def test_the_decision_of_a_small_model_counts_as_a_whole():
    async def relevant(inputs):
        return {"relevant": "no" if "texas" in inputs["passage"] else "yes", "probability": 0.6}

    async def worths():
        with recording(StepTrace()):
            return [await judged.decision("relevance", question=ASKED, passage=found) for found in FOUND]

    judged = program()
    judged.models["relevance"] = relevant
    assert asyncio.run(worths()) == [1.0, 1.0, 0.0]


def test_the_figures_are_in_the_records_and_not_in_what_demonstrations_are_made_from():
    traced = []
    with dspy.context(trace=traced):
        prediction = ask(scripted({}))
    assert [record.outputs["probability"] for record in prediction.steps[1:5]] == pytest.approx([0.9, 0.5, 0.9, 0.9])
    assert [list(said) for _, _, said in traced[:2]] == [["relevant"], ["answer"]]


def test_a_real_model_in_this_process_tells_them():
    curie = Passage("curie", "Marie Curie", "She was born in Warsaw.")
    corpus = Corpus([curie, Passage("warsaw", "Warsaw", "It lies on the Vistula.")])
    lm = build_lm(LMSettings(model="local/smollm2-135m-instruct", max_tokens=24))
    with dspy.context(lm=lm, adapter=build_adapter()):
        prediction = SelfRAG(BM25Retriever(corpus), k=2, always_retrieve=True)(question="Was Marie Curie of Warsaw?")
    assert len(prediction.steps) == 9
    assert all(0 < record.outputs["probability"] <= 1 for record in prediction.steps[1:])


class CriticServer(ChatServer):
    """Answers as the scripted model; tells how likely each answer was where it is asked to, or refuses to.

    Args:
        likely: as of the scripted model.
        refusal: the status and the words of the refusal.
    """

    def __init__(self, likely=None, refusal=None):
        super().__init__(self.say)
        self.likely, self.refusal = likely, refusal

    def say(self, body):
        text = body["messages"][-1]["content"]
        field = next(field for field in FIELDS if f"`[[ ## {field} ## ]]`" in text)
        self.about, value = said(field, {"passage": text})
        return f"[[ ## {field} ## ]]\n{value}\n\n[[ ## completed ## ]]"

    def complete(self, body):
        number, status, reply = super().complete(body)
        if number and body.get("logprobs"):
            if self.refusal:
                return number, self.refusal[0], {"error": {"message": self.refusal[1], "type": "error", "code": None}}
            if self.likely is not None:
                field = next(name for name in FIELDS if f"[[ ## {name} ## ]]" in json.dumps(reply))
                name, _ = said(field, {"passage": body["messages"][-1]["content"]})
                sure = (SURE | self.likely.get(name, {}))[field]
                token = {"token": "?", "logprob": math.log(sure), "bytes": [63], "top_logprobs": []}
                reply["choices"][0]["logprobs"] = {"content": [token]}
        return number, status, reply


# Words of a thought, the answer, and how likely each word is.
THOUGHTS = {"names": (80, "New York"), "persons": (20, "Reykjavik"), "texas": (1, "Rome")}
WORDS = {"New": 0.9, "York": 0.4, "Reykjavik": 0.55, "Rome": 0.5, "thus": 0.5}


class ThinkingServer(ChatServer):
    """Thinks about each passage at its own length before it answers, and tells how likely each word of that was; the
    decisions on all passages are the same, and it tells nothing of these."""

    def __init__(self):
        super().__init__(self.say)

    def say(self, body):
        text = body["messages"][-1]["content"]
        if "`[[ ## answer ## ]]`" not in text:
            field = next(field for field in FIELDS if f"`[[ ## {field} ## ]]`" in text)
            return f"[[ ## {field} ## ]]\n{SAID['names'][FIELDS.index(field)]}\n\n[[ ## completed ## ]]"
        [(thoughts, answer)] = [said for name, said in THOUGHTS.items() if f"{name} {name}" in text]
        return f"[[ ## reasoning ## ]]\n{'thus ' * thoughts}\n\n[[ ## answer ## ]]\n{answer}\n\n[[ ## completed ## ]]"

    def complete(self, body):
        number, status, reply = super().complete(body)
        tokens = re.findall(r"\s*\S+", reply["choices"][0]["message"]["content"])
        if any("reasoning" in token for token in tokens):
            sure = [(token, WORDS.get(token.strip(), 1.0)) for token in tokens]
            told = [{"token": t, "logprob": math.log(p), "bytes": [63], "top_logprobs": []} for t, p in sure]
            reply["choices"][0]["logprobs"] = {"content": told}
        return number, status, reply


def test_neither_a_long_thought_nor_a_long_answer_makes_an_answer_unlikely():
    with ThinkingServer() as server:
        lm = build_lm(LMSettings(model="openai/thinks", api_base=server.url, api_key="none", cache=False))
        with dspy.context(lm=lm, adapter=build_adapter()), recording(StepTrace()):
            candidates = [asyncio.run(program(reader="cot").criticized(ASKED, found)) for found in FOUND]
            assert program(reader="cot")(question=ASKED).answer == "New York"
    decided = 1.0 + 0.5
    assert dict(candidates) == pytest.approx(
        {"New York": decided + math.sqrt(0.9 * 0.4), "Reykjavik": decided + 0.55, "Rome": decided + 0.5}
    )


def ask_server(server, model):
    lm = build_lm(LMSettings(model=model, api_base=server.url, api_key="none", cache=False))
    with dspy.context(lm=lm, adapter=build_adapter()):
        return program()(question=ASKED)


def test_a_server_that_tells_them():
    with CriticServer({"persons": {"supported": 0.95}}) as server:
        prediction = ask_server(server, "openai/tells")
    assert prediction.answer == "from people"
    assert prediction.steps[7].outputs == {"supported": "fully", "probability": pytest.approx(0.95)}


def test_with_a_server_that_tells_none_decisions_count_whole():
    with CriticServer() as server:
        prediction = ask_server(server, "openai/tells-not")
    assert prediction.answer == "11 of 50"
    assert {record.outputs["probability"] for record in prediction.steps[1:]} == {None}
    assert len(server.bodies) == sum(record.calls for record in prediction.steps) == 12


@pytest.mark.parametrize(
    "refusal",
    [(400, "Logprobs is not enabled for this model"), (403, "You are not allowed to request logprobs from this model")],
)
def test_a_server_that_refuses_to_tell_them_is_asked_without(refusal):
    with CriticServer(refusal=refusal) as server:
        prediction = ask_server(server, "openai/refuses")
        again = ask_server(server, "openai/refuses")
    assert (prediction.answer, again.answer) == ("11 of 50", "11 of 50")
    assert sum(record.calls for record in prediction.steps) == 12
    measured = [bool(body.get("logprobs")) for body in server.bodies]
    assert sum(measured) <= 6  # the calls that were under way when the first was refused
    assert len(measured) - sum(measured) == 24
