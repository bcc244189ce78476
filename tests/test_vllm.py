"""``hop models serve``: what vLLM is called with, what a config says to ask it, and a real server's answers."""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys

import dspy
import pytest
import yaml
from chat_server import ChatServer
from dspy.utils.exceptions import ContextWindowExceededError
from scripted import ScriptedRetriever
from small_models import tiny_lm
from transformers import AutoTokenizer

from hoptimizer import load_variant, make_config
from hoptimizer.cli import main
from hoptimizer.common.errors import UserError
from hoptimizer.common.paths import home
from hoptimizer.eval.datasets.dataset import load
from hoptimizer.models import LMSettings, build_adapter, build_lm
from hoptimizer.models.lm import tuned
from hoptimizer.models.weights.store import resolve
from hoptimizer.programs import RAG
from hoptimizer.stored import state_to_store

EMBEDDED = "smollm2-135m-instruct"


@pytest.fixture
def serve(monkeypatch, capsys, tmp_path):
    """Runs ``hop models serve`` in an empty folder; gives exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOP_VLLM_PYTHON", raising=False)
    monkeypatch.delenv("VLLM_API_KEY", raising=False)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["hop", "models", "serve", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return run


@pytest.fixture
def options(serve):
    """vLLM's options by their names, and the configs by the names of models, as ``--dry-run`` tells them."""

    def run(*words):
        code, out, err = serve(*words[:1], "--dry-run", "--json", "--port", "0", *words[1:])
        assert code == 0, err
        told = json.loads(out)
        found: dict[str, list[str]] = {}
        for word in told["command"][3:]:
            if word.startswith("--"):
                values = found.setdefault(word, [])
            else:
                values.append(word)
        return found, told["lm"]

    return run


def adapter(folder, **settings):
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4} | settings))
    return folder


@pytest.fixture
def variant(tmp_path):
    """The folder of a variant whose reader has a fine-tuned language model, tiny and untrained."""
    folder = tmp_path / "variant"
    base = tiny_lm(folder / "lm" / "toy")
    program = RAG(ScriptedRetriever({}))
    program.lms["reader"] = tuned(build_lm(LMSettings(model=f"local/{base}")), f"local/{base}")
    program.prompt_format = "plain"
    (folder / "program.json").write_text(json.dumps(state_to_store(program.dump_state())))
    (folder / "config.yaml").write_text("data: atlas\nprogram: rag\n")
    return folder


def test_a_model_of_the_store_is_served_in_the_format_that_it_has_in_process(options):
    found, lms = options(EMBEDDED)
    assert found["--model"] == [str(home() / "models" / EMBEDDED)]
    assert found["--host"] == ["127.0.0.1"]
    # Messages follow one another as they are, and the config's settings are those of the calls.
    assert found["--chat-template"] == [
        r"{% for message in messages %}{{ message['content'] }}{{ '\n\n' }}{% endfor %}"
    ]
    assert found["--generation-config"] == ["vllm"]
    assert lms[EMBEDDED]["default"]["prompt_format"] == "plain"
    found, lms = options(EMBEDDED, "--prompt-format", "json", "--gpus", "2", "--", "--max-model-len", "1024")
    assert "--chat-template" not in found
    assert (found["--tensor-parallel-size"], found["--max-model-len"]) == (["2"], ["1024"])
    assert lms[EMBEDDED]["default"]["structured_outputs"] is True


def test_a_model_of_the_hub_goes_to_vllm_as_it_is_named(options):
    found, lms = options("Qwen/Qwen3-8B", "--name", "qwen")
    assert (found["--model"], found["--served-model-name"]) == (["Qwen/Qwen3-8B"], ["qwen"])
    assert lms["qwen"]["default"]["model"] == "openai/qwen"


