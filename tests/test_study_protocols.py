"""Papers' protocols in studies: values chosen on dev, paired tests in the table, and work that cells share."""

import json
import re
import sys
from collections import Counter
from uuid import uuid4

import mlflow
import pandas as pd
import pytest
import yaml
from chat_server import ChatServer

from hoptimizer import Tracker, UserError, estimate_study, load_study, make_config, run_study
from hoptimizer.cli import main
from hoptimizer.eval.datasets import folder as folders
from hoptimizer.eval.display.sheet import Sheet
from hoptimizer.eval.statistics import Estimate, holm, sign_flip_p
from hoptimizer.retrieval.bm25 import BM25Retriever
from hoptimizer.study import cell_runs
from hoptimizer.study.choice import choice_sheet, choices
from hoptimizer.study.estimate import CellEstimate, StudyEstimate, known_costs
from hoptimizer.study.lines import Figures, Line, aggregate
from hoptimizer.study.significance import significance
from hoptimizer.study.table import figures_tested, sheets
from hoptimizer.tracking.naming import as_params

SEARCHING = {
    "data": {"name": "atlas", "train": 3, "dev": 4, "test": 6},
    "program": {"name": "rag", "reader": "none"},
    "retriever": "bm25",
    "metric": "recall",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db"


@pytest.fixture
def write(tmp_path, monkeypatch, store):
    """Writes a study file over ``SEARCHING``, with an experiment of its own in the store that all tests share."""
    monkeypatch.chdir(tmp_path)

    def written(name="small", **keys):
        tracking = {"uri": store, "experiment": f"{tmp_path.name}-{name}"}
        base = SEARCHING | {"tracking": tracking} | keys.pop("base", {})
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump({"base": base} | keys, sort_keys=False))
        return path

    return written


def logged(study, run_id, artifact):
    mlflow.set_tracking_uri(study.config.tracking.uri)
    return mlflow.artifacts.load_text(f"runs:/{run_id}/{artifact}")


def counted(monkeypatch, module, name):
    """Counts the calls of a function by the text of their first argument."""
    calls, function = Counter(), getattr(module, name)

    def counting(*args, **options):
        calls[str(args[0])] += 1
        return function(*args, **options)

    monkeypatch.setattr(module, name, counting)
    return calls


def test_the_best_values_on_dev_are_what_the_table_on_test_has(write, monkeypatch):
    path = write(
        cells=[{"name": "few", "choose": {"retriever.k": [2, 1]}}, {"name": "many"}, {"name": "six", "choose": {}}],
        choose={"grid": {"retriever.k": [1, 8]}, "by": "passages"},
        split="test",
        figures=["recall", "passages"],
    )
    study = load_study(path)
    assert [(cell.title, cell.split, cell.n) for cell in study.candidates] == [
        ("few, retriever.k=2", "dev", 4),
        ("few, retriever.k=1", "dev", 4),
        ("many, retriever.k=1", "dev", 4),
        ("many, retriever.k=8", "dev", 4),
    ]
    ran, score = [], cell_runs.evaluate_variant

    def run(config, **options):
        ran.append((options["name"], options["split"]))
        if options["name"] == "many, retriever.k=8" and ran.count(ran[-1]) == 1 and options["split"] == "dev":
            raise KeyboardInterrupt
        return score(config, **options)

    monkeypatch.setattr(cell_runs, "evaluate_variant", run)
    with pytest.raises(KeyboardInterrupt):
        run_study(study)
    result = run_study(study)
    assert ran[:3] == [("few, retriever.k=2", "dev"), ("few, retriever.k=1", "dev"), ("many, retriever.k=8", "dev")]
    assert ran[3:] == [
        ("many, retriever.k=8", "dev"),
        ("few, retriever.k=2", "test"),
        ("many, retriever.k=8", "test"),
        ("six", "test"),
    ], "what was tried before is not tried again"
    assert [choice.as_dict()["chosen"] for choice in result.choices] == [{"retriever.k": 2}, {"retriever.k": 8}]
    assert [(line.name, line.n, line.estimates["passages"].mean) for line in result.lines] == [
        ("few", 6, 2.0),
        ("many", 6, 8.0),
        ("six", 6, 4.0),
    ]
    chosen, complete = result.sheets
    assert chosen.title == "small: chosen by passages on dev, n = 4"
    assert chosen.rows[0] == ["few", "2", "2.00"]
    assert chosen.bold == {(0, 2), (3, 2)}
    assert [row[:2] for row in complete.rows] == [["few", "2"], ["many", "8"], ["six", "–"]]
    assert json.loads(logged(study, result.run_id, "study.json"))["choices"][1]["chosen"] == {"retriever.k": 8}
    ran.clear()
    again = run_study(study)
    assert ran == []
    assert again.choices == result.choices
    assert [outcome.run_id for outcome in again.outcomes] == [outcome.run_id for outcome in result.outcomes]


