"""Fine-tuning the language model: DSPy's interface, what is learned from, and compiling on a tiny untrained model."""

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import dspy
import mlflow
import pytest
import torch
from chat_server import ChatServer
from dspy.clients.provider import Provider
from dspy.clients.utils_finetune import TrainingStatus
from dspy.utils.exceptions import LMInvalidRequestError
from peft import LoraModel, PeftModel
from safetensors.torch import load_file
from scripted import Listener, ScriptedLM, ScriptedRetriever, passage
from serving import answer_in_fresh_process, kept
from small_models import CITIES, conversations, start_toy_lm, tiny_lm, tiny_t5, train_toy_lm
from transformers import AutoModelForCausalLM

from hoptimizer import Tracker, compile_variant, evaluate_variant, load_config, load_variant
from hoptimizer.common.errors import ServiceError, UserError
from hoptimizer.compiled import restore
from hoptimizer.compiling import work_folder
from hoptimizer.eval.datasets.question import Hop, Question
from hoptimizer.eval.objective import Objective
from hoptimizer.models import LMSettings, build_adapter, build_lm, check_lm
from hoptimizer.models.lm import is_tuned, with_prompt_format
from hoptimizer.optimizers import CompileContext
from hoptimizer.optimizers.labels.annotations import Unannotated, annotations
from hoptimizer.optimizers.labels.conversations import bootstrapped, replayed
from hoptimizer.optimizers.labels.conversations import conversations as collected
from hoptimizer.optimizers.labels.oracle import replay
from hoptimizer.optimizers.labels.reasoning import reasoning
from hoptimizer.optimizers.training import language_model
from hoptimizer.optimizers.training.conversations import LMTrainingConfig, train_lm
from hoptimizer.optimizers.training.dspy_provider import LocalProvider, LocalTrainingJob
from hoptimizer.optimizers.training.language_model import load_base
from hoptimizer.optimizers.training.lora import adapted
from hoptimizer.optimizers.tuning import finetune_lm, openai_jobs
from hoptimizer.optimizers.tuning.finetune_lm import BootstrapFinetune
from hoptimizer.programs import RAG, RAISF, Direct, IRCoT
from hoptimizer.programs.neighbours import Neighbours
from hoptimizer.retrieval import Corpus
from hoptimizer.signatures import Read
from hoptimizer.tracking.artifacts import tuned_lms
from hoptimizer.workbench import Workbench

WEIGHTS = "model.safetensors"


def folder_of(lm):
    return Path(lm.model.removeprefix("local/"))


def weights(lm):
    return (folder_of(lm) / WEIGHTS).read_bytes()


