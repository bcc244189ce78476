"""Fine-tuning small models, with the real MiniLM and SmolLM2."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Literal

import dspy
import pytest
import torch
from small_models import CITIES, CONFIG, TASK, examples, tiny_t5, train

from hoptimizer.common.errors import UserError
from hoptimizer.eval.datasets.question import Hop, Question
from hoptimizer.models.small.card import read_card
from hoptimizer.models.small.loading import load_step_model
from hoptimizer.optimizers.labels.examples import Task, TrainingExample, relevance_examples
from hoptimizer.optimizers.training import loop as training_loop
from hoptimizer.optimizers.training.calibration import best_threshold, classification_scores
from hoptimizer.optimizers.training.classifier import train_classifier
from hoptimizer.optimizers.training.generator import GeneratorTrainingConfig, train_generator
from hoptimizer.optimizers.training.loop import MasterWeights, Plan, shuffled_batches
from hoptimizer.retrieval import Corpus, Passage

WEIGHTS = "model.safetensors"
DECOMPOSE = Task(step="decompose", inputs=("question",), output="subquestions", listed=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The toy step's model, trained without a break."""
    folder = tmp_path_factory.mktemp("small") / "relevant"
    return folder, train(folder)


def test_learns_a_toy_task_and_says_so_on_its_card(trained):
    folder, card = trained
    assert card.scores["f1"] > 0.8
    assert card.scores["n"] == 16
    assert card.train.classes == {"False": 24, "True": 8}
    assert (card.step, card.base, card.seed, card.labels) == ("relevant", "minilm", 7, (False, True))
    assert read_card(folder) == card
    assert {file.name for file in folder.iterdir()} >= {"card.json", "config.json", WEIGHTS, "tokenizer.json"}
    assert not [file for file in folder.iterdir() if file.name.startswith(".") or file.suffix in (".bin", ".pt")]


def test_same_seed_gives_identical_weights_and_another_seed_does_not(trained, tmp_path):
    folder, _ = trained
    train(tmp_path / "again")
    assert (tmp_path / "again" / WEIGHTS).read_bytes() == (folder / WEIGHTS).read_bytes()
    train(tmp_path / "other", CONFIG.model_copy(update={"seed": 8}))
    assert (tmp_path / "other" / WEIGHTS).read_bytes() != (folder / WEIGHTS).read_bytes()


def test_killed_training_goes_on_to_identical_weights(trained, tmp_path):
    folder, card = trained
    program = [sys.executable, str(Path(__file__).with_name("small_models.py")), str(tmp_path), "10", "relevant"]
    assert subprocess.run(program, check=False).returncode == -signal.SIGKILL
    assert not (tmp_path / "card.json").exists()
    steps = []
    resumed = train(tmp_path, report=lambda progress: steps.append(progress.step))
    assert steps == [9, 10, 11, 12]  # the last checkpoint was after 8
    assert resumed == card
    assert (tmp_path / WEIGHTS).read_bytes() == (folder / WEIGHTS).read_bytes()


def test_slow_updates_are_kept_sooner(tmp_path, monkeypatch):
    monkeypatch.setattr(training_loop, "_PATIENCE", 0)

    def stop(progress):
        if progress.step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, report=stop)
    steps = []
    train(tmp_path, report=lambda progress: steps.append(progress.step))
    assert steps[0] == 3


def test_finished_training_is_not_repeated_nor_overwritten(trained):
    folder, card = trained
    steps = []
    assert train(folder, report=steps.append) == card
    assert not steps
    with pytest.raises(UserError, match="other data or settings"):
        train(folder, CONFIG.model_copy(update={"epochs": 1}))


def test_a_training_that_diverges_is_one_clear_line_and_no_model(tmp_path):
    told = []
    with pytest.raises(UserError, match=r"diverged, .* at update \d+ of 12; .* smaller than 1e\+30$") as caught:
        train(tmp_path, CONFIG.model_copy(update={"learning_rate": 1e30}), told.append)
    assert "\n" not in str(caught.value)
    assert len(told) < 4
    assert not (tmp_path / "card.json").exists()


def test_saved_and_loaded_model_scores_as_in_training(trained):
    folder, card = trained
    dev = examples(CITIES[8:])
    results = load_step_model(str(folder), "relevant").predict([example.inputs for example in dev])
    chosen = [int(result["relevant"]) for result in results]
    scores = classification_scores([int(bool(example.output)) for example in dev], chosen, 2)
    assert scores == {name: card.scores[name] for name in scores}


def test_a_label_without_examples_is_one_clear_line(tmp_path):
    wrong = [example for example in examples() if not example.output]
    with pytest.raises(UserError, match=r"none of the 24 train examples has the label True") as caught:
        train_classifier(TASK, wrong, examples(), CONFIG, tmp_path)
    assert "\n" not in str(caught.value)


def test_causal_model_learns_to_write_a_list(tmp_path):
    some = [
        TrainingExample({"question": f"{a} or {b}?"}, [f"How old is {a}?", f"How old is {b}?"])
        for a, b in zip(CITIES, CITIES[1:] + CITIES[:1], strict=True)
    ]
    recipe = GeneratorTrainingConfig(
        epochs=2, batch=4, learning_rate=2e-3, max_new_tokens=24, lora=8, checkpoint_steps=50
    )
    card = train_generator(DECOMPOSE, some[:8], some[8:], recipe, tmp_path)
    assert card.kind == "generator"
    assert card.scores["f1"] > 0.8
    model = load_step_model(str(tmp_path), "decompose")
    assert all(isinstance(item, str) for item in model.predict([{"question": "Bonn or Bern?"}])[0]["subquestions"])