def test_the_table_of_what_is_chosen_says_on_how_many_questions(write):
    grid = {"data.dev": [3, 2]}
    study = load_study(write(grid=grid, choose={"grid": {"retriever.k": [1, 2]}}, split="test", base={"data": "atlas"}))
    assert choice_sheet(study, choices(study, [(cell, {}) for cell in study.candidates])).title.endswith("n = 2 to 3")


def test_a_table_says_which_questions_got_no_answer_or_no_verdict(write):
    study = load_study(write(grid={"retriever.k": [1, 2]}))
    scores = pd.DataFrame({"recall": [1.0, 0.0]})
    none_left_out = {"unanswered": 0.0, "judge_failures": 0.0}
    left_out = {"unanswered": 2.0, "judge_failures": 1.0}
    figures = [Figures({"recall": 0.5} | counts, {}, scores) for counts in (none_left_out, left_out)]
    lines = aggregate(study, list(zip(study.cells, figures, strict=True)))
    assert [line.as_dict()["unanswered"] for line in lines] == [0, 2]
    assert [sheet.note for sheet in sheets(study, lines)] == [
        "Questions that got no answer and are left out: 2 of retriever.k=2. "
        "Answers without a verdict, which accuracy leaves out: 1 of retriever.k=2."
    ]


def test_a_value_that_could_not_be_tried_leaves_the_choice_open(write, monkeypatch):
    study = load_study(write(cells=[{"name": "a"}], choose={"grid": {"retriever.k": [1, 2]}}, split="test"))
    score = cell_runs.evaluate_variant

    def run(config, **options):
        if config.retriever.k == 2:
            raise UserError("no such thing")
        return score(config, **options)

    with monkeypatch.context() as patch:
        patch.setattr(cell_runs, "evaluate_variant", run)
        result = run_study(study)
    assert [outcome.failure for outcome in result.failed] == [
        "no such thing",
        "1 of 2 values to choose from have no recall; the same command tries them again",
    ]
    again = run_study(study)
    assert again.failed == []
    assert again.outcomes[0].metrics["passages"] == 2


def test_what_was_compiled_to_choose_from_is_what_the_table_scores(write):
    base = {"program": "direct", "metric": "f1", "lm": {"default": {"max_tokens": 4}}}
    study = load_study(
        write(
            cells=[{"name": "shots", "choose": {"optimizer.k": [1, 2]}}],
            choose={"split": "dev"},
            base=base | {"data": {"name": "atlas", "train": 8, "dev": 1, "test": 1}, "optimizer": "labeled_few_shot"},
            compile=True,
            split="test",
            seeds=[1, 2],
        )
    )
    result = run_study(study)
    assert result.failed == []
    tried = result.tried[result.choices[0].chosen]
    client = mlflow.MlflowClient(study.config.tracking.uri)
    tags = [client.get_run(outcome.run_id).data.tags for outcome in result.outcomes]
    assert [tag["hop.kind"] for tag in tags] == ["eval", "compile"], "the other seed has its own demonstrations"
    assert tags[0]["hop.variant"] == tried.run_id
    assert all("compile_calls" in outcome.metrics for outcome in result.outcomes)
    demos = [
        json.loads(logged(study, run_id, "variant/program.json"))["reader"]["demos"]
        for run_id in (tried.run_id, result.outcomes[1].run_id)
    ]
    assert demos[0] != demos[1]
    assert (result.lines[0].seeds, result.sheets[-1].title.split(", ")[-1]) == (
        2,
        "mean ± standard deviation over 2 seeds",
    )


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"choose": {"grid": {"retriever.k": [1]}}}, ["choose.split", "dev as well", "split: test"]),
        ({"choose": {"by": "f1"}, "split": "test"}, ["choose.grid", "nothing to choose from"]),
        ({"cells": [{"name": "a", "choose": {"retriever.k": [1]}}]}, ["cell 'a'", "under choose"]),
        ({"choose": {"grid": {"program": ["rag"]}}, "split": "test"}, ["choose.grid: program: the grid sets it too"]),
        ({"choose": {"grid": {"seed": [1]}}, "split": "test"}, ["choose.grid: seed", "seeds"]),
        ({"choose": {"grid": {"retriever.k": [1, 1]}}, "split": "test"}, ["choose.grid.retriever.k", "twice"]),
        ({"choose": {"grid": {"retriever.kk": [1]}}, "split": "test"}, ["retriever.kk: unknown key"]),
        ({"choose": {"grid": {"retriever.k": [1, 2]}, "by": "f2"}, "split": "test"}, ["choose.by", "'f2'"]),
        ({"baseline": "rag"}, ["baseline: 'name' is not varied here"]),
        ({"baseline": {"program": "ragg"}}, ["baseline: program", "did you mean 'rag'"]),
        ({"at_once": 0}, ["at_once"]),
    ],
    ids=lambda value: json.dumps(value)[:50],
)
def test_a_mistake_is_one_line_before_anything_runs(write, keys, says):
    grid = {} if "cells" in keys else {"program": ["rag", {"name": "rag", "reader": "cot"}]}
    with pytest.raises(UserError) as error:
        load_study(write(grid=grid, **keys))
    for part in says:
        assert part in str(error.value)