# DSPy's interface


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The toy language model, trained without a break."""
    context = start_toy_lm(tmp_path_factory.mktemp("whole"))
    return context, context.result()


def test_a_local_model_learns_behind_dspys_interface(trained):
    context, lm = trained
    assert context.status() == TrainingStatus.succeeded
    scores = json.loads((folder_of(lm) / "finetuned.json").read_text())["scores"]
    assert scores["loss"] < scores["start"] - 0.2
    assert {file.suffix for file in folder_of(lm).iterdir()} <= {".json", ".safetensors", ".jinja", ".txt"}
    answer = lm("Which river flows through Bonn?")
    assert isinstance(answer[0], str)


def test_the_same_seed_gives_the_same_weights_and_a_name_is_of_one_training_alone(trained, tmp_path):
    _, lm = trained
    again, other = train_toy_lm(tmp_path), train_toy_lm(tmp_path, seed=8)
    assert weights(again) == weights(lm)
    assert weights(other) != weights(lm)
    assert folder_of(other) != folder_of(again)


def test_adapters_are_merged_into_the_weights(tmp_path):
    lm = train_toy_lm(tmp_path, lora=4)
    scores = json.loads((folder_of(lm) / "finetuned.json").read_text())["scores"]
    assert scores["loss"] < scores["start"]
    saved = folder_of(lm) / "adapter"
    assert sorted(file.name for file in saved.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    settings = json.loads((saved / "adapter_config.json").read_text())
    base = settings["base_model_name_or_path"]
    assert base == json.loads((folder_of(lm) / "finetuned.json").read_text())["config"]["base"]
    text = torch.arange(12)[None]
    before, whole = (AutoModelForCausalLM.from_pretrained(one, dtype=torch.float32) for one in (base, folder_of(lm)))
    logits = [model(text).logits for model in (before, whole)]
    again = PeftModel.from_pretrained(before, saved)(text).logits
    assert (again - logits[1]).norm() < 0.05 * (logits[0] - logits[1]).norm()  # its weights are rounded to bf16


def test_adapters_need_the_other_weights_in_the_precision_that_is_computed_in_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(language_model, "device_and_dtype", lambda: (torch.device("cpu"), torch.bfloat16))
    sizes, merge = [], LoraModel.merge_and_unload

    def size(model):
        return sum(weight.nbytes for weight in model.parameters())

    def merged(model):
        sizes.append(size(model))
        return merge(model)

    monkeypatch.setattr(LoraModel, "merge_and_unload", merged)
    config = LMTrainingConfig(base="smollm2-135m-instruct", lora=4, epochs=1, batch=2)
    whole, _ = load_base(config.model_copy(update={"lora": 0}))
    assert size(load_base(config)[0]) == size(whole) / 2
    train_lm(conversations(CITIES[:2]), conversations(CITIES[8:9]), config, tmp_path / "lm")
    adapter = load_file(tmp_path / "lm" / "adapter" / "adapter_model.safetensors")
    assert sizes == [size(whole) / 2 + sum(weight.nbytes for weight in adapter.values())]
    assert {weight.dtype for weight in adapter.values()} == {torch.float32}
    by_peft = (
        PeftModel.from_pretrained(whole, tmp_path / "lm" / "adapter").merge_and_unload().to(torch.bfloat16).state_dict()
    )
    found = load_file(tmp_path / "lm" / WEIGHTS)
    assert all(torch.equal(weight, by_peft[name]) for name, weight in found.items())


@pytest.mark.parametrize("lora", [4, 0])
def test_what_a_gpu_can_not_keep_is_computed_twice_and_the_weights_are_the_same(tmp_path, monkeypatch, lora):
    once = train_toy_lm(tmp_path / "once", lora=lora)
    layers = []
    recompute = language_model.recompute_layers
    monkeypatch.setattr(language_model, "recompute_layers", lambda model: layers.append(model) or recompute(model))
    for free, times in ((1e12, 0), (1e3, 1)):
        monkeypatch.setattr(language_model, "free_memory", lambda device, free=free: free)
        assert weights(train_toy_lm(tmp_path / str(times), lora=lora)) == weights(once)
        assert len(layers) == times


def test_a_pass_that_is_computed_twice_keeps_a_tenth():
    model, tokenizer = load_base(LMTrainingConfig(base="smollm2-135m-instruct", epochs=1))
    model = adapted(model, 16, seed=7)
    row = [*range(300, 700)], [*range(700, 750)]
    needed = [language_model.memory_needed(model, language_model.Causal(model, tokenizer), row)]
    language_model.recompute_layers(model)
    needed.append(language_model.memory_needed(model, language_model.Causal(model, tokenizer), row))
    assert needed[1] < needed[0] / 5


def test_a_gpu_that_is_too_small_is_one_clear_line(tmp_path):
    def full(_):  # as on a GPU, which there is none of here
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee documentation")

    for lora, remedy in ((4, r"optimizer\.max_tokens"), (0, r"optimizer\.lora")):
        config = LMTrainingConfig(base=str(tiny_lm(tmp_path / f"base{lora}")), lora=lora, epochs=1)
        with pytest.raises(UserError, match=f"the GPU's memory .*{remedy}") as caught:
            train_lm(conversations(CITIES[:2]), conversations(CITIES[8:9]), config, tmp_path / f"lm{lora}", full)
        assert "\n" not in str(caught.value)


def test_a_training_that_was_killed_goes_on_to_the_same_weights(trained, tmp_path):
    program = [sys.executable, str(Path(__file__).with_name("small_models.py")), str(tmp_path), "10", "lm"]
    assert subprocess.run(program, check=False).returncode == -signal.SIGKILL
    steps = []
    resumed = train_toy_lm(tmp_path, lambda progress: steps.append(progress.step))
    assert steps[0] == 9  # the last checkpoint was after 8
    assert weights(resumed) == weights(trained[1])


def test_what_only_a_resumed_training_needs_does_not_stay(trained, tmp_path):
    lm = train_toy_lm(tmp_path)
    (folder_of(lm) / ".checkpoint-9").mkdir()  # as where it was killed before it took this away
    assert train_toy_lm(tmp_path).model == lm.model
    assert not list(folder_of(lm).glob(".*"))


def test_a_training_that_is_cancelled_stops_and_goes_on_later(trained, tmp_path):
    under_way, told = threading.Event(), []

    def report(progress):
        told.append(progress.step)
        if progress.step == 6:
            under_way.set()

    context = start_toy_lm(tmp_path, report)
    assert under_way.wait(60)
    assert context.status() == TrainingStatus.running
    assert context.cancel()
    assert not context.thread.is_alive()
    assert context.status() == TrainingStatus.cancelled
    assert told[-1] < 16
    assert weights(train_toy_lm(tmp_path)) == weights(trained[1])


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"epohs": 1}, "unknown option 'epohs'; did you mean 'epochs'"),
        ({"epochs": 0}, "epochs=0: Input should be greater than or equal to 1"),
        ({"dev": []}, "there are no dev examples"),
    ],
)
def test_options_that_can_not_be_are_one_line(trained, tmp_path, options, line):
    _, lm = trained
    result = lm.finetune(conversations(), "chat", {"folder": tmp_path, **options}).result()
    assert isinstance(result, UserError)
    assert line in str(result)
    assert "\n" not in str(result)


def test_dspys_own_bootstrap_finetune_trains_a_local_model(tmp_path):
    lm = build_lm(LMSettings(model=f"local/{tiny_lm(tmp_path / 'base')}", prompt_format="plain", max_tokens=16))
    lm.provider = LocalProvider(templated=False)
    program = dspy.Predict("question -> answer")
    program.set_lm(lm)
    trainset = [dspy.Example(question=f"Where is {city}?").with_inputs("question") for city in CITIES]
    options = {"folder": tmp_path / "tuned", "epochs": 1}
    with dspy.context(lm=lm, adapter=build_adapter()):
        tuned = dspy.BootstrapFinetune(train_kwargs=options, num_threads=4).compile(program, trainset=trainset)
        [folder] = (tmp_path / "tuned").iterdir()
        assert tuned.lm.model == f"local/{folder}"
        assert tuned(question="Where is Bonn?").answer is not None
    assert not json.loads((folder / "finetuned.json").read_text())["config"]["templated"]


def test_a_sequence_to_sequence_model_is_trained_but_not_served(tmp_path):
    base = tiny_t5(tmp_path / "base")
    context = LocalTrainingJob()

    def tune(reply):
        messages = [{"role": "user", "content": "Which river?"}, {"role": "assistant", "content": reply}]
        options = {"folder": tmp_path / "tuned", "epochs": 20, "learning_rate": 1e-2}
        return LocalProvider().finetune(context, f"local/{base}", [{"messages": messages}] * 4, "chat", options)

    scores = json.loads((Path(tune("the Danube").removeprefix("local/")) / "finetuned.json").read_text())["scores"]
    assert scores["loss"] < scores["start"] - 3
    with pytest.raises(UserError, match="its vocabulary can't write") as error:
        tune("\N{FOX FACE}")
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match=r"sequence-to-sequence models such as T5 .* are not served here") as error:
        check_lm(LMSettings(model=f"local/{base}"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("prompt_format", ["plain", "json"])
def test_a_model_is_trained_on_what_it_will_be_asked(trained, prompt_format):
    lm = with_prompt_format(trained[1], prompt_format)
    inputs = {"context": ["Ulm: a city"], "question": "What is Ulm?"}
    with dspy.context(lm=lm, adapter=build_adapter()):
        given = dspy.settings.adapter.format_finetune_data(Read, [], inputs, {"answer": "a city"})
        dspy.Predict(Read)(**inputs, config={"max_tokens": 16})
    *asked, reply = given["messages"]
    assert asked == lm.history[-1]["messages"]
    assert json.loads(reply["content"]) == {"answer": "a city"}


def test_the_plain_prompt_format_has_no_quotes_that_would_end_a_copied_text(trained):
    inputs = {"context": ['Ulm: a "city"', "Bonn"], "question": 'What is "Ulm"?'}
    with dspy.context(lm=with_prompt_format(trained[1], "plain"), adapter=build_adapter()):
        given = dspy.settings.adapter.format_finetune_data(Read, [], inputs, {"answer": 'a "city"'})
    _, asked, reply = (message["content"] for message in given["messages"])
    assert "'Ulm'" in asked
    assert "a 'city'" in asked
    assert '"' not in asked
    assert json.loads(reply) == {"answer": "a 'city'"}


# What is learned from


def question(number, **given):
    """Question 1 has the hops 1.1 and 1.2, whose passages are p1.1 and p1.2."""
    names = [f"{number}.{hop}" for hop in (1, 2)]
    hops = [Hop(question=f"Hop {name}?", answer=f"h{name}", passage=f"p{name}") for name in names]
    known = {"hops": hops, "passages": [f"p{name}" for name in names], **given}
    return Question(id=str(number), question=f"Question {number}?", answers=[f"a{number}"], **known)


PASSAGES = {name: passage(name) for name in ("p1.1", "p1.2", "p2.1", "p2.2", "p3.1", "p3.2", "x")}
CORPUS = Corpus(list(PASSAGES.values()))


def taken_of(program, asked, lm=None):
    with dspy.context(lm=lm, adapter=build_adapter()):
        some = asyncio.run(replay(program, asked, CORPUS, tuple(annotations(program))))
    return [(one.step, one.inputs.get("question"), *one.outputs.values()) for one in some]


def test_ircot_is_replayed_with_the_hops_as_its_thoughts_and_queries():
    found = {"Question 1?": [PASSAGES["p1.1"]], "Hop 1.2?": [PASSAGES["p1.2"]]}
    program = IRCoT(ScriptedRetriever(found), reader="direct")
    some = asyncio.run(replay(program, question(1), CORPUS, ["reason", "follow_up", "reader"]))
    assert [one.outputs for one in some if one.step == "reader"] == [{"answer": "a1"}]
    assert [len(one.inputs["context"]) for one in some if one.step == "reader"] == [2]
    thoughts = [one for one in some if one.step == "reason"]
    assert {one.inputs["known"]: (len(one.inputs["context"]), *one.outputs.values()) for one in thoughts} == {
        "": (1, "Hop 1.1: h1.1."),
        "Hop 1.1: h1.1.": (2, "Hop 1.2: h1.2."),
    }
    assert {one.inputs["facts"]: tuple(one.outputs.values()) for one in some if one.step == "follow_up"} == {
        "Hop 1.1: h1.1.": ("Hop 1.2?", "no", ""),
        "Hop 1.1: h1.1. Hop 1.2: h1.2.": ("", "yes", "a1"),
    }
    assert program.models == {}


@pytest.mark.parametrize(
    ("rationale", "sentences"),
    [
        ("Ulm lies on it. So the answer is: the Danube.", ["Ulm lies on it.", "So the answer is: a1."]),
        ("Ulm lies on it.", ["Ulm lies on it.", "So the answer is: a1."]),
        (None, ["So the answer is: a1."]),
    ],
)
def test_a_chain_of_thought_always_states_the_answer(rationale, sentences):
    assert reasoning(question(1, hops=[], rationale=rationale)) == sentences


def test_ra_isf_is_replayed_with_what_it_knows_left_to_the_model():
    def script(field, inputs):
        return "yes" if field == "knows" and inputs["question"] == "Hop 1.2?" else "no"

    found = {"Question 1?": [PASSAGES["x"]], "Hop 1.1?": [PASSAGES["p1.1"], PASSAGES["p1.2"]]}
    program, lm = RAISF(ScriptedRetriever(found)), ScriptedLM(script)
    assert set(annotations(program)) == {"relevance", "reader", "decompose", "combine"}
    taken = taken_of(program, question(1), lm)
    assert sorted(taken) == [
        ("combine", "Question 1?", "a1"),
        ("decompose", "Question 1?", ["Hop 1.1?", "Hop 1.2?"]),
        ("reader", "Hop 1.1?", "h1.1"),
        ("relevance", "Hop 1.1?", "no"),
        ("relevance", "Hop 1.1?", "yes"),
        ("relevance", "Question 1?", "no"),
    ]
    assert {field for field, _ in lm.asked} == {"knows", "answer"}


def test_a_hop_that_nothing_is_found_for_is_not_split_up():
    program = RAISF(ScriptedRetriever({"Question 1?": [PASSAGES["x"]]}), self_knowledge=False)
    assert [one for one in taken_of(program, question(1)) if one[0] == "decompose"] == [
        ("decompose", "Question 1?", ["Hop 1.1?", "Hop 1.2?"])
    ]


@pytest.mark.parametrize("lacking", [{"passages": []}, {"hops": []}])
def test_a_question_that_lacks_what_a_step_needs_is_not_guessed_at(lacking):
    program = RAISF(ScriptedRetriever({"Question 1?": [PASSAGES["x"]]}), self_knowledge=False)
    with pytest.raises(Unannotated):
        taken_of(program, question(1, **lacking))


def test_a_reader_of_chains_reasons_about_the_hop_it_is_asked():
    found = {"Question 1?": [PASSAGES["x"]], "Hop 1.1?": [PASSAGES["p1.1"]]}
    program = RAISF(ScriptedRetriever(found), self_knowledge=False, reader="cot")
    assert ("reader", "Hop 1.1?", "Hop 1.1: h1.1.", "h1.1") in taken_of(program, question(1))


def silent(stage, done, total, remark):
    """A report that goes nowhere."""


def context(folder, program, teacher=None, trainset=None, report=silent):
    questions = trainset or [question(1), question(2)]
    return CompileContext(
        program, questions, [question(3)], CORPUS, Objective.parse("f1"), teacher, 7, 4, folder, Listener(report)
    )


@pytest.fixture
def tiny(trained):
    """The toy language model, which is a fine-tuned one, for a program to start from."""
    lm = trained[1].copy(max_tokens=24)
    with dspy.context(lm=lm, adapter=build_adapter()):
        yield lm


def test_a_teachers_good_runs_are_learned_from_by_step_and_bad_ones_lose_their_question_alone(tmp_path, tiny):
    def script(field, inputs):
        number = inputs["question"].removeprefix("Question ")[0]
        if number == "2":
            raise LMInvalidRequestError("the prompt was filtered")
        if number == "3":
            return ("no field at all",)
        return f"a{number}" if number in "14" else "something else"

    program, teacher = RAG(ScriptedRetriever({"Question 1?": [PASSAGES["x"]]})), ScriptedLM(script)
    some = context(tmp_path, program, teacher)
    questions = [question(number) for number in range(1, 6)]
    take = bootstrapped(some, questions, ["reader"], "plain", 0.8)
    with dspy.context(adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        rows = collected(some, "train", questions, take, with_prompt_format(tiny, "plain"))
    assert [row["step"] for row in rows] == ["reader", "reader"]
    assert [json.loads(row["messages"][-1]["content"]) for row in rows] == [{"answer": "a1"}, {"answer": "a4"}]
    assert str(PASSAGES["x"]) in rows[0]["messages"][1]["content"]


def test_examples_are_the_same_whatever_call_comes_first(tmp_path, tiny):
    def rows(folder, slow):
        lm = ScriptedLM(lambda field, inputs: "no", delay=lambda field, inputs: 0.02 * (inputs["question"] == slow))
        program = RAISF(ScriptedRetriever({"Question 1?": [PASSAGES["x"]], "Hop 1.2?": [PASSAGES["p1.2"]]}))
        program.lms = {"self_knowledge": lm}
        some = context(folder, program)
        return collected(some, "train", some.trainset, replayed(some, tuple(annotations(program))), tiny)

    assert rows(tmp_path / "a", "Hop 1.1?") == rows(tmp_path / "b", "Hop 1.2?")


def test_only_steps_with_examples_get_the_tuned_model_and_demonstrations_go(tmp_path, tiny):
    found = {f"{asked}?": [PASSAGES[f"p{n}.1"]] for n in (1, 2, 3) for asked in (f"Question {n}", f"Hop {n}.1")}
    program = RAISF(ScriptedRetriever(found))
    program.lms = {"self_knowledge": ScriptedLM(lambda field, inputs: "no")}
    program.reader.demos = program.closed_book.demos = [dspy.Example(question="Q?", answer="a")]
    shown = {"question": "Q?", "answer": "a"}
    program.neighbours = Neighbours(1, "minilm", [("Q?", {"reader": shown, "closed_book": shown})])
    told = []
    some = context(tmp_path, program, report=lambda stage, *rest: told.append(stage))
    compiled = BootstrapFinetune(prompt_format="plain", epochs=1, batch=2).compile(some)
    # The first hop's passage, which is all that is found, does not hold the answer, so that questions are split up.
    assert sorted(compiled.lms) == ["combine", "decompose", "reader", "relevance", "self_knowledge"]
    assert compiled.lms["reader"] is compiled.lms["relevance"]
    assert is_tuned(compiled.lms["reader"])
    assert compiled.prompt_format == "plain"
    assert compiled.reader.demos == []
    assert compiled.neighbours.pool == [("Q?", {"closed_book": shown})]
    assert len(compiled.closed_book.demos) == len(program.reader.demos) == 1
    assert "lm: examples from train, 10 in all, combine 2, decompose 2, reader 2, relevance 4" in told
    logged = [(of, sorted(figures), update) for of, figures, update in some.listener.figures]
    figures = [("training/lm", ["loss"], update) for update in range(1, 5)]
    assert logged == [*figures, ("training/lm", ["dev_loss", "loss"], 5)]


class Remote(Provider):
    """A provider that fine-tunes at once, or fails."""

    def __init__(self, failure=None):
        super().__init__()
        self.finetunable = True
        self.failure, self.given = failure, []

    def finetune(self, job, model, train_data, train_data_format, train_kwargs=None):
        if self.failure:
            raise RuntimeError(self.failure)
        self.given.append((model, train_data, train_data_format))
        return "remote/tuned"


def remote(provider):
    lm = dspy.LM("remote/base", provider=provider, api_base="http://127.0.0.1:9", max_tokens=77)
    return dspy.context(lm=lm, adapter=build_adapter())


def test_another_providers_model_is_fine_tuned_once_in_its_own_prompt_format(tmp_path):
    provider = Remote()
    with remote(provider):
        compiled = BootstrapFinetune().compile(context(tmp_path, Direct()))
        again = BootstrapFinetune().compile(context(tmp_path, Direct()))
    [(model, data, form)] = provider.given
    assert (model, form) == ("remote/base", "chat")
    assert "[[ ## answer ## ]]\na1" in data[0]["messages"][-1]["content"]
    for lm in (compiled.lms["reader"], again.lms["reader"]):
        assert (lm.model, lm.kwargs["max_tokens"], lm.kwargs["api_base"]) == ("remote/tuned", 77, "http://127.0.0.1:9")
    assert compiled.prompt_format is None
    assert compiled.dump_state()["program"]["lms"] == {"reader": "remote/tuned"}


def test_a_teacher_is_not_asked_about_dev_where_a_provider_is_sent_none_of_it(tmp_path):
    teacher = ScriptedLM(lambda field, inputs: f"a{inputs['question'].removeprefix('Question ')[0]}")
    with remote(Remote()):
        BootstrapFinetune(labels="bootstrap").compile(context(tmp_path, Direct(), teacher))
    assert sorted(inputs["question"] for _, inputs in teacher.asked) == ["Question 1?", "Question 2?"]


def test_a_provider_that_fails_is_one_line(tmp_path):
    with (
        remote(Remote("no\ncredit")),
        pytest.raises(UserError, match=r"remote/base could not .*: no credit") as e,
    ):
        BootstrapFinetune().compile(context(tmp_path, Direct()))
    assert "\n" not in str(e.value)


class FineTuning(ChatServer):
    """OpenAI's fine-tuning. What each look at a job gives is scripted: its state, or the status of a failure."""

    def __init__(self, *looks):
        super().__init__()
        self.looks, self.started = list(looks), 0

    def job(self, status):
        error = {"code": "data", "message": "bad data"} if status == "failed" else None
        about = {"id": f"job-{self.started}", "object": "fine_tuning.job", "status": status, "error": error}
        return about | {"fine_tuned_model": "ft:tuned" if status == "succeeded" else None}

    def handler(self):
        service = self

        class Handler(super().handler()):
            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                if self.path.endswith("/files"):
                    self.reply(200, {"id": "file-1", "object": "file"})
                else:
                    service.started += 1
                    self.reply(200, service.job("queued"))

            def do_GET(self):
                look = service.looks.pop(0)
                self.reply(*((look, service.error_body()) if isinstance(look, int) else (200, service.job(look))))

        return Handler


