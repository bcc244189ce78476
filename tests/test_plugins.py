"""Parts of a user's own: by entry point and by dotted path, from the example package."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hoptimizer import UserError, load_config
from hoptimizer.config import make_config
from hoptimizer.eval import Question, metric
from hoptimizer.eval.objective import Objective

EXAMPLE = Path(__file__).parents[1] / "examples" / "house_parts"
QUIZ = [
    {"id": str(n), "ask": f"What is the colour of box {n}?", "solution": colour, "hint": f"Box {n} is {colour}."}
    for n, colour in enumerate(["red", "blue", "green", "white", "black", "brown"] * 2)
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the installed example package, and one to work in."""
    packages = tmp_path_factory.mktemp("packages")
    source = shutil.copytree(
        EXAMPLE, tmp_path_factory.mktemp("source") / "house_parts"
    )  # where a build leaves its files
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--disable-pip-version-check", "--target", str(packages), str(source)],
        capture_output=True,
        text=True,
        check=False,
        cwd=packages,
    )
    assert done.returncode == 0, done.stderr
    return packages


@pytest.fixture(scope="module")
def hop(installed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")

    def run(*words, code=0):
        done = subprocess.run(
            [sys.executable, "-m", "hoptimizer.cli", *words],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(installed)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done.stderr.strip() if code else json.loads(done.stdout)

    return run


@pytest.fixture
def here(monkeypatch):
    """The example package importable without being installed."""
    monkeypatch.syspath_prepend(str(EXAMPLE))


@pytest.mark.parametrize(
    "words",
    [
        ["program=first_passage", "retriever=shared_words", "metric=mentions"],
        [
            *["program=house_parts.program:FirstPassage", "retriever=house_parts.retriever:SharedWords"],
            "metric=house_parts.metric:mentions",
        ],
    ],
    ids=["entry points", "dotted paths"],
)
def test_an_installed_program_retriever_and_metric_are_scored_together(hop, words):
    scored = hop("eval", "data=atlas", "data.dev=4", *words, "program.words=2", "retriever.k=2", "--json")
    assert scored["metrics"]["lm_calls"] == 0
    assert scored["metrics"]["passages"] == 2
    assert 0 < scored["metrics"]["mentions"] <= 1
    compared = hop("compare", "data=atlas", "--metric", "mentions", "--json")
    assert compared["variants"][-1]["metrics"]["mentions"] == scored["metrics"]["mentions"]


def test_an_installed_optimizer_compiles_and_its_variant_is_scored_again(hop):
    words = ["data=atlas", "data.train=2", "data.dev=2", "program=rag", "retriever=bm25", "lm.default.max_tokens=16"]
    compiled = hop("compile", *words, "optimizer=short_answers", "optimizer.words=[3]", "--json")
    again = hop("eval", "--run", compiled["run_id"], "--json")
    assert again["metrics"]["f1"] == compiled["after"]["f1"]


def test_an_installed_importer_makes_a_data_set(hop, tmp_path):
    (tmp_path / "quiz.jsonl").write_text("".join(json.dumps(item) + "\n" for item in QUIZ))
    assert "quiz" in hop("data", "list", "--json")["published"]
    made = hop("data", "import", "quiz", str(tmp_path / "quiz.jsonl"), "--out", str(tmp_path / "quiz"), "--json")
    assert sum(made["splits"].values()) == made["passages"] == len(QUIZ)


def test_mistakes_are_one_line_and_exit_code_2(hop):
    assert hop("eval", "data=atlas", "program=first_pasage", code=2) == (
        "hop: program.name: there is no program 'first_pasage'; did you mean 'first_passage'? known: cot, direct, "
        "efficient_rag, first_passage, ircot, ra_isf, rag; or give your own as package.module:Name"
    )


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("program=nowhere.module:Program", r"program.name: nowhere.module:Program can't be imported \(No module named"),
        ("program=house_parts.program:Missing", r"the module house_parts.program has no 'Missing'; correct the name"),
        ("program=house_parts.optimizer:ShortAnswers", r"is no program; expected a subclass of hoptimizer.programs"),
        (
            "optimizer=house_parts.program:FirstPassage",
            r"is no optimizer; expected a subclass of hoptimizer.optimizers",
        ),
        ("retriever=house_parts.program:FirstPassage", r"is no retriever; expected a subclass of hoptimizer.retrieval"),
        ("metric=house_parts.program:FirstPassage", r"is no metric or count; expected a hoptimizer.eval.Metric, or"),
        ("metric=house_parts.metric:missing", r"metric: the module house_parts.metric has no 'missing'"),
        ("retriever=bm26", r"retriever.name: there is no retriever 'bm26'; did you mean 'bm25'\?"),
    ],
)
def test_what_is_no_part_of_the_kind_is_said(here, word, message):
    with pytest.raises(UserError, match=message):
        load_config(None, ["data=atlas", word])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["program.words=0"], r"program.words: input should be greater than or equal to 1, got 0"),
        (["program.word=3"], r"program.word: unknown key; did you mean 'words'\?"),
        (["retriever.case=upper"], r"retriever.case: input should be 'ignored' or 'heeded', got 'upper'"),
        (["retriever.checkpoint=minilm"], r"retriever.checkpoint: unknown key"),
        (["optimizer.words=many"], r"optimizer.words.*got 'many'"),
    ],
)
def test_options_are_the_constructors_arguments_and_validated_like_ours(here, words, message):
    parts = ["program=house_parts.program:FirstPassage", "retriever=house_parts.retriever:SharedWords"]
    parts += ["optimizer=house_parts.optimizer:ShortAnswers"]
    assert load_config(None, ["data=atlas", *parts, "program.words=5"]).program.words == 5
    with pytest.raises(UserError, match=message):
        load_config(None, ["data=atlas", *parts, *words])


def test_a_config_with_parts_of_ones_own_is_read_again(here):
    parts = ["program=house_parts.program:FirstPassage", "retriever=house_parts.retriever:SharedWords"]
    config = load_config(None, ["data=atlas", *parts, "retriever.case=heeded", "metric=house_parts.metric:mentions"])
    assert make_config(config.public()).digest == config.digest


def test_a_metric_is_weighed_beside_ours_and_gets_a_dspy_example(here):
    objective = Objective.parse({"house_parts.metric:mentions": 0.5, "f1": 0.5})
    assert objective.label == "0.5 mentions + 0.5 f1"
    assert objective.best == 1
    assert metric("house_parts.metric:mentions").description == "Whether a passage that was found holds an answer."
    question = Question(id="1", question="What?", answers=["red"])
    scored = objective.score(question, Found("red", "The box is Red."))
    assert scored.values["mentions"] == 1
    assert scored.values["objective"] == 1


class Found:
    """A prediction with one passage."""

    def __init__(self, answer, text):
        self.answer, self.passages, self.steps = answer, [self], ()
        self.id = self.text = text
