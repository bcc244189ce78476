"""Language models from config: settings, the prompt format, and the check before a run."""

import contextlib
import time

import dspy
import pytest
from chat_server import ChatServer, chat_handler
from pydantic import TypeAdapter, ValidationError

from hoptimizer import load_config
from hoptimizer.common.errors import ServiceError, UserError
from hoptimizer.models import LMSettings, build_adapter, build_lm, check_lm
from hoptimizer.models.engine.engine import AsyncLocalEngine, LocalEngine

KEY = "sk-secret-key"


class Endless(ChatServer):
    """Its list of models has no end."""

    def handler(self):
        class Handler(chat_handler(self)):
            def do_GET(self):
                self.start(200, 10**12)
                with contextlib.suppress(OSError):
                    while True:
                        self.wfile.write(b" ")
                        time.sleep(0.1)

        return Handler


def test_the_check_of_a_server_waits_for_no_list_of_models():
    start = time.monotonic()
    with Endless() as server:
        check_lm(LMSettings(model="openai/x", api_base=server.url))
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("base", ["http://127.0.0.1:port/v1", "http://127.0.0.1:99999/v1"])
def test_an_address_that_is_none_is_a_mistake(base):
    with pytest.raises(UserError, match="openai/x: ") as caught:
        check_lm(LMSettings(model="openai/x", api_base=base))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("header", [{"api_key": "sk-ü€"}, {"extra_headers": {"X-Key": "sk-ü€"}}])
def test_a_key_that_no_header_can_hold_is_not_blamed_on_the_address(header):
    with pytest.raises(UserError, match=r"openai/x: its headers can't be sent .*correct api_key") as caught:
        check_lm(LMSettings(model="openai/x", api_base="http://127.0.0.1:9/v1", **header))
    assert "ü€" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "hint"),
    [
        ("smollm2-135m-instruct", "did you mean 'local/smollm2-135m-instruct'"),
        ("local:smollm2-135m-instruct", "did you mean 'local/smollm2-135m-instruct'"),
        ("no-such-model", "expected PROVIDER/NAME"),
        ("opnai/gpt-4o", "expected PROVIDER/NAME"),
    ],
)
def test_a_model_without_a_provider_gets_a_hint(model, hint):
    with pytest.raises(UserError, match=f"{model}: names no provider that DSPy knows; {hint}"):
        check_lm(LMSettings(model=model))


def test_a_model_without_a_provider_at_a_server_is_one_of_openais_kind():
    with ChatServer() as server, pytest.raises(UserError, match="did you mean 'openai/m'"):
        check_lm(LMSettings(model="m", api_base=server.url))


def test_a_model_that_dspy_knows_needs_no_provider():
    with ChatServer() as server:
        check_lm(LMSettings(model="gpt-4o", api_base=server.url, api_key="none"))
        assert server.checks


def test_a_local_model_that_can_have_no_such_name_is_a_mistake():
    with pytest.raises(UserError, match="neither a name of the weights store nor a folder"):
        check_lm(LMSettings(model="local/what is it?"))


def test_a_string_is_a_model():
    assert TypeAdapter(LMSettings).validate_python("openai/gpt-4o") == LMSettings(model="openai/gpt-4o")


def test_the_key_is_shown_nowhere():
    settings = LMSettings(model="openai/x", api_base="http://localhost:1/v1", api_key=KEY)
    shown = [repr(settings), settings.model_dump_json(), str(build_lm(settings).dump_state())]
    assert not any(KEY in text for text in shown)
    assert build_lm(settings).kwargs["api_key"] == KEY


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": "openai/x", "temprature": 1}, "temprature"),
        ({"model": ""}, "at least 1 character"),
        ({"model": "openai/x", "temperature": -1}, "greater than or equal to 0"),
        ({"model": "local/x", "api_base": "http://localhost"}, "api_base has no meaning for local/x"),
        ({"model": "openai/x", "api_base": "127.0.0.1:9/v1"}, "begin it with http://"),
        ({"model": "openai/x", "api_key": 83}, "put it in quotes"),
        ({"model": "openai/x", "extra_headers": {"X-Key": 45045}}, "put it in quotes"),
    ],
)
def test_mistakes_are_named(given, message):
    with pytest.raises(ValidationError, match=message):
        LMSettings.model_validate(given)


@pytest.mark.parametrize("key", ["0123456701", "1234_5678", "0x1F", "12:30:45", "1e3", "sk-abc"])
def test_a_key_in_an_argument_is_taken_as_it_is_written(key):
    words = ["data=atlas", "lm=openai/x", f"lm.default.api_key={key}", f"lm.default.extra_headers.X-Key={key}"]
    settings = load_config(None, words).lm["default"]
    assert settings.api_key.get_secret_value() == settings.extra_headers["X-Key"].get_secret_value() == key


def test_local_models_come_as_engines_others_as_they_are():
    local = build_lm(LMSettings(model="local/smollm2-135m-instruct"))
    assert isinstance(local.engine, LocalEngine)
    assert isinstance(local._async_engine_spec, AsyncLocalEngine)
    assert (local.kwargs["temperature"], local.kwargs["max_tokens"]) == (0.0, 256)
    other = build_lm(LMSettings(model="openai/gpt-4o", temperature=0.3, cache=False))
    assert (other.model, other.engine, other.kwargs["temperature"], other.cache) == (
        "openai/gpt-4o",
        "auto",
        0.3,
        False,
    )