def test_the_steps_of_a_variant_ask_its_fine_tuned_model_in_the_format_that_it_learned(options, variant):
    found, lms = options(variant)
    assert found["--model"] == [str(variant / "lm" / "toy")]
    assert "--chat-template" in found
    [(name, section)] = lms.items()
    assert (name, list(section)) == ("variant", ["reader"])
    assert section["reader"]["prompt_format"] == "plain"


def test_a_model_without_a_chat_template_is_given_bare_messages(options, tmp_path):
    folder = tiny_lm(tmp_path / "toy")
    (folder / "chat_template.jinja").unlink()
    found, lms = options(folder)
    assert "--chat-template" in found
    assert lms["toy"]["default"]["prompt_format"] == "json"


def test_adapters_are_models_of_their_own(options, tmp_path):
    one, two = adapter(tmp_path / "one"), adapter(tmp_path / "two", r=24)
    found, lms = options(EMBEDDED, "--lora", one, "--lora", f"capitals={two}")
    assert found["--lora-modules"] == [f"one={one}", f"capitals={two}"]
    assert (found["--max-lora-rank"], found["--max-loras"], found["--enable-lora"]) == (["32"], ["2"], [])
    assert [section["default"]["model"] for section in lms.values()] == [
        f"openai/{EMBEDDED}",
        "openai/one",
        "openai/capitals",
    ]