def line(name, f1, recall=None, **place):
    scores = pd.DataFrame({"f1": f1} | ({"recall": recall} if recall else {}), index=[f"{i} ?" for i in range(len(f1))])
    estimates = {key: Estimate(scores[key].mean(), 0.0, 1.0, len(f1)) for key in scores}
    return Line(name, {"name": name, **place}, len(f1), 1, 0, estimates, scores)


def test_a_figure_is_bold_where_it_is_better_than_chance_allows(write):
    cells = [{"name": name, "retriever.k": k} for k, name in enumerate(("plain", "good", "alike"), 1)]
    study = load_study(write(cells=cells, figures=["f1", "recall"], base={"metric": "f1"}))
    plain, good = [0.0] * 12, [1.0] * 10 + [0.0] * 2
    lines = [line("plain", plain, plain), line("good", good, plain), line("alike", plain, [1.0] + [0.0] * 11)]
    tests = significance(study, lines, figures_tested(study, lines))
    assert (tests.best, tests.p) == ({("f1", 1)}, {}), "recall's best is no better than chance"
    assert "**83.3 [0.0, 100.0]**" in sheets(study, lines, (), tests)[-1].markdown()
    nearly = [*lines[:2], line("alike", [1.0] * 9 + [0.0] * 3)]
    assert significance(study, nearly, ["f1"]).best == frozenset()
    other = Line("good", {"name": "good"}, 3, 1, 0, lines[1].estimates, lines[1].scores.iloc[:3])
    assert significance(study, [lines[0], other], ["f1"]).best == frozenset(), "other questions"

    study = load_study(write(cells=cells, baseline="plain", figures=["f1", "recall"], base={"metric": "f1"}))
    tests = significance(study, nearly, ["f1", "recall", "passages"])
    assert tests.best == {("f1", 1)}, "better than the baseline"
    seed = study.config.seed
    raw = [sign_flip_p(plain, good, seed), sign_flip_p(plain, [1.0] * 9 + [0.0] * 3, seed)]
    assert list(tests.p["f1"].values()) == pytest.approx(holm(raw))
    text = sheets(study, nearly, (), tests)[-1].markdown()
    assert "| 75.0 [0.0, 100.0]† |" in text
    assert "better than plain. †: differs from plain (p < 0.05 in a paired sign-flip test" in text


def test_holms_correction_is_that_of_the_textbook():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_texts_mean_nothing_to_latex_and_html():
    attack = r"<b>&\input{x}_%$|</b>"
    sheet = Sheet(
        "f1 & more", ["name", "f1", "f1"], 1, [[attack, "[1]", "2.0 ± 1.0†"]], frozenset({(0, 2)}), "p < 0.05"
    )
    page, tex = sheet.html(), sheet.latex()
    assert "&lt;b&gt;&amp;" in page
    assert "<b>" not in page
    assert "p &lt; 0.05" in page
    assert r"$<$b$>$\&\textbackslash{}input\{x\}\_\%\$$|$$<$/b$>$ & {[}1]" in tex
    assert r"\bfseries 2.0 $\pm$ 1.0$^\dagger$" in tex
    assert r"\caption{f1 \& more. p $<$ 0.05}" in tex
    assert "\\begin{tabular}{lrr}\n\\toprule" in tex


