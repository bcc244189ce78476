"""What a stranger's variant may not do when it is loaded."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from chat_server import ChatServer

from hoptimizer import UserError, Workbench, load_config, load_variant
from hoptimizer.models.engine import loading
from hoptimizer.models.small.embedder import Embedder
from hoptimizer.models.small.encoder import load_encoder
from hoptimizer.models.small.generator import load_writer
from hoptimizer.models.small.tagger import load_tagger
from hoptimizer.stored import stored_config, stored_state

OLD = Path(__file__).parent / "variants" / "0.1.0" / "variant"
STEP = {"demos": [], "lm": None, "signature": {}, "traces": [], "train": []}
OWN = {"lms": {}, "models": [], "prompt_format": None}


@pytest.fixture
def variant(tmp_path):
    """A variant that was downloaded; gives a function that changes one of its files."""
    shutil.copytree(OLD, tmp_path / "variant")

    def change(name, read, write, **changes):
        file = tmp_path / "variant" / name
        values = read(file.read_text(encoding="utf-8"))
        for key, value in changes.items():
            values[key] = values[key] | value
        file.write_text(write(values), encoding="utf-8")
        return tmp_path / "variant"

    return change


def test_a_variables_value_is_not_read_for_a_variant(variant, monkeypatch):
    monkeypatch.setenv("PRIVATE", "sk-private")
    with ChatServer() as server:
        stranger = {"model": "openai/x", "api_base": f"{server.url}/${{oc.env:PRIVATE}}"}
        folder = variant("config.yaml", yaml.safe_load, yaml.safe_dump, lm={"default": stranger})
        with pytest.raises(
            UserError, match=r"config.yaml: lm.default.api_base: an interpolation.*give lm.default.api_b"
        ):
            load_variant(folder)
    assert not server.headers


def test_a_step_brings_no_settings_of_calls(variant):
    with ChatServer() as server:
        stolen = {"demos": [], "lm": None, "traces": [], "train": [], "config": {"api_base": server.url}}
        folder = variant("program.json", json.loads, json.dumps, reader=stolen)
        with pytest.raises(UserError, match=r"program.json: reader.config: language models and settings of calls"):
            load_variant(folder)
    assert not server.headers


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "program.json: not JSON"),
        ("[]", "no state of a program"),
        ('{"program": {}}', "no state of a program"),
        (json.dumps({"program": OWN, "reader": 1}), "reader: expected the state of a step, got int"),
        (
            json.dumps({"program": OWN, "reader": STEP | {"forward": "x"}}),
            "reader.forward: language models and settings",
        ),
        (json.dumps({"program": OWN, "reader": STEP | {"lm": {"model": "openai/x"}}}), "reader.lm: language models"),
        (
            json.dumps({"program": {"members": [{"program": OWN, "reader": STEP | {"lm": {"model": "x"}}}]}}),
            "reader.lm",
        ),
        (json.dumps({"program": {"members": [1]}}), "no state of a program"),
    ],
)
def test_a_state_that_can_not_be_is_one_line(text, message):
    with pytest.raises(UserError, match=message) as raised:
        stored_state(text, "runs:/1")
    assert str(raised.value).startswith("runs:/1: program.json: ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data: [", "not YAML"),
        ("- atlas", "expected a mapping of keys, got list"),
        ("data: ${oc.env:HOME}", "data: an interpolation"),
        ("lm: {default: {extra_body: {a: [x, '${oc.env:HOME}']}}}", "lm.default.extra_body.a.1: an interpolation"),
        ("lm: {'${oc.env:HOME}': openai/x}", "lm: an interpolation"),
    ],
)
def test_a_config_that_can_not_be_is_one_line(text, message):
    with pytest.raises(UserError, match=message) as raised:
        stored_config(text, "runs:/1")
    assert str(raised.value).startswith("runs:/1: config.yaml: ")
    assert "\n" not in str(raised.value)


def test_what_a_variant_will_contact_is_in_the_first_line():
    words = [
        "data=atlas",
        "program=direct",
        "lm.default.model=openai/x",
        "lm.default.api_base=http://me:word@host:9/v1",
    ]
    line = Workbench(load_config(None, words)).summary()
    assert line.startswith("direct · openai/x at host:9 · atlas")
    assert "word" not in line


@pytest.mark.parametrize(
    "load",
    [
        lambda name: load_encoder(name, 2, trained=False),
        lambda name: load_tagger(name, 2, trained=False),
        load_writer,
        Embedder,
        lambda name: loading.load(name, torch.device("cpu"), torch.float32),
    ],
    ids=["encoder", "tagger", "writer", "embedder", "engine"],
)
def test_a_models_own_code_is_neither_run_nor_offered(load, tmp_path, monkeypatch):
    """Where a model brings code and there is a terminal, transformers would ask whether to run it."""
    parts = {
        "AutoConfig": "own.Own",
        "AutoModel": "own.Own",
        "AutoModelForCausalLM": "own.Own",
        "AutoTokenizer": "own.Own",
    }
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": parts}))
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Own: ...\n")
    asked = []
    monkeypatch.setattr("builtins.input", lambda *_: asked.append("asked") or "y")
    with pytest.raises(UserError, match=str(tmp_path)):
        load(str(tmp_path))
    assert not asked
    assert not (tmp_path / "ran").exists()


def test_a_variant_does_not_choose_what_answers_the_questions(variant):
    ray = {"executor": {"name": "ray", "address": "there:6379"}}
    folder = variant("config.yaml", lambda text: yaml.safe_load(text) | ray, yaml.safe_dump, data={})
    assert load_variant(folder).config.executor.name == "in_process"
    own = load_config(None, ["executor=ray"], {"data": "atlas", "executor": {"name": "ray", "address": "there:6379"}})
    assert own.executor.name == "ray"