def test_what_is_printed_is_a_config_and_a_command(serve, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    code, out, err = serve(EMBEDDED, "--dry-run", "--python", "vllm/bin/python", "--prompt-format", "json")
    assert code == 0
    assert shlex.split(out)[:3] == ["vllm/bin/python", "-m", "vllm.entrypoints.openai.api_server"]
    assert "secret" not in out + err
    section = yaml.safe_load(err.split("in a config:\n")[1])
    lm = make_config({"data": "atlas", **section}).lm["default"]
    assert (lm.model, lm.api_base) == (f"openai/{EMBEDDED}", "http://127.0.0.1:8000/v1")
    assert lm.structured_outputs


def mistakes(tmp_path):
    """Words, and the line that they end in."""
    vision = tmp_path / "vision"
    vision.mkdir()
    (vision / "config.json").write_text('{"architectures": ["ViTModel"]}')
    broken = adapter(tmp_path / "broken")
    (broken / "adapter_config.json").write_text("{")
    lora, wide = adapter(tmp_path / "lora"), adapter(tmp_path / "wide", r=1024)
    (tmp_path / "empty").mkdir()
    none = "no vLLM in .*python.*: `python -m venv vllm; .* --python vllm/bin/python"
    return [
        ([EMBEDDED], none),
        (
            [EMBEDDED, "--python", "nowhere/python"],
            "--python nowhere/python: No such file or directory; give the python",
        ),
        (["smollm2-135m-instruc", "--dry-run"], "unknown model .*: did you mean 'smollm2-135m-instruct'"),
        (["words", "--dry-run"], "unknown model 'words': no name of the weights store"),
        (["./words", "--dry-run"], "unknown model './words': .* no folder"),
        (["abcdef12", "--dry-run"], "run 'abcdef12': not in sqlite"),
        (["empty", "--dry-run"], "empty: no model and no variant: config.json and program.json are missing"),
        (["vision", "--dry-run"], "vision: no language model that writes, but ViTModel"),
        (["all-minilm-l6-v2", "--dry-run"], ".*no language model that writes, but BertModel"),
        (["lora", "--dry-run"], "lora: adapters of another model; .* hop models serve MODEL --lora lora"),
        ([EMBEDDED, "--dry-run", "--lora", "empty"], "--lora empty: no adapter_config.json in empty"),
        ([EMBEDDED, "--dry-run", "--lora", "broken"], "--lora broken: adapter_config.json: not JSON"),
        ([EMBEDDED, "--dry-run", "--lora", wide], "--lora .*wide: .* expected LoRA of a rank up to 512"),
        ([EMBEDDED, "--dry-run", "--lora", lora, "--lora", lora], "--lora .*lora: another name is needed"),
        ([EMBEDDED, "--dry-run", "--lora", f"{EMBEDDED}={lora}"], "--lora .*lora: another name is needed"),
        ([EMBEDDED, "--dry-run", "--prompt-format", "xml"], "no prompt format is called 'xml'"),
    ]


def test_every_mistake_is_one_line(serve, tmp_path):
    for words, line in mistakes(tmp_path):
        code, out, err = serve(*words)
        assert (code, out) == (2, ""), words
        assert len(err.splitlines()) == 1, err
        assert re.match(f"hop: {line}", err), err


def test_a_port_that_is_taken_is_one_line(serve):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, err = serve(EMBEDDED, "--dry-run", "--port", port)
    assert code == 2
    assert f"--port {port}: nothing can listen there (Address already in use)" in err


def test_a_variant_without_a_fine_tuned_model_is_one_line(serve, variant):
    state = json.loads((variant / "program.json").read_text())
    (variant / "program.json").write_text(json.dumps(state | {"program": state["program"] | {"lms": {}}}))
    code, _, err = serve(variant, "--dry-run")
    assert code == 2
    assert err == f"hop: {variant}: no language model was fine-tuned in it; serve the one that its lm.default names\n"


def test_the_process_becomes_vllms_server(tmp_path):
    """With a scripted Python, which has vLLM and says what it was called with."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\n[ "$1" = -c ] && exit 0\nprintf "%s\\n" "$VLLM_NO_USAGE_STATS $*"\nexit 7\n')
    python.chmod(0o755)
    words = [sys.executable, "-m", "hoptimizer.cli", "models", "serve", EMBEDDED, "--json", "--port", "0"]
    done = subprocess.run(
        words,
        env=os.environ | {"HOP_VLLM_PYTHON": str(python)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    told, called = done.stdout.splitlines()
    assert done.returncode == 7
    assert json.loads(told)["command"][0] == str(python)
    assert called.startswith("1 -m vllm.entrypoints.openai.api_server --model ")


def served(server, **settings):
    return build_lm(LMSettings(model="openai/x", api_base=server.url, api_key="none", cache=False, **settings))


def test_a_server_is_sent_the_schema_of_an_answer_where_the_config_says_that_it_follows_one():
    with ChatServer(lambda _: '{"knows": "yes"}') as server, dspy.context(adapter=build_adapter()):
        for settings in ({}, {"structured_outputs": True}):
            lm = served(server, prompt_format="json", **settings)
            assert dspy.Predict("question -> knows: Literal['yes', 'no']")(question="Who?", lm=lm).knows == "yes"
    plain, bound = server.bodies
    assert "response_format" not in plain
    assert bound["response_format"]["json_schema"]["schema"]["properties"]["knows"]["enum"] == ["yes", "no"]


@pytest.mark.parametrize("format_", ["chat", "auto"])
def test_field_markers_have_no_schema(format_):
    lm = {"model": "openai/x", "structured_outputs": True, "prompt_format": format_}
    with pytest.raises(UserError, match="structured_outputs goes with prompt_format=json or plain, got"):
        make_config({"data": "atlas", "lm": lm})


@pytest.mark.parametrize(
    "said",
    [
        "This model's maximum context length is 2048 tokens. However, your prompt contains at least 2049 input tokens",
        "the request exceeds the available context size, try increasing it",
    ],
)
def test_a_prompt_that_a_server_finds_too_long_is_one_that_a_program_shortens(said):
    with ChatServer(failing=9, status=400, error=said) as server, pytest.raises(ContextWindowExceededError):
        served(server)("Who?")


def test_a_variant_whose_model_is_served_needs_no_weights_here(variant):
    shutil.rmtree(variant / "lm")
    with ChatServer(lambda _: '{"answer": "Lyon"}') as server:
        lm = {"model": "openai/toy", "api_base": server.url, "api_key": "none", "prompt_format": "plain"}
        lm["cache"] = False  # it is to be asked here, whatever was asked before
        words = ["lm.default=openai/toy", f"lm.default.api_base={server.url}", "lm.default.api_key=none"]
        words += [f"lm.reader={json.dumps(lm)}", "retriever=bm25"]
        program = load_variant(variant, words)
        assert program(question="Where is it?").answer == "Lyon"
    assert server.bodies[0]["model"] == "toy"


def limits(model, signature, max_tokens, **more):
    lm = build_lm(LMSettings(model=model, max_tokens=max_tokens, prompt_format="plain", **more))
    fields = build_adapter().schema(lm, signature)["response_format"]["json_schema"]["schema"]["properties"]
    return {name: field["maxLength"] for name, field in fields.items() if "maxLength" in field}


HERE = {"api_base": "http://127.0.0.1:8000/v1", "api_key": "none"}
CHAIN = dspy.Signature("question -> look_up: str, enough: Literal['yes', 'no'], final_answer: str")


@pytest.mark.parametrize("max_tokens", [24, 48, 100, 256])
@pytest.mark.parametrize(
    "signature", [dspy.Signature("question -> thought, answer"), CHAIN, dspy.Signature("a -> b, c, d")]
)
def test_texts_that_are_as_long_as_they_may_be_leave_every_later_field_its_tokens(signature, max_tokens):
    tokenizer = AutoTokenizer.from_pretrained(resolve(EMBEDDED))
    longest = limits("openai/x", signature, max_tokens, **HERE)
    prose = " ".join(passage.text for passage in load("atlas").corpus.passages[:20])
    texts = {name: prose[: longest.get(name, 3)] for name in signature.output_fields}  # of choices, too
    last = list(texts)[-1]
    before = json.dumps(texts | {last: ""}).removesuffix('"}')
    used = len(tokenizer.encode(before, add_special_tokens=False))
    assert longest
    assert last not in longest
    assert max_tokens - used >= min(32, max_tokens // 6)


@pytest.mark.parametrize("format_", ["plain", "json"])
@pytest.mark.parametrize(
    ("question", "longest"),
    [("Where was Marie Curie born?", 51), ("玛丽·居里在哪里出生？", 17), ("Где родилась Мария Кюри?", 17)],
)
def test_a_text_may_be_shorter_where_the_question_is_in_a_script_with_fewer_characters_to_a_token(
    question, longest, format_
):
    with ChatServer(lambda _: '{"thought": "x", "answer": "y"}') as server:
        options = {"max_tokens": 48, "prompt_format": format_, "structured_outputs": True, "cache": False}
        lm = build_lm(LMSettings(model="openai/x", api_base=server.url, api_key="none", **options))
        with dspy.context(lm=lm, adapter=build_adapter()):
            predict = dspy.Predict("passages: list[str], question -> thought, answer")
            predict(passages=["Maria Skłodowska was born in Warsaw."], question=question)
    [body] = server.bodies
    assert body["response_format"]["json_schema"]["schema"]["properties"]["thought"]["maxLength"] == longest


def test_only_servers_of_ones_own_are_sent_how_long_texts_may_be(monkeypatch):
    two = dspy.Signature("question -> thought, answer")
    assert limits("openai/x", two, 48, **HERE) == {"thought": 51}
    assert limits("hosted_vllm/x", two, 48, **HERE) == {"thought": 51}
    others = ["openai/gpt-4o", "anthropic/claude-sonnet-4", f"local/{EMBEDDED}"]
    assert [limits(model, two, 48) for model in others] == [{}, {}, {}]
    assert limits("anthropic/claude-sonnet-4", two, 48, **HERE) == {}
    assert limits("openai/x", two, None, **HERE) == {}
    assert limits("openai/x", two, 4096, **HERE) == {}  # llama.cpp takes no such schema
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
    assert limits("openai/x", two, 48) == {"thought": 51}
    assert limits("openai/x", dspy.Signature("question -> answer"), 48) == {}