def test_the_bold_cells_of_a_table_are_bold_in_it_alone():
    pages = [
        Sheet("scores", ["name", "f1"], 1, [["a", number]], frozenset({(0, 1)})).html() for number in ("1.0", "2.0")
    ]
    rules = [set(re.findall(r"#(T_\w+)", page)) for page in pages]
    assert [len(rule) for rule in rules] == [1, 1]
    assert rules[0] != rules[1]
    assert all(next(iter(rule)) in page for rule, page in zip(rules, pages, strict=True))


def test_cells_share_their_data_their_index_and_their_rankings(write, monkeypatch, tmp_path):
    folders.new(tmp_path / "mine")
    passage = {"id": "new", "title": "", "text": f"An index of its own: {uuid4()}."}
    with (tmp_path / "mine" / "corpus.jsonl").open("a") as corpus:
        corpus.write(json.dumps(passage) + "\n")
    read, written = counted(monkeypatch, folders, "read_folder"), counted(monkeypatch, BM25Retriever, "_write")
    asked, search = [], BM25Retriever.search

    def searching(self, queries, k):
        asked.extend(queries)
        return search(self, queries, k)

    monkeypatch.setattr(BM25Retriever, "search", searching)
    base = {"data": {"name": "mine"}}
    study = load_study(write("own", grid={"retriever.k": [2, 1]}, seeds=[1, 2], base=base))
    result = run_study(study)
    assert result.failed == []
    assert [line.estimates["passages"].mean for line in result.lines] == [2.0, 1.0]
    assert sum(read.values()) == sum(written.values()) == 1
    assert len(asked) == len(set(asked)) == study.cells[0].n
    timed = load_study(write("timed", grid={"retriever.k": [2, 1]}, base=base | {"lm": {"default": {"cache": False}}}))
    asked.clear()
    assert run_study(timed).failed == []
    assert len(asked) == 2 * timed.cells[0].n, "without a cache, nothing comes from another cell"


def test_seconds_are_measured_anew_with_other_questions_beside(write):
    path = write(grid={"retriever.k": [1]}, base={"lm": {"default": {"cache": False}}})
    [many, few] = [load_study(path, [f"workers={number}"]) for number in (64, 1)]
    assert many.work(many.cells[0]) != few.work(few.cells[0])
    cached = [load_study(path, [f"workers={number}", "lm.default.cache=true"]) for number in (64, 1)]
    assert len({study.work(study.cells[0]) for study in cached}) == 1, "the same answers"


@pytest.fixture(scope="module")
def asked_before():
    """What was answered with another number of cells at once."""
    return {}


def answering(body):
    """A scripted model: it says how long the prompt is, so that another prompt has another answer."""
    return f"[[ ## answer ## ]]\n{len(str(body['messages']))}\n\n[[ ## completed ## ]]"


@pytest.mark.parametrize("at_once", [1, 4, None])
def test_the_same_call_is_made_once_however_many_cells_make_it_at_once(write, asked_before, at_once):
    with ChatServer(answering, seconds=0.05, together=1 if at_once == 1 else 5) as server:
        base = {
            "lm": {"default": {"model": f"openai/m{at_once}", "api_base": server.url, "api_key": "none"}},
            "program": {"name": "rag", "reader": "direct"},
            "metric": "f1",
        }
        cells = [
            {"name": "direct", "program": "direct"},
            {"name": "direct as well", "program": "direct", "retriever.k": 2},
            {"name": "rag", "retriever.k": 1},
            {"name": "more", "retriever.k": 2},
        ]
        study = load_study(write(cells=cells, base=base, at_once=at_once))
        result = run_study(study)
    assert result.failed == []
    assert [outcome.cell.name for outcome in result.outcomes] == [cell["name"] for cell in cells]
    prompts = [json.dumps(body["messages"]) for body in server.bodies]
    assert len(prompts) == len(set(prompts)) == 3 * 4, "two of four cells ask the same"
    shared, same = (outcome.metrics for outcome in result.outcomes[:2])
    timeless = {name for name in shared if "seconds" not in name and name != "cached_tokens"}
    assert {name: shared[name] for name in timeless} == {name: same[name] for name in timeless}
    assert server.most <= 4 if at_once == 1 else server.most > 4
    tables = [json.loads(logged(study, outcome.run_id, "predictions/dev-after.json")) for outcome in result.outcomes]
    answers = [[row[table["columns"].index("answer")] for row in table["data"]] for table in tables]
    assert answers[0] == answers[1] != answers[2]
    assert answers == asked_before.setdefault("answers", answers), "the same as one cell after the other"


