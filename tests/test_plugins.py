"""Parts of a user's own: by entry point and by dotted path, from the example package."""

import asyncio
import importlib
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import dspy
import pytest
from dspy.utils import DummyLM
from dspy.utils.exceptions import ContextWindowExceededError
from pydantic import Field
from rich.console import Console

from hoptimizer import Tracker, UserError, answer_all, compare_variants, evaluate_variant, load_config, load_study
from hoptimizer.cli.screen import tables
from hoptimizer.common.errors import RefusedQueryError
from hoptimizer.common.options import options_model
from hoptimizer.comparison.sheets import scores_sheet
from hoptimizer.config import Config, make_config
from hoptimizer.eval import Metric, Question, metric
from hoptimizer.eval.display.format import figure
from hoptimizer.eval.objective import Objective
from hoptimizer.eval.runner import evaluate
from hoptimizer.eval.showing import failures
from hoptimizer.optimizers import Optimizer, build_optimizer
from hoptimizer.programs import PROGRAMS, Program
from hoptimizer.retrieval import Corpus, Passage, Retriever, build_retriever, index_info

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
    known = ", ".join(sorted([*PROGRAMS, "first_passage"]))
    assert hop("eval", "data=atlas", "program=first_pasage", code=2) == (
        "hop: program.name: there is no program 'first_pasage'; did you mean 'first_passage'? known: "
        f"{known}; or give your own as package.module:Name"
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


def test_a_study_shows_a_metric_of_ones_own(here, tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text(
        "base: {data: {name: atlas, dev: 2}, metric: 'house_parts.metric:mentions'}\n"
        "grid: {retriever.k: [1, 2]}\nfigures: [mentions, f1]\nplot: {x: retriever.k, y: mentions}\n"
    )
    assert load_study(file).file.figures == ["mentions", "f1"]
    file.write_text(file.read_text().replace("[mentions, f1]", "[mention]"))
    with pytest.raises(UserError, match=r"there is no metric or count 'mention', .* did you mean 'mentions'\?"):
        load_study(file)


class Found:
    """A prediction with one passage."""

    def __init__(self, answer, text):
        self.answer, self.passages, self.steps = answer, [self], ()
        self.id = self.text = text


def test_help_reads_no_entry_points():
    code = (
        "import importlib.metadata, sys\n"
        "def read(**_): raise SystemExit('entry points were read')\n"
        "importlib.metadata.entry_points = read\n"
        "sys.argv = ['hop', '--help']\n"
        "from hoptimizer.cli import main\n"
        "main()\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


# What a user's module holds, good and bad.
MODULE = """
from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hoptimizer.optimizers import CompileContext, Optimizer
from hoptimizer.programs import Program
from hoptimizer.retrieval import Corpus, Passage, Retriever


class Echo(Program):
    step_names = ()

    def __init__(self, times: Annotated[int, Field(ge=1)] = 1) -> None:
        super().__init__()
        self.times = times

    async def solve(self, question: str) -> tuple[str, list[Passage]]:
        return " ".join([question] * self.times), []


class Silent(Program):
    pass


class First(Retriever):
    def __init__(self, corpus: Corpus, skip: int = 0) -> None:
        self.passages = corpus.passages[skip:]

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        return [self.passages[:k] for _ in queries]


class Guarded(First):
    def __init__(self, corpus: Corpus, url: str = "", api_key: str = "") -> None:
        super().__init__(corpus)


class Counted(First):
    def __init__(self, corpus: Corpus, k: int) -> None:
        super().__init__(corpus)


class Same(Optimizer):
    def compile(self, context: CompileContext) -> Program:
        return context.program.deepcopy()


class Strange(Same):
    def __init__(self, size: NoSuchType) -> None:
        pass


class Unreadable(Same):
    def __init__(self, program: type[Program], other: Same) -> None:
        pass


class Stepped(Echo):
    def __init__(self, steps: int = 1) -> None:
        super().__init__()


def f1(example, prediction):
    return 1.0


def exact(example, prediction):
    return 1.0


number = 7
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module of a user's own, in the folder that commands are given in."""
    name = f"my_parts_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    (tmp_path / f"{name}_broken.py").write_text("raise RuntimeError('no\\nlicence')\n")
    (tmp_path / f"{name}_lacking.py").write_text("import no_such_package\n")
    (tmp_path / f"{name}_typo.py").write_text("import math\nmath.nothing\n")
    (tmp_path / f"{name}_shown.py").write_text(f"from {name} import Echo, exact\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return name


def config(*words: str) -> Config:
    return load_config(None, ["data=atlas", *words])


def test_the_arguments_of_a_constructor_are_options_and_come_back_from_a_resolved_config(module):
    made = config(f"program={module}:Echo", "program.times=3", f"retriever={module}:First", "retriever.skip=1")
    assert (made.program.times, made.retriever.skip, made.k) == (3, 1, 4)
    again = load_config(None, [f"program.name={module}:Echo", f"retriever.name={module}:First"], made.public())
    assert again.digest == made.digest != config(f"program={module}:Echo").digest


@pytest.mark.parametrize(
    "words",
    [
        ["program={module}:Echo"],
        ["retriever={module}:First"],
        ["retriever=hybrid", "retriever.of=[bm25, {module}:First]"],
        ["optimizer={module}:Same"],
        ["optimizer=better_together", "optimizer.strategy=[{module}:Same]"],
        ["metric={module}:exact"],
        ["metric.f1=1", "metric.{module}:exact=0.5"],
        ["program={module}_shown:Echo"],
        ["metric={module}_shown:exact"],
        ["program=echo"],
    ],
    ids=" ".join,
)
def test_code_of_ones_own_that_was_changed_makes_another_config(module, tmp_path, monkeypatch, words):
    monkeypatch.setattr(
        "hoptimizer.common.plugins._entry_point", lambda _, name: f"{module}:Echo" if name == "echo" else None
    )
    words = [word.replace("{module}", module) for word in words]
    before = config(*words).digest
    (tmp_path / f"{module}.py").write_text(f"{MODULE}\nversion = 2\n")
    assert config(*words).digest == before, "what was imported goes on running"
    importlib.reload(sys.modules[module])
    assert config(*words).digest != before


def test_a_part_without_a_file_is_told_by_its_name(monkeypatch):
    alone = ModuleType("my_notebook")
    alone.score = lambda example, prediction: 1.0
    alone.score.__module__ = "my_notebook"
    alone.score.__name__ = "score"
    monkeypatch.setitem(sys.modules, "my_notebook", alone)
    made = config("metric=my_notebook:score")
    assert made.digest == config("metric=my_notebook:score").digest != config("metric=em").digest


def test_a_study_has_its_cells_to_run_again_when_the_code_of_its_metric_was_changed(module, tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text(f"base: {{data: {{name: atlas, dev: 2}}, metric: '{module}:exact'}}\ngrid: {{retriever.k: [1]}}\n")

    def fingerprint():
        study = load_study(file)
        return study.fingerprint(study.cells[0])

    before = fingerprint()
    (tmp_path / f"{module}.py").write_text(MODULE.replace("1.0", "0.25"))
    importlib.reload(sys.modules[module])
    assert fingerprint() != before


def test_a_retriever_of_ones_own_gets_the_corpus_and_its_options(module):
    corpus = Corpus([Passage(str(n), "", f"text {n}") for n in range(5)])
    settings = config(f"retriever={module}:First", "retriever.skip=2").retriever
    retriever = build_retriever(settings, corpus)
    assert [passage.id for passage in retriever.search(["any"], 2)[0]] == ["2", "3"]
    assert retriever.name == "First"
    assert index_info(settings, corpus)["index"] == "own"


def test_a_secret_of_a_part_of_ones_own_is_not_kept(module):
    words = ["retriever.url=http://me:word@host/x", "retriever.api_key=0123"]
    made = config(f"retriever={module}:Guarded", *words)
    assert (made.retriever.url, made.retriever.api_key) == ("http://me:word@host/x", "0123")
    assert made.public()["retriever"] == {"name": f"{module}:Guarded", "url": "http://host/x", "k": 4}


def test_an_optimizer_without_a_constructor_has_no_options(module):
    assert type(build_optimizer(config(f"optimizer={module}:Same").optimizer)).__name__ == "Same"
    with pytest.raises(UserError, match=r"optimizer\.times: unknown key"):
        config(f"optimizer={module}:Same", "optimizer.times=2")
    nested = config("optimizer=better_together", f"optimizer.strategy=[{module}:Same]").optimizer
    assert nested.strategy[0].name == f"{module}:Same"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["program=no_such_module:Echo"], ["program.name", "'no_such_module'", "install its package"]),
        (["program=no_such.module:Echo"], ["program.name", "no_such.module:Echo", "install its package"]),
        (["program={module}:Ecko"], ["program.name", "has no 'Ecko'", "did you mean 'Echo'"]),
        (["program={module}:7"], ["program.name", "no program", "package.module:Name"]),
        (["program={module}:First"], ["program.name", "is no program", "hoptimizer.programs.Program"]),
        (["program={module}:number"], ["program.name", "is no program", "hoptimizer.programs.Program"]),
        (["program={module}:Silent"], ["program.name", "lacks solve"]),
        (["program={module}:Stepped"], ["Stepped", "'steps'", "rename it"]),
        (["program={module}:Echo", "program.time=2"], ["program.time", "unknown key", "did you mean 'times'"]),
        (["program={module}:Echo", "program.times=0"], ["program.times", "greater than", "0"]),
        (["program={module}_broken:Echo"], ["program.name", "RuntimeError: no licence", "its module raises"]),
        (["program={module}_lacking:Echo"], ["program.name", "ModuleNotFoundError", "no_such_package"]),
        (["program={module}_typo:Echo"], ["program.name", "AttributeError", "its module raises"]),
        (["retriever={module}:Echo"], ["retriever.name", "is no retriever", "hoptimizer.retrieval.Retriever"]),
        (["retriever={module}:Counted"], ["Counted", "'k'", "rename it"]),
        (["retriever={module}:First", "retriever.skip=few"], ["retriever.skip", "integer", "'few'"]),
        (["retriever={module}:First", "retriever.checkpoint=minilm"], ["retriever.checkpoint", "unknown key"]),
        (["retriever=bm26"], ["retriever.name", "'bm26'", "did you mean 'bm25'"]),
        (["optimizer={module}:Echo"], ["optimizer.name", "is no optimizer", "hoptimizer.optimizers.Optimizer"]),
        (["optimizer={module}:Strange"], ["Strange", "make no options", "NoSuchType"]),
        (["optimizer={module}:Unreadable"], ["Unreadable", "make no options"]),
        (["metric={module}:number"], ["metric", "is no metric", "hoptimizer.eval.Metric"]),
        (["metric={module}:nothing"], ["metric", "has no 'nothing'"]),
        (["metric={module}:f1"], ["metric", "'f1'", "rename it"]),
        (["metric=mention"], ["metric", "'mention'", "known: "]),
    ],
    ids=lambda value: " ".join(value)[:50],
)
def test_a_mistake_is_one_line_that_names_the_part(module, words, says):
    with pytest.raises(UserError) as error:
        config(*(word.replace("{module}", module) for word in words))
    message = str(error.value)
    assert "\n" not in message
    for part in says:
        assert part in message, message


def test_what_a_users_module_raised_is_the_cause(module):
    with pytest.raises(UserError) as error:
        config(f"program={module}_broken:Echo")
    assert isinstance(error.value.__cause__, RuntimeError)


class Answer(Program):
    """Answers at once."""

    step_names = ()

    async def solve(self, question: str) -> tuple[str, list[Passage]]:
        return "Lyon", []


QUESTIONS = [Question(id=str(n), question=f"Where {n}?", answers=["Lyon"]) for n in range(4)]


def fussy(example: dspy.Example, prediction: dspy.Prediction) -> float | None:
    """Fails on one question, has nothing to say of another, and none but nonsense of a third."""
    number = int(example.question.split()[1][:-1])
    return [None, None, float("nan"), 0.5][number] if number else 1 / number


brevity = Metric("brevity", "words", lambda _, prediction: float(len(prediction.answer.split())), percent=False)


def pleased(example: dspy.Example, prediction: dspy.Prediction) -> float:
    """Has nothing to say against an answer that is not there."""
    return 1.0


def test_a_metric_of_ones_own_is_0_where_the_program_failed(monkeypatch):
    monkeypatch.setitem(sys.modules, "my_metrics", sys.modules[__name__])
    objective = Objective.parse("my_metrics:pleased")
    nothing = dspy.Prediction(answer="", passages=[])
    scored = [asyncio.run(objective.ascore(QUESTIONS[0], nothing, failed=failed)) for failed in (True, False)]
    assert [one.values["pleased"] for one in scored] == [0.0, 1.0]


def test_a_metric_of_ones_own_that_fails_is_that_of_a_wrong_answer(monkeypatch):
    monkeypatch.setitem(sys.modules, "my_metrics", sys.modules[__name__])
    objective = Objective.parse("my_metrics:fussy")
    evaluation = evaluate(Answer(), QUESTIONS, objective=objective)
    assert [row.scores.get("fussy") for row in evaluation.rows] == [0, None, 0, 0.5]
    assert [row.failure for row in evaluation.rows] == [
        "a metric failed: fussy: ZeroDivisionError: division by zero",
        None,
        "a metric failed: fussy: nan is no finite number",
        None,
    ]
    assert evaluation.scores("em") == [1.0] * 4
    scored = [objective(question.to_dspy(), dspy.Prediction(answer="Lyon", passages=[])) for question in QUESTIONS]
    assert scored == [0, 0, 0, 0.5]
    assert len(objective.metric_failures) == 2


def test_a_metric_of_ones_own_is_weighed(monkeypatch):
    monkeypatch.setitem(sys.modules, "my_metrics", sys.modules[__name__])
    objective = Objective.parse({"em": 1, "my_metrics:brevity": -0.25})
    assert objective.label == "em - 0.25 brevity"
    assert evaluate(Answer(), QUESTIONS, objective=objective).metrics["objective"] == 0.75
    assert objective(QUESTIONS[0].to_dspy(), dspy.Prediction(answer="in Lyon", passages=[])) == -0.5
    with pytest.raises(UserError, match="with a weight above 0"):
        Objective.parse("my_metrics:brevity")


def full_marks(example: dspy.Example, prediction: dspy.Prediction) -> int:
    """Is none of shares."""
    return 7


def test_a_score_that_is_no_share_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "my_metrics", sys.modules[__name__])
    evaluation = evaluate(Answer(), QUESTIONS, objective=Objective.parse("my_metrics:full_marks"))
    assert evaluation.metrics["full_marks"] == 0
    assert failures(evaluation) == (
        "4 questions failed (a metric failed: full_marks: expected a score between 0 and 1, got 7; if its scores are "
        "no shares, make it a hoptimizer.eval.Metric with percent=False)"
    )


def test_why_a_metric_of_ones_own_failed_is_said_below_the_table(monkeypatch, store):
    monkeypatch.setitem(sys.modules, "my_metrics", sys.modules[__name__])
    variant = evaluate_variant(own_metric_config("my_metrics:full_marks"))
    console = Console(width=400, file=io.StringIO())
    console.print(tables.scores(variant))
    reason = "4 questions failed (a metric failed: full_marks: expected a score between 0 and 1, got 7"
    assert all(reason in " ".join(shown.split()) for shown in (console.file.getvalue(), variant._repr_html_()))


def test_a_metric_of_ones_own_is_shown_in_percent_unless_its_scores_are_no_shares(monkeypatch, store):
    monkeypatch.setitem(sys.modules, "my_metrics", sys.modules[__name__])
    runs = [evaluate_variant(own_metric_config("my_metrics:pleased")).run_id for _ in range(2)]
    Objective.parse({"em": 1, "my_metrics:brevity": -0.25})
    assert (figure("pleased", 0.5), figure("brevity", 2.0)) == ("50.0", "2.00")
    # A comparison imports no metric of the user's, and shows them as the runs that have them do.
    monkeypatch.setattr("hoptimizer.eval.metrics._own_shares", set())
    sheet = scores_sheet(compare_variants(Tracker("sqlite:///mlflow.db", "atlas"), runs, metric="pleased"))
    assert [row[sheet.header.index("pleased")] for row in sheet.rows] == ["100.0", "100.0"]


def own_metric_config(name: str) -> Config:
    words = ["data=atlas", "data.dev=4", "program.name=rag", "program.reader=none", "retriever=bm25"]
    return load_config(None, [*words, f"metric={name}"])


class Faulty(Program):
    """Has a mistake in its ``solve``, which each test gives."""

    step_names = ("first",)

    def __init__(self, solve: Any) -> None:
        super().__init__()
        self.first, self.later = dspy.ChainOfThought("question -> answer"), "no predictor"
        self.solving = solve

    def solve(self, question: str) -> Any:
        return self.solving(self, question)


async def alone(program: Program, question: str) -> str:
    return "Lyon"


async def texts(program: Program, question: str) -> tuple[str, list[str]]:
    return "Lyon", ["a passage"]


async def missing(program: Program, question: str) -> None:
    await program.step("second", question=question)


async def strange(program: Program, question: str) -> None:
    await program.step("later", question=question)


async def number(program: Program, question: str) -> tuple[str, list[Passage]]:
    return str(int(question)), []


@pytest.mark.parametrize(
    ("solve", "says"),
    [
        (lambda program, question: ("Lyon", []), r"solve: expected an async method; write async def solve"),
        (alone, r"solve: expected the answer and a list of the passages .*; got 'Lyon'"),
        (texts, r"solve: expected the answer and a list of the passages .*; got \('Lyon', \['a passage'\]\)"),
        (missing, r"second: expected a dspy.Predict in the attribute of a step, got no such attribute"),
        (strange, r"later: expected a dspy.Predict in the attribute of a step, got 'no predictor'"),
        (number, r"solve: ValueError: .*test_plugins.py, line \d+\), asked 'Where 0\?'$"),
    ],
)
def test_a_mistake_in_a_program_of_ones_own_ends_the_run_in_one_line(solve, says):
    with pytest.raises(UserError, match=f"^{__name__}:Faulty.{says}"):
        evaluate(Faulty(solve), QUESTIONS, workers=1)


def test_what_a_program_of_ones_own_raised_is_the_cause():
    with pytest.raises(UserError) as raised:
        answer_all(Faulty(number), ["Where?"])
    assert isinstance(raised.value.__cause__, ValueError)


def test_a_question_that_is_no_text_is_said():
    with pytest.raises(UserError, match=r"^question: expected text, got None$"):
        Answer()(question=None)


def test_a_call_that_is_refused_fails_its_question_alone():
    async def solve(program: Program, question: str) -> tuple[str, list[Passage]]:
        if question == "Where 0?":
            raise ContextWindowExceededError
        return "Lyon", []

    evaluation = evaluate(Faulty(solve), QUESTIONS)
    assert [row.failure is None for row in evaluation.rows] == [False, True, True, True]


def test_a_chain_of_thought_is_a_step():
    async def solve(program: Program, question: str) -> tuple[str, list[Passage]]:
        return (await program.step("first", question=question)).answer, []

    program = Faulty(solve)
    assert [name for name, _ in program.named_predictors()] == ["first"]
    said = {"reasoning": "It lies on the Saône.", "answer": "Lyon"}
    with dspy.context(lm=DummyLM([said])):
        prediction = program(question="Where?")
    assert prediction.answer == "Lyon"
    assert prediction.steps[0].outputs == said


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (lambda queries: [["a"] for _ in queries], r"a list of Passage for each of 2 queries; one of them is \['a'\]"),
        (lambda queries: [[]], "a list of Passage for each of 2 queries, got 1 of them"),
        (lambda queries: {}["index"], r"KeyError: 'index' \(.*test_plugins.py, line \d+\), asked \['one', 'two'\]"),
    ],
)
def test_a_mistake_in_a_retriever_of_ones_own_is_one_line(found, says):
    class Mistaken(Retriever):
        _answers = True  # another query was answered

        def search(self, queries, k):
            return found(queries)

    async def search_both() -> None:
        retriever = Mistaken()
        await asyncio.gather(retriever.asearch("one", 1), retriever.asearch("two", 1))

    with pytest.raises(UserError, match=rf"Mistaken.search: .*{says}") as raised:
        asyncio.run(search_both())
    assert not isinstance(raised.value, RefusedQueryError)  # which would fail one question alone


def test_options_are_those_of_the_constructor_alone():
    class Part(Optimizer):
        def __init__(self, given: object, size: Annotated[int, Field(ge=1)], *rest: int, loose=None, **more: int):
            pass

    assert set(options_model("part", Part, given=["given"]).model_fields) == {"name", "size", "loose"}


def test_a_retriever_keeps_the_name_that_it_has():
    class Named(Retriever):
        name = "mine"

        def search(self, queries, k):
            return [[] for _ in queries]

    class Child(Named):
        pass

    assert (Named.name, Child.name) == ("mine", "mine")