@pytest.mark.parametrize(
    ("model", "more", "temperature"),
    [
        ("openai/gpt-5", {}, None), ("openai/gpt-5.1-mini", {}, None), ("openrouter/openai/o4-mini", {}, None),
        ("azure/o3-2025-04-16", {}, None), ("openai/gpt-5-chat-latest", {}, 0.0), ("openai/olmo-2-7b", {}, 0.0),
        ("openai/openai/gpt-oss-20b", {}, 0.0), ("openai/Qwen/Qwen3-8B", {}, 0.0),
        ("anthropic/claude-x", {"reasoning_effort": "low"}, None), ("openai/x", {"reasoning_effort": "none"}, 0.0),
        ("openai/gpt-5", {"temperature": 1.0}, 1.0), ("openai/o3", {"temperature": 0.0}, None),
        ("openai/gpt-oss", {"temperature": 0.0, "reasoning_effort": "low"}, 0.0),
    ],
)  # fmt: skip
def test_a_reasoning_model_gets_no_temperature_it_would_refuse(model, more, temperature):
    settings = LMSettings(model=model, **more)
    for again in (settings, LMSettings.model_validate(settings.model_dump())):  # as a variant's config is read
        assert build_lm(again).kwargs.get("temperature") == temperature


@pytest.mark.parametrize(
    ("settings", "adapter"),
    [
        (LMSettings(model="local/smollm2-135m-instruct"), dspy.JSONAdapter),
        (LMSettings(model="local/smollm2-135m-instruct", prompt_format="chat"), dspy.ChatAdapter),
        (LMSettings(model="openai/gpt-4o"), dspy.ChatAdapter),
        (LMSettings(model="openai/gpt-4o", prompt_format="json"), dspy.JSONAdapter),
    ],
)
def test_every_lm_gets_its_own_prompt_format(settings, adapter):
    chosen = build_adapter().of(build_lm(settings).copy(temperature=0.5))
    assert isinstance(chosen, adapter)
    assert isinstance(chosen, dspy.JSONAdapter) == (adapter is dspy.JSONAdapter)


class Guarded(ChatServer):
    """Lists its models for those who have the key."""

    def get(self):
        return 200 if self.headers[-1].get("authorization") == f"Bearer {KEY}" else 401, {}


def test_a_server_that_answers_passes_the_check_once_in_a_process():
    with Guarded() as server:
        for _ in range(2):
            check_lm(LMSettings(model="openai/x", api_base=server.url, api_key=KEY))
        assert len(server.checks) == 1
        assert [message["role"] for message in server.checks[0]["messages"]] == ["system", "user"]


def test_a_refused_key_is_said():
    with Guarded() as server, pytest.raises(UserError, match="refuses the key"):
        check_lm(LMSettings(model="openai/x", api_base=server.url, api_key="wrong"))


@pytest.mark.parametrize(("status", "kind"), [(400, UserError), (503, ServiceError)])
def test_a_model_that_takes_no_such_calls_is_one_line_before_any_question(status, kind):
    says = pytest.raises(kind, match=r"openai/gemma does not answer: .*System role not supported")
    with ChatServer(checked=status, error="System role not supported") as server, says as caught:
        check_lm(LMSettings(model="openai/gemma", api_base=server.url, num_retries=0))
    assert isinstance(caught.value, ServiceError) == (kind is ServiceError)


def test_an_address_without_v1_is_named_where_the_server_knows_no_such_page():
    says = pytest.raises(UserError, match=r"does not answer: Not Found; most servers want an api_base that ends in /v1")
    with ChatServer(checked=404, error_body={"detail": "Not Found"}) as server, says:
        check_lm(LMSettings(model="openai/x", api_base=server.url.removesuffix("/v1"), num_retries=0))


@pytest.mark.parametrize("name", ["temperature", "max_tokens"])
def test_how_to_leave_out_what_a_model_does_not_take_is_said(name):
    says = pytest.raises(UserError, match=f"is not supported with this model; with {name}=null it is not sent")
    with ChatServer(checked=400, error=f"'{name}' is not supported with this model") as server, says:
        check_lm(LMSettings(model="openai/my-deployment", api_base=server.url, max_tokens=100, num_retries=0))


def test_openais_key_is_shown_to_no_server_of_another_provider(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("DEEPSEEK_API_KEY", "another")
    with ChatServer() as server:
        check_lm(LMSettings(model="deepseek/deepseek-chat", api_base=server.url))
        assert [headers.get("authorization") for headers in server.headers] == [None, "Bearer another"]


def test_a_server_out_of_reach_is_one_line():
    with pytest.raises(UserError, match=r"openai/x: the server at http://127.0.0.1:9/v1 can't be reached") as caught:
        check_lm(LMSettings(model="openai/x", api_base="http://127.0.0.1:9/v1"))
    assert "\n" not in str(caught.value)


def test_a_missing_key_is_one_line(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(UserError, match="OPENAI_API_KEY") as caught:
        check_lm(LMSettings(model="openai/gpt-4o"))
    assert "\n" not in str(caught.value)


def test_a_local_model_that_does_not_exist_is_one_line(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"config.json is missing"):
        check_lm(LMSettings(model=f"local/{tmp_path}"))
    with pytest.raises(UserError, match="did you mean 'smollm2-135m-instruct'"):
        check_lm(LMSettings(model="local/smollm-135m-instruct"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="neither a name of the weights store"):
        check_lm(LMSettings(model="local/nobody/nothing"))