def test_cells_with_other_models_behind_a_server_are_under_way_together(write):
    with ChatServer(answering, together=8) as server:
        lm = {"model": "openai/one", "api_base": server.url, "api_key": "none"}
        base = {"lm": {"default": lm}, "program": {"name": "direct"}, "metric": "f1"}
        cells = [{"name": name, "lm.default.model": f"openai/{name}"} for name in ("one", "another")]
        result = run_study(load_study(write(cells=cells, base=base, at_once=2)))
    assert result.failed == []
    assert Counter(body["model"] for body in server.bodies) == {"one": 4, "another": 4}
    assert server.most == 8


@pytest.mark.parametrize("changed", [{"default": {"cache": False}}, {"judge": "local/smollm2-135m-instruct"}], ids=str)
def test_cells_that_measure_time_or_have_a_local_model_are_run_one_after_the_other(write, changed):
    with ChatServer(answering, seconds=0.05, together=4) as server:
        lm = {"model": f"openai/{next(iter(changed))}", "api_base": server.url, "api_key": "none"}
        models = {"default": lm | changed.get("default", {})} | {k: v for k, v in changed.items() if k != "default"}
        base = {"lm": models, "program": {"name": "rag", "reader": "direct"}, "metric": "f1"}
        result = run_study(load_study(write(grid={"retriever.k": [1, 2, 3]}, base=base)))
    assert result.failed == []
    assert (len(server.bodies), server.most) == (12, 4), "the four questions of a cell, and of no other"


def test_what_a_whole_compile_spent_is_not_the_cost_of_a_question(tmp_path):
    # The price of the student is not known, and its teacher's is.
    logged = {"dev/lm_calls": 1.0, "workings/dev/prompt_tokens": 200.0, "workings/estimate/usd": 0.0}
    logged |= {"workings/spent/prompt_tokens": 9e6, "workings/spent/usd": 1.2}
    config = make_config({"data": "atlas", "program": "direct"})
    tracker = Tracker(f"sqlite:///{tmp_path}/mlflow.db", "atlas")
    with tracker.run("eval", "earlier") as run:
        mlflow.log_params(as_params(config.deciding))
        mlflow.log_metrics(logged)
    found, _ = known_costs(config, [tracker.get(run.info.run_id)])
    assert found == {"lm_calls": 1.0, "prompt_tokens": 200.0}


@pytest.mark.parametrize(
    ("lm", "usd"),
    [
        (
            "openai/gpt-4o-mini",
            2e-4,
        ),  # 1,000 tokens read at $0.15 a million, 100 written at $0.60: 0.00021, but as paid
        ("openai/gpt-4o", 35e-4),
        ("openai/of-an-unknown-price", None),
        ("local/smollm2-135m-instruct", None),
        ({"default": "openai/gpt-4o", "reader": "openai/gpt-4o-mini"}, None),
    ],
    ids=str,
)
def test_tokens_of_another_models_run_have_the_price_of_the_model_that_is_to_be_asked(tmp_path, lm, usd):
    made = make_config({"data": "atlas", "program": "direct", "lm": "openai/gpt-4o-mini"})
    tracker = Tracker(f"sqlite:///{tmp_path}/mlflow.db", "atlas")
    with tracker.run("eval", "earlier") as run:
        mlflow.log_params(as_params(made.deciding))
        tokens = {"workings/dev/prompt_tokens": 1000.0, "workings/dev/completion_tokens": 100.0}
        mlflow.log_metrics({"dev/lm_calls": 1.0, "dev/usd": 2e-4} | tokens)
    found, _ = known_costs(
        make_config({"data": "atlas", "program": "direct", "lm": lm}), [tracker.get(run.info.run_id)]
    )
    assert found["prompt_tokens"] == 1000
    assert found.get("usd") == (None if usd is None else pytest.approx(usd))