@pytest.fixture
def openai(monkeypatch):
    """Calls of OpenAI go to a server of the test's."""
    monkeypatch.setattr(openai_jobs, "_EVERY", 0.01)
    monkeypatch.setattr(openai_jobs, "_TRIES", 0)
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    with dspy.context(lm=dspy.LM("openai/gpt-4o-mini"), adapter=build_adapter()):
        yield lambda server: monkeypatch.setenv("OPENAI_BASE_URL", server.url)


def test_openais_job_that_can_not_be_looked_at_is_waited_for_by_the_same_command(tmp_path, openai):
    with FineTuning("running", 500, "running", "succeeded") as server:
        openai(server)
        with pytest.raises(ServiceError, match=r"job-1, can't be looked at .*overloaded.*same command waits for it"):
            BootstrapFinetune().compile(context(tmp_path, Direct()))
        compiled = BootstrapFinetune().compile(context(tmp_path, Direct()))
    assert compiled.lms["reader"].model == "ft:tuned"
    assert (server.started, server.looks) == (1, [])


def test_openais_job_that_failed_is_waited_for_no_more(tmp_path, openai):
    with FineTuning("running", "failed", "succeeded") as server:
        openai(server)
        with pytest.raises(UserError, match="job-1, is failed: bad data; the same command starts anew"):
            BootstrapFinetune().compile(context(tmp_path, Direct()))
        assert BootstrapFinetune().compile(context(tmp_path, Direct())).lms["reader"].model == "ft:tuned"
    assert server.started == 2


