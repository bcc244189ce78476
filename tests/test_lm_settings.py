"""Language models from config: settings, the prompt format, and the check before a run."""

import contextlib
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import dspy
import pytest
from chat_server import ChatServer, chat_handler
from pydantic import TypeAdapter, ValidationError

from hoptimizer import load_config
from hoptimizer.common.errors import UserError
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


@pytest.mark.parametrize("base", ["http://127.0.0.1:port/v1", "http://127.0.0.1:99999/v1", "127.0.0.1:9/v1"])
def test_an_address_that_is_none_is_a_mistake(base):
    with pytest.raises(UserError, match="openai/x: ") as caught:
        check_lm(LMSettings(model="openai/x", api_base=base))
    assert "\n" not in str(caught.value)


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


def test_a_reasoning_model_gets_no_temperature_it_would_refuse():
    assert build_lm(LMSettings(model="openai/gpt-5")).kwargs.get("temperature") is None


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


class _Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.headers["Authorization"] == f"Bearer {KEY}" else 401)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> str:
    server = HTTPServer(("127.0.0.1", 0), _Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()


def test_a_server_that_answers_passes_the_check(server):
    check_lm(LMSettings(model="openai/x", api_base=server, api_key=KEY))


def test_a_refused_key_is_said(server):
    with pytest.raises(UserError, match="refuses the key"):
        check_lm(LMSettings(model="openai/x", api_base=server, api_key="wrong"))


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