def test_an_estimate_asks_a_few_questions_and_an_earlier_run_tells_more(write, monkeypatch, capsys):
    def said(*words):
        monkeypatch.setattr(sys, "argv", ["hop", "study", str(path), "--json", *words])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        assert not end.value.code
        return json.loads(out), err

    with ChatServer(answering) as server:
        lm = {"model": "openai/estimated", "api_base": server.url, "api_key": "none"}
        base = {"program": "direct", "metric": "f1", "lm": {"default": lm}}
        path = write(grid={"retriever.k": [1, 2]}, base=base)
        expected, _ = said("--estimate")
        assert len(server.bodies) == 3, "the same questions of both cells"
        assert (expected["finished"], expected["total"]["lm_calls"], expected["total"]["prompt_tokens"]) == (
            0,
            8.0,
            800.0,
        )
        assert [cell["basis"] for cell in expected["cells"]] == ["its first 3 questions"] * 2
        _, told = said()
        assert "study small: 2 runs to come, 0 finished; 8 questions; no run tells yet what 2 of them will cost" in told
        assert len(server.bodies) == 4, "what was asked is not asked again"
        after, _ = said("--estimate", "data.dev=6")
        assert after["cells"][0]["basis"] == "a run of the same program and model"
        assert (after["total"]["lm_calls"], len(server.bodies)) == (12.0, 4)
        assert (said("--estimate")[0]["finished"], said("--estimate")[0]["older"]) == (2, {})


def test_an_estimate_asks_with_the_demonstrations_that_a_compile_will_show(write):
    def usage(body):
        return {"prompt_tokens": len(str(body["messages"])), "completion_tokens": 1, "total_tokens": 1}

    with ChatServer(answering, usage=usage) as server:
        lm = {"model": "openai/shown", "api_base": server.url, "api_key": "none"}
        few_shot = {"name": "labeled_few_shot", "prompt_formats": []}
        data = {"name": "atlas", "train": 8, "dev": 3, "test": 3}
        base = {"program": "direct", "metric": "f1", "lm": {"default": lm}, "data": data, "optimizer": few_shot}
        cells = [
            {"name": "bare", "compile": False},
            {"name": "three", "optimizer.k": 3},
            {"name": "simba", "optimizer": {"name": "simba"}},
        ]
        path = write(cells=cells, base=base, compile=True, split="test")
        bare, shown, unknown = estimate_study(load_study(path)).cells
        tokens = [cell.of_each["prompt_tokens"] for cell in (bare, shown, unknown)]
        assert tokens[1] > 1.5 * tokens[0] == 1.5 * tokens[2]
        assert (shown.basis, unknown.basis) == ("its first 3 questions", "its first 3 questions, before compiling")
        asked = len(server.bodies)
        result = run_study(load_study(path, only=["bare", "three"]))
    assert [outcome.metrics["prompt_tokens"] for outcome in result.outcomes] == pytest.approx(tokens[:2])
    questions = [body["messages"][-1]["content"] for body in server.bodies[asked:]]
    assert len(questions) == len(set(questions)) == 3, "dev, which the compile is scored on; test is in the cache"
    compiled = mlflow.MlflowClient(result.study.config.tracking.uri).get_run(result.outcomes[1].run_id).data.metrics
    told, spent = (compiled[f"workings/{of}/prompt_tokens"] for of in ("estimate", "spent"))
    assert told == pytest.approx(spent), "the questions that are asked for the estimate are scored, too"


def test_an_estimate_says_which_cell_can_not_be_asked(write):
    broken = {
        "name": "broken",
        "program": {"name": "efficient_rag", "steps": {"labeler": "/nowhere"}, "reader": "none"},
    }
    failed, rag = estimate_study(load_study(write(cells=[broken, {"name": "rag"}]))).cells
    assert (failed.name, failed.of_each) == ("broken on dev", {})
    assert failed.basis.startswith("not known: small model '/nowhere'")
    assert rag.of_each["lm_calls"] == 0


