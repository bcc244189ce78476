"""REPLUG with a server: the probabilities that it tells for what it wrote are mixed, or it tells none."""

import json

import dspy
import pytest
from chat_server import ChatServer
from scripted import ScriptedRetriever, passage

from hoptimizer.common.errors import UserError
from hoptimizer.models import LMSettings, build_adapter, build_lm
from hoptimizer.programs import REPLUG

ASKED = "Where was the builder of the mill born?"
FOUND = {ASKED: [passage(id).scored(score) for id, score in (("inn", 1.0), ("mill", 0.9), ("ada", 0.9))]}
SAID = {"inn": ("Rome", -0.1), "mill": ("Bern", -0.2), "ada": ("Bern", -0.3)}


class LogprobServer(ChatServer):
    """Also tells the logarithm of the probability of what it wrote, as OpenAI's servers and vLLM do."""

    def complete(self, body):
        number, status, reply = super().complete(body)
        [logprob] = [one for id, (_, one) in SAID.items() if f"{id} {id}" in json.dumps(body)]
        thoughts = [("<think>", -3.0), ("Hm", -700.0), ("</think>", -50.0)] if "</think>" in json.dumps(reply) else []
        tokens = [*thoughts, ("?", logprob)]
        reply["choices"][0]["logprobs"] = {
            "content": [{"token": token, "logprob": one, "bytes": [63], "top_logprobs": []} for token, one in tokens]
        }
        return number, status, reply


class RefusingServer(ChatServer):
    """Refuses every call that asks for probabilities."""

    def complete(self, body):
        number, status, reply = super().complete(body)
        return (number, self.status, self.error_body()) if number and body.get("logprobs") else (number, status, reply)


def say(body):
    [answer] = [one for id, (one, _) in SAID.items() if f"{id} {id}" in json.dumps(body)]
    return f"[[ ## answer ## ]]\n{answer}\n\n[[ ## completed ## ]]"


def ask(server, model):
    lm = build_lm(LMSettings(model=model, api_base=server.url, api_key="none"))
    with dspy.context(lm=lm, adapter=build_adapter()):
        return REPLUG(ScriptedRetriever(FOUND))(question=ASKED)


@pytest.mark.parametrize("thoughts", ["", "<think>Hm</think>"])
def test_what_a_server_tells_is_mixed_and_thoughts_do_not_count(thoughts):
    with LogprobServer(lambda body: thoughts + say(body)) as server:
        prediction = ask(server, "openai/tells")
    assert prediction.answer == "Bern"
    assert [record.outputs["probability"] for record in prediction.steps[1:]] == pytest.approx(
        [0.905, 0.819, 0.741], abs=1e-3
    )
    assert all(body["logprobs"] for body in server.bodies)


def test_a_server_that_tells_none_is_one_line():
    with ChatServer(say) as server, pytest.raises(UserError, match="or a server that gives logprobs"):
        ask(server, "openai/tells-not")


@pytest.mark.parametrize(
    ("status", "error"),
    [(400, "Logprobs is not enabled for this model"), (403, "You are not allowed to request logprobs from this model")],
)
def test_a_server_that_refuses_to_tell_them_is_the_same_line(status, error):
    server = RefusingServer(say, status=status, error=error)
    with server, pytest.raises(UserError, match="or a server that gives logprobs"):
        ask(server, "openai/refuses")