def test_sequence_to_sequence_model_learns_to_write(tmp_path):
    task = Task(step="kind", inputs=("question",), output="kind")
    some = [
        TrainingExample({"question": f"{word} of {city}?"}, kind)
        for city in CITIES
        for word, kind in (("Mayor", "a person"), ("River", "a stream of water"))
    ]
    recipe = GeneratorTrainingConfig(
        base=str(tiny_t5(tmp_path / "base")), epochs=30, batch=4, learning_rate=1e-2, max_new_tokens=8, lora=0
    )
    card = train_generator(task, some[:18], some[18:], recipe, tmp_path / "kind")
    assert card.scores["exact"] == 1
    model = load_step_model(str(tmp_path / "kind"), "kind")
    asked = [{"question": "River of Bonn?"}, {"question": "Mayor of Bern?"}]
    assert [written["kind"] for written in model.predict(asked)] == ["a stream of water", "a person"]


def test_a_task_is_read_from_a_signature():
    class Relevant(dspy.Signature):
        """Say whether the passage helps."""

        question: str = dspy.InputField()
        passage: str = dspy.InputField()
        relevant: bool = dspy.OutputField()

    class Knows(dspy.Signature):
        """Say whether you know."""

        question: str = dspy.InputField()
        verdict: Literal["know", "unknown"] = dspy.OutputField()

    assert Task.of("relevant", Relevant) == TASK
    assert Task.of("knows", Knows).labels == ("unknown", "know")
    with pytest.raises(UserError, match="one output field"):
        Task.of("both", Relevant.append("why", dspy.OutputField(), str))


def test_a_passage_that_a_server_found_and_the_corpus_lacks_is_an_example_too():
    corpus = Corpus([Passage("a", "A", "text")])
    question = Question(id="1", question="Q?", answers=["x"], passages=["a"])
    made = relevance_examples([question], [[Passage("17", "Elsewhere", "other")]], [[]], corpus)
    assert [(example.inputs["passage"], example.output) for example in made] == [
        (str(corpus["a"]), True),
        ("Elsewhere: other", False),
    ]


def test_relevance_comes_from_what_holds_the_answer_and_from_hops():
    corpus = Corpus([Passage(id, id.upper(), "text") for id in "abcd"])
    hops = [Hop(question="H?", answer="y", passage="b"), Hop(question="I?", answer="x", passage="a")]
    question = Question(id="1", question="Q?", answers=["x"], passages=["a", "b"], hops=hops)
    made = relevance_examples([question], [[corpus["a"], corpus["d"]]], [["a", "b", "c"]], corpus)
    assert [(e.inputs["question"], e.inputs["passage"][0], e.output) for e in made] == [
        ("Q?", "A", True),
        ("Q?", "B", False),
        ("Q?", "C", False),
        ("Q?", "D", False),
        ("H?", "A", False),
        ("H?", "B", True),
        ("H?", "C", False),
        ("H?", "D", False),
        ("I?", "A", True),
        ("I?", "B", False),
        ("I?", "C", False),
        ("I?", "D", False),
    ]


@pytest.mark.parametrize(
    ("gold", "probabilities", "aim", "least", "most"),
    [
        ([0, 0, 1, 1], [0.1, 0.2, 0.3, 0.9], "f1", 0.2, 0.3),
        ([0, 1, 0, 1], [0.1, 0.2, 0.3, 0.9], "f1", 0.1, 0.2),
        ([0, 0, 0, 0, 0, 1, 0, 1], [0.1] * 5 + [0.2, 0.3, 0.9], "balanced_accuracy", 0.1, 0.2),
        ([1, 0], [0.4, 0.4], "f1", 0.0, 0.4),
    ],
)
def test_threshold_makes_the_best_of_dev(gold, probabilities, aim, least, most):
    assert least <= best_threshold(gold, probabilities, aim) <= most


def test_gradients_take_no_memory_between_updates():
    model = torch.nn.Linear(4, 4)
    plan = Plan(epochs=1, learning_rate=0.1, weight_decay=0, patience=None, checkpoint_steps=1, key="")
    master = MasterWeights(model, plan, torch.bfloat16)
    before = master.copy()
    model(torch.ones(4, dtype=torch.bfloat16)).sum().backward()
    master.step(0.1)
    assert not torch.equal(master.copy()["weight"], before["weight"])
    assert all(weight.grad is None for weight in [*model.parameters(), *master.weights.values()])


def test_batches_hold_every_example_once_and_depend_on_seed_and_epoch():
    lengths = [5, 9, 2, 7, 7, 1, 3]
    first = shuffled_batches(lengths, 2, seed=1, epoch=0)
    assert sorted(i for batch in first for i in batch) == list(range(7))
    assert first == shuffled_batches(lengths, 2, seed=1, epoch=0)
    assert first != shuffled_batches(lengths, 2, seed=1, epoch=1)