def test_a_run_that_is_not_compiled_does_not_tell_what_a_compiled_one_costs(tmp_path):
    config = make_config({"data": "atlas", "program": "direct", "optimizer": "labeled_few_shot"})
    tracker = Tracker(f"sqlite:///{tmp_path}/mlflow.db", "atlas")
    runs = {}
    for kind, tokens in (("compile", 900.0), ("eval", 100.0)):
        with tracker.run(kind, kind) as run:
            mlflow.log_params(as_params(config.deciding))
            mlflow.log_metrics({"dev/lm_calls": 1.0, "workings/dev/prompt_tokens": tokens})
        runs[kind] = tracker.get(run.info.run_id)
    both = [runs["eval"], runs["compile"]]
    assert known_costs(config, both, compiled=True)[0]["prompt_tokens"] == 900
    assert known_costs(config, both[::-1], compiled=False)[0]["prompt_tokens"] == 100
    assert known_costs(config, [runs["eval"]], compiled=True) == ({}, "not known")


def test_the_line_of_an_estimate_has_tokens_and_dollars_where_they_are_known():
    costs = {"lm_calls": 2.0, "prompt_tokens": 1500.0, "completion_tokens": 30.0, "usd": 0.004}
    known = CellEstimate("a", 1000, False, costs, "a run")
    unpriced = CellEstimate("b", 10, False, {name: costs[name] for name in costs if name != "usd"}, "a run")
    unknown = CellEstimate("c", 10, False, {}, "not known")
    line = StudyEstimate("small", 0, {}, [known, unknown]).line
    assert "about 2,000 calls of language models, cached ones among them" in line
    assert "; about 1,500,000 prompt and 30,000 completion tokens; about $4.00; no run tells yet what 1 of" in line
    line = StudyEstimate("small", 0, {}, [known, unpriced]).line
    assert "; about 1,515,000 prompt and 30,300 completion tokens" in line
    assert "$" not in line


def test_a_study_says_which_of_its_runs_another_version_made(write):
    study = load_study(write(base={"program": {"name": "rag", "reader": "none"}}, grid={"retriever.k": [1, 2]}), [])
    result = run_study(study)
    client = mlflow.MlflowClient(study.config.tracking.uri)
    client.set_tag(result.outcomes[0].run_id, "hop.version", "0.0.1")
    client.delete_tag(result.outcomes[1].run_id, "hop.version")
    assert estimate_study(study).older == {"0.0.1": 1, "unknown": 1}
    assert "2 finished (1 by version 0.0.1, 1 by version unknown; delete a run" in estimate_study(study).line


def test_a_cell_that_fails_beside_others_fails_alone(write):
    with ChatServer(answering) as server:
        lm = {"model": "openai/beside", "api_base": server.url, "api_key": "none", "cache": False}
        base = {"lm": {"default": lm}, "program": {"name": "rag", "reader": "direct"}, "metric": "f1"}
        broken = {"name": "broken", "program": {"name": "efficient_rag", "steps": {"labeler": "/nowhere"}}}
        study = load_study(write(cells=[{"name": "rag"}, broken, {"name": "last"}], base=base, at_once=3))
        result = run_study(study)
    assert [outcome.status for outcome in result.outcomes] == ["finished", "failed", "finished"]
    assert "/nowhere" in result.outcomes[1].failure


def test_a_study_can_be_limited_to_some_of_its_rows(write):
    cells = [{"name": "few", "retriever.k": 1}, {"name": "many", "retriever.k": 8}, {"name": "x=1", "retriever.k": 3}]
    path = write(cells=cells, grid={"data.dev": [2, 4]})
    assert len(load_study(path).cells) == 6
    assert [cell.name for cell in load_study(path, only=["many"]).cells] == ["many, data.dev=2", "many, data.dev=4"]
    assert [cell.name for cell in load_study(path, only=["data.dev=4", "few", "x=1"]).cells] == [
        "few, data.dev=4",
        "x=1, data.dev=4",
    ]
    for row in ("data.dev=3", "man", "data.dev"):
        with pytest.raises(UserError, match=r"small.yaml: --only: there is no row '.*'; .*(many|data.dev=4)"):
            load_study(path, only=[row])


def test_the_baseline_of_a_limited_study_stays_if_its_row_does(write):
    cells = [{"name": "few", "retriever.k": 1}, {"name": "many", "retriever.k": 8}]
    path = write(cells=cells, grid={"data.dev": [2, 4]}, baseline={"name": "few"})
    assert load_study(path, only=["few", "data.dev=4"]).file.baseline == {"name": "few"}
    assert load_study(path, only=["many"]).file.baseline is None