BARE = Question(id="9", question="Q?", answers=["a"])


@pytest.mark.parametrize(
    ("options", "program", "trainset", "line"),
    [
        ({"questions": 3}, Direct(), None, r"optimizer\.questions: 3 of 2 train questions"),
        ({}, RAISF(ScriptedRetriever({})), [BARE], "'relevance' learns from the questions' passages, which no train"),
        ({}, IRCoT(ScriptedRetriever({})), [BARE], "'reason' learns from the questions' hops or rationale"),
        ({"labels": "bootstrap"}, Direct("none"), None, "takes no step of the program that it could learn"),
        ({}, Direct("none"), None, "takes no step of the program that it could learn by optimizer.labels=annotations"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_spent(tmp_path, tiny, options, program, trainset, line):
    with pytest.raises(UserError, match=line) as error:
        BootstrapFinetune(**options).check(context(tmp_path, program, trainset=trainset))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("lm", "options", "line"),
    [
        (LMSettings(model="anthropic/claude"), {}, "anthropic/claude can't be fine-tuned by DSPy"),
        (
            LMSettings(model="openai/mine", api_base="http://127.0.0.1:9/v1"),
            {},
            "can't fine-tune openai/mine at http://127",
        ),
        (LMSettings(model="openai/gpt-4o-mini"), {}, "takes OPENAI_API_KEY from the environment"),
        (LMSettings(model="openai/gpt-4o-mini"), {"lora": 8}, r"optimizer\.lora: the provider of .* decides on it"),
    ],
)
def test_a_model_that_can_not_be_fine_tuned_is_one_line(tmp_path, monkeypatch, lm, options, line):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    if options:
        monkeypatch.setenv("OPENAI_API_KEY", "none")
    with dspy.context(lm=build_lm(lm)), pytest.raises(UserError, match=line) as error:
        BootstrapFinetune(**options).check(context(tmp_path, Direct()))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("given", "of_local", "of_served"), [(None, "json", None), ("plain", "plain", "plain")])
def test_a_teachers_other_local_models_keep_their_format_where_a_served_one_is_trained(
    tmp_path, tiny, monkeypatch, given, of_local, of_served
):
    asked = []

    def nothing(context, questions, steps, prompt_format, threshold):
        asked.append(prompt_format)

        async def take(question):
            return []

        return take

    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setattr(finetune_lm, "bootstrapped", nothing)
    for lm in (tiny, dspy.LM("openai/gpt-4o-mini")):
        folder = tmp_path / str(len(asked))
        with dspy.context(lm=lm), pytest.raises(UserError, match="answered none of the 2 train questions"):
            BootstrapFinetune(labels="bootstrap", prompt_format=given).compile(context(folder, Direct()))
    assert asked == [of_local, of_served]


def test_nothing_to_learn_from_is_one_line(tmp_path, tiny):
    teacher = ScriptedLM(lambda field, inputs: "nonsense")
    with pytest.raises(UserError, match=r"metric_threshold=0.8: .* answered none of the 2 train questions") as error:
        BootstrapFinetune(labels="bootstrap").compile(context(tmp_path / "a", Direct(), teacher))
    assert "\n" not in str(error.value)
    low = replace(context(tmp_path / "c", Direct()), objective=Objective.parse({"f1": 0.5}))
    with pytest.raises(UserError, match=r"metric_threshold: 0.8, but 0.5 f1 is at most 0.5; lower it"):
        BootstrapFinetune(labels="bootstrap").check(low)
    program = RAISF(ScriptedRetriever({}))
    program.lms = {step: ScriptedLM(lambda field, inputs: "yes") for step in ("self_knowledge", "closed_book")}
    with pytest.raises(UserError, match=r"2 train questions led to no step to learn; .*program.self_knowledge=false"):
        BootstrapFinetune().compile(context(tmp_path / "b", program))


def test_a_teacher_that_can_not_keep_to_the_format_is_given_up_after_a_wave(tmp_path, tiny):
    teacher = ScriptedLM(lambda field, inputs: ("no field at all",))
    some = context(tmp_path, Direct(), teacher, [question(number) for number in range(1, 60)])
    keeps = dspy.context(adapter=dspy.ChatAdapter(use_json_adapter_fallback=False))
    with keeps, pytest.raises(UserError, match="can't keep to the format: in 16 runs no output could be parsed"):
        BootstrapFinetune(labels="bootstrap").compile(some)


# Variants


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_lm(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture(scope="module")
def config(store, base):
    def make(*words):
        common = ["data=atlas", "data.train=4", "data.dev=3", "retriever=bm25", "retriever.k=2", "program=ircot"]
        lm = [f"lm.default.model=local/{base}", "lm.default.max_tokens=16", "optimizer=bootstrap_finetune"]
        return load_config(None, [*common, *lm, f"tracking.uri=sqlite:///{store}/mlflow.db", *words])

    return make


@pytest.fixture(scope="module")
def variant(config):
    """Compiled in two parts: the first is stopped amid the training."""

    def stop(stage, done, total, remark):
        if stage == "lm: training" and done == 1:
            raise KeyboardInterrupt

    settings = config("program.reader=direct", "program.max_steps=3", "optimizer.batch=2")
    with pytest.raises(KeyboardInterrupt):
        compile_variant(settings, report=stop)
    [killed] = mlflow.search_runs(experiment_names=["atlas"], output_format="list")
    assert not [thread for thread in threading.enumerate() if "thread_function_wrapper" in thread.name]
    variant = compile_variant(settings)
    assert variant.run_id == killed.info.run_id
    fingerprint = mlflow.get_run(variant.run_id).data.tags["hop.fingerprint"]
    assert not work_folder(variant.config, fingerprint).exists()
    return variant


def state_of(variant):
    return Tracker(variant.config.tracking.uri, "atlas").load_state(variant.run_id)


def answers(evaluation):
    return [row.answer for row in evaluation.rows]


def test_the_run_holds_the_tuned_model_once_and_its_curves(variant):
    client = mlflow.MlflowClient()
    [lm] = kept(variant.run_id, variant.config.tracking.uri, "lm").iterdir()
    name = lm.name
    assert state_of(variant)["program"]["lms"] == dict.fromkeys(["follow_up", "reader", "reason"], f"local/{name}")
    files = {file.name for file in lm.iterdir()}
    assert {"config.json", WEIGHTS, "tokenizer.json", "finetuned.json"} <= files
    examples = {item.path for item in client.list_artifacts(variant.run_id, "examples")}
    assert examples == {"examples/lm-dev.jsonl", "examples/lm-train.jsonl"}
    assert {"workings/training/lm/loss", "workings/training/lm/dev_loss"} <= set(
        mlflow.get_run(variant.run_id).data.metrics
    )


def test_scoring_the_run_asks_its_tuned_model(variant):
    again = evaluate_variant(variant.config, run_id=variant.run_id)
    assert answers(again.after) == answers(variant.after)
    assert answers(again.after) != answers(variant.before)


def test_the_served_model_asks_it_in_a_fresh_process_without_unpickling(variant, tmp_path):
    row = variant.after.rows[0]
    assert answer_in_fresh_process(variant, row.question.question, tmp_path)["answer"] == row.answer


def test_compiles_go_on_from_a_tuned_model(variant, config):
    words = ["program.reader=direct", "program.max_steps=3"]
    few = config(*words, "optimizer.name=labeled_few_shot", "optimizer.prompt_formats=[json]", "optimizer.k=1")
    both = compile_variant(few, run_id=variant.run_id)
    assert state_of(both)["program"] == state_of(variant)["program"]
    assert answers(both.before) == answers(variant.after)
    further = compile_variant(config(*words), run_id=variant.run_id)
    [lm] = set(state_of(further)["program"]["lms"].values())
    assert lm not in state_of(variant)["program"]["lms"].values()
    assert answers(evaluate_variant(further.config, run_id=further.run_id).after) == answers(further.after)


def test_calls_of_a_compile_are_kept_whatever_the_config_says_of_the_cache(variant, config, base):
    given = config("lm.default.cache=false", f"lm.judge.model=local/{base}", "lm.judge.cache=false")
    tuned_model = state_of(variant)["program"]["lms"]["reader"]
    for keeps_calls in (False, True):
        bench = Workbench(given, keeps_calls=keeps_calls)
        assert bench.lms["default"].cache is keeps_calls
        assert bench.lms["judge"].cache is keeps_calls
        assert bench.tuned_lm(tuned_model, f"runs:/{variant.run_id}/variant").cache is keeps_calls


def test_an_ensemble_keeps_the_tuned_model_of_its_members(variant, config):
    inner = "{name: bootstrap_random_search, num_candidate_programs: 1, metric_threshold: 0}"
    words = ["program.reader=direct", "program.max_steps=3", "optimizer.name=ensemble", f"optimizer.of={inner}"]
    ensemble = compile_variant(config(*words), run_id=variant.run_id, score_before=False)
    members = state_of(ensemble)["program"]["members"]
    assert len(members) > 1
    assert all(member["program"]["lms"] == state_of(variant)["program"]["lms"] for member in members)
    assert answers(evaluate_variant(ensemble.config, run_id=ensemble.run_id).after) == answers(ensemble.after)
    with pytest.raises(UserError, match="no optimizer goes on from the programs of an ensemble"):
        compile_variant(config("program.reader=direct", "program.max_steps=3"), run_id=ensemble.run_id)


@pytest.mark.parametrize("program", ["rag", "ra_isf"])
def test_other_programs_are_compiled_too(config, program):
    words = ["program.self_knowledge=false", "optimizer.lora=0"] if program == "ra_isf" else ["optimizer.lora=2"]
    variant = compile_variant(config(f"program.name={program}", *words), score_before=False)
    steps = set(state_of(variant)["program"]["lms"])
    assert steps == ({"reader"} if program == "rag" else {"combine", "decompose", "reader", "relevance"})
    assert answers(evaluate_variant(variant.config, run_id=variant.run_id).after) == answers(variant.after)


def test_a_model_that_the_config_names_for_a_step_goes_before_the_tuned_one(variant, config, base):
    named = config("program.reader=direct", "program.max_steps=3", f"lm.reader.model=local/{base}")
    bench = Workbench(named)
    with bench.active():
        program = restore(bench, state_of(variant), f"runs:/{variant.run_id}/variant")
    assert program.lms["reader"].model == f"local/{base}"
    assert is_tuned(program.lms["reason"])


def test_another_default_model_takes_no_tuned_step_and_that_is_said(variant, config, base, tmp_path):
    other = shutil.copytree(base, tmp_path / "other")
    run, uri = f"runs:/{variant.run_id}", variant.config.tracking.uri
    said = rf"no step of the variant asks it; follow_up, reader, reason have .* as in lm\.follow_up=local/{other}"
    with pytest.raises(UserError, match=said) as caught:
        load_variant(run, [f"lm.default.model=local/{other}"], tracking_uri=uri)
    assert "\n" not in str(caught.value)
    changed = config("program.reader=direct", "program.max_steps=3", f"lm.default.model=local/{other}")
    with pytest.raises(UserError, match="no step of the variant asks it"):
        evaluate_variant(changed, run_id=variant.run_id)
    named = [f"lm.{step}.model=local/{other}" for step in ("default", "follow_up", "reader", "reason")]
    assert not tuned_lms(load_variant(run, named, tracking_uri=uri).program)


def test_a_providers_tuned_model_is_asked_with_the_settings_of_the_default_one(config):
    server = load_config(
        None,
        ["data=atlas", "program=direct", "lm.default.model=openai/base", "lm.default.api_base=http://127.0.0.1:9/v1"],
    )
    bench = Workbench(server)
    state = Direct().dump_state()
    state["program"]["lms"] = {"reader": "openai/ft:base:1"}
    lm = build_lm(server.lm["default"])
    bench.__dict__["lms"] = {"default": lm}  # nobody answers at that address
    program = restore(bench, state, "nowhere")
    assert program.lms["reader"].model == "openai/ft:base:1"
    assert program.lms["reader"].kwargs["api_base"] == "http://127.0.0.1:9/v1"
    assert is_tuned(program.lms["reader"])
