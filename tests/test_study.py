"""Studies: cells from a file, their runs in a real MLflow store, and the table over them.

Scores are the embedded language model's, where control flow alone matters too: two questions take it a second.
"""

import json
import sys
from statistics import fmean, stdev

import mlflow
import pandas as pd
import pytest
import yaml
from chat_server import ChatServer

from hoptimizer import (
    Tracker,
    UserError,
    Workbench,
    compare_variants,
    compile_variant,
    load_config,
    load_study,
    run_study,
)
from hoptimizer.cli import main
from hoptimizer.comparison.sheets import scores_sheet
from hoptimizer.eval.datasets.folder import new
from hoptimizer.eval.display.format import figure_of
from hoptimizer.study import cell_runs
from hoptimizer.study.lines import Line
from hoptimizer.study.significance import significance
from hoptimizer.study.table import sheets

BASE = {
    "data": {"name": "atlas", "train": 4, "dev": 2},
    "program": "direct",
    "retriever": "bm25",
    "lm": {"default": {"model": "local/smollm2-135m-instruct", "max_tokens": 8}},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db"


@pytest.fixture
def write(tmp_path, monkeypatch, store):
    """Writes a study file over ``BASE``, with an experiment of its own in the store that all tests share."""
    monkeypatch.chdir(tmp_path)

    def written(**keys):
        tracking = {"uri": store, "experiment": tmp_path.name}
        base = BASE | {"tracking": tracking} | keys.pop("base", {})
        path = tmp_path / "small.yaml"
        path.write_text(yaml.safe_dump({"base": base} | keys, sort_keys=False))
        return path

    return written


def client(study):
    return mlflow.MlflowClient(study.config.tracking.uri)


def parents(study):
    experiment = client(study).get_experiment_by_name(study.config.experiment)
    return client(study).search_runs([experiment.experiment_id], "tags.`hop.kind` = 'study'")


def children(study, run_id):
    experiment = client(study).get_run(run_id).info.experiment_id
    return client(study).search_runs([experiment], f"tags.mlflow.parentRunId = '{run_id}'")


def breaking(monkeypatch, error, at):
    """Lets a cell end in an error, once its run is under way; gives the names of the cells that were run."""
    ran = []
    score = cell_runs.evaluate_variant

    def run(config, **options):
        ran.append(options["name"])
        if options["name"] != at:
            return score(config, **options)

        def report(*progress):
            raise error

        return score(config, **(options | {"report": report}))

    monkeypatch.setattr(cell_runs, "evaluate_variant", run)
    return ran


def test_a_grid_is_the_product_of_its_values_cells_and_seeds(write):
    path = write(
        cells=[
            {"name": "one", "program": "rag"},
            {"name": "many", "program": {"name": "ircot", "max_steps": 3}, "compile": True},
        ],
        grid={"retriever.k": [1, 2], "lm.default.temperature": [0.0, 0.7]},
        seeds=[1, 2, 3],
    )
    study = load_study(path)
    assert len(study.cells) == 2 * 2 * 2 * 3
    first, last = study.cells[0], study.cells[-1]
    assert first.name == "one, retriever.k=1, lm.default.temperature=0.0"
    assert [cell.config.seed for cell in study.cells[:4]] == [1, 2, 3, 1]
    assert (last.config.program.name, last.config.program.max_steps, last.config.retriever.k) == ("ircot", 3, 2)
    assert (first.compiled, last.compiled) == (False, True)
    assert last.config.lm["default"].temperature == 0.7
    assert last.config.lm["default"].max_tokens == 8, "what the base says stands"
    assert first.n == 2


def test_a_value_lies_over_the_base_as_an_argument_does(write, caplog):
    base = {"program": {"name": "ircot", "max_steps": 3}, "tracking": {}}
    path = write(base=base, grid={"program": ["rag", {"name": "rag", "reader": "cot"}, {"name": "ircot"}]})
    programs = [cell.config.program for cell in load_study(path).cells]
    assert [program.name for program in programs] == ["rag", "rag", "ircot"]
    assert (programs[1].reader, programs[2].max_steps) == ("cot", 3)
    assert not caplog.messages, "that rag has none of ircot's options is no news"
    named = ["bm25", {"name": "colbert", "checkpoint": "minilm"}]
    path = write(base={"program": "rag", "retriever": {"k": 6}}, grid={"retriever": named})
    assert [cell.config.k for cell in load_study(path).cells] == [6, 6]
    path = write(base={"program": "rag", "retriever": {"name": "dense", "k": 6}}, grid={"retriever": named})
    assert [cell.config.k for cell in load_study(path).cells] == [4, 4]
    assert [note.partition(";")[0] for note in caplog.messages] == [
        f"retriever: {name} takes the place of dense, whose k is dropped" for name in ("bm25", "colbert")
    ]
    path = write(cells=[{"name": "a", "program.reader": "cot"}], grid={"program": ["direct", "rag"]}, base=base)
    assert [cell.config.program.reader for cell in load_study(path).cells] == ["cot", "cot"]
    assert load_study(path).config.experiment == "small", "the file's name, where the base names none"


def test_arguments_change_the_base_and_the_file_decides_what_is_run(write):
    path = write(grid={"retriever.k": [1, 2]})
    study = load_study(path)
    assert load_study(path, ["data.dev=1"]).cells[1].n == 1
    assert load_study(path, ["data.dev=1"]).digest != study.digest
    shown = load_study(write(grid={"retriever.k": [1, 2]}, columns="retriever.k", plot={"x": "retriever.k"}))
    assert shown.digest == study.digest, "how it is shown does not count"


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({}, ["grid", "nothing to vary"]),
        ({"grids": {"retriever.k": [1]}}, ["grids: unknown key", "'grid'"]),
        ({"grid": {"retriever.k": []}}, ["grid.retriever.k"]),
        ({"grid": {"retriever.k": 3}}, ["grid.retriever.k", "list"]),
        ({"grid": {"retriever.k": [1, 1]}}, ["grid.retriever.k", "twice"]),
        ({"grid": {"retriever.kk": [1]}}, ["cell 'retriever.kk=1'", "retriever.kk: unknown key"]),
        ({"grid": {"retriever.k": [1, 0]}}, ["cell 'retriever.k=0'", "greater than or equal to 1"]),
        ({"grid": {"program": ["rag", "irct"]}}, ["cell 'program=irct'", "did you mean 'ircot'"]),
        ({"grid": {"data": ["atlas", "some/nowhere"]}}, ["cell 'data=some/nowhere'", "no such folder"]),
        ({"grid": {"seed": [1, 2]}}, ["grid: seed", "seeds"]),
        ({"grid": {"lm.default.extra_headers": [{"X": "a"}, {"X": "b"}]}}, ["extra_headers: secrets"]),
        ({"grid": {"lm.default": [{"model": "openai/x", "api_key": key} for key in "ab"]}}, ["twice"]),
        ({"grid": {"tracking.uri": ["x"]}}, ["grid: tracking.uri", "under base"]),
        ({"cells": [{"program": "rag"}]}, ["cells.0.name", "required"]),
        ({"cells": [{"name": "a"}, {"name": "a"}]}, ["cells", "'a' is there twice"]),
        ({"cells": [{"name": "a", "program": "rag"}], "grid": {"program": ["cot"]}}, ["cell 'a'", "program", "grid"]),
        ({"grid": {"retriever.k": [1]}, "split": "tset"}, ["'tset'"]),
        ({"grid": {"retriever.k": [1]}, "rows": "retriever.j"}, ["rows: 'retriever.j'", "did you mean"]),
        ({"grid": {"retriever.k": [1], "program": ["rag"]}, "rows": "program"}, ["rows: retriever.k", "columns"]),
        ({"grid": {"program": ["rag"]}, "plot": {"x": "program"}}, ["plot.x", "'rag'", "numbers"]),
        ({"grid": {"retriever.k": [1]}, "plot": {"x": "retriever.k", "y": "f2"}}, ["plot.y", "'f2'"]),
        ({"grid": {"retriever.k": [1]}, "figures": "lm_call"}, ["figures", "'lm_call'", "did you mean 'lm_calls'?"]),
        ({"grid": {"retriever.k": [1]}, "seeds": [1, "two"]}, ["seeds.1", "integer"]),
    ],
    ids=lambda value: json.dumps(value)[:50],
)  # fmt: skip
def test_a_mistake_in_the_file_is_one_line_before_anything_runs(write, tmp_path, keys, says):
    with pytest.raises(UserError) as error:
        load_study(write(**keys, base={"tracking": {"uri": f"sqlite:///{tmp_path}/mlflow.db"}}))
    message = str(error.value)
    for part in ["small.yaml", *says]:
        assert part in message
    assert "\n" not in message
    assert not (tmp_path / "mlflow.db").exists()


def test_a_key_to_a_server_is_neither_named_nor_shown(write):
    path = write(grid={"lm.default": [{"model": "openai/x", "api_key": "sk-secret"}]})
    [cell] = load_study(path).cells
    assert cell.config.lm["default"].api_key.get_secret_value() == "sk-secret"
    assert "sk-secret" not in f"{cell.name} {cell.place} {cell.overrides}"
    with pytest.raises(UserError, match=r"known: lm\.default=openai/x api_key=\*\*\*"):
        load_study(path, only=["lm.default=openai/y"])


def test_a_baseline_with_a_key_is_the_row_that_has_it(write):
    models = [{"model": f"openai/{name}", "api_key": "sk-secret"} for name in "xy"]
    study = load_study(write(grid={"lm.default": models}, baseline={"lm.default": models[0]}))
    lines = [
        Line(cell.name, cell.place, 8, 1, 0, {}, pd.DataFrame({"f1": [score] * 8}))
        for cell, score in zip(study.cells, (0.0, 1.0), strict=True)
    ]
    assert significance(study, lines, ["f1"]).p["f1"].keys() == {1}


def test_a_study_that_was_interrupted_continues_where_it_was(write, monkeypatch):
    study = load_study(write(grid={"lm.default.max_tokens": [6, 8, 10]}))
    names = [cell.name for cell in study.cells]
    with monkeypatch.context() as patch:
        ran = breaking(patch, KeyboardInterrupt(), at=names[1])
        with pytest.raises(KeyboardInterrupt):
            run_study(study)
    assert ran == names[:2]
    [parent] = parents(study)
    before = {run.info.run_name: run.info for run in children(study, parent.info.run_id)}
    assert parent.info.status == before[names[1]].status == "KILLED"

    ran = breaking(monkeypatch, None, at=None)
    result = run_study(study)
    assert ran == names[1:], "the finished cell is not run again"
    assert result.run_id == parent.info.run_id
    assert [outcome.run_id for outcome in result.outcomes[:2]] == [before[name].run_id for name in names[:2]]
    assert {run.info.status for run in children(study, result.run_id)} == {"FINISHED"}
    assert len(children(study, result.run_id)) == 3
    assert all(f">{sheet.rows[-1][0]}<" in result._repr_html_() for sheet in result.sheets)
    assert client(study).get_run(result.run_id).info.status == "FINISHED"
    ran.clear()
    assert run_study(study).as_dict() == result.as_dict()
    assert ran == []


def test_the_same_command_gives_the_same_figures_to_the_last_digit(write):
    data = {"name": "atlas", "dev": 24}  # among them questions of three hops, whose recall has no last digit
    path = write(base={"data": data, "program": {"name": "rag", "reader": "none"}}, grid={"retriever.k": [2, 4]})
    assert run_study(load_study(path)).as_dict()["table"] == run_study(load_study(path)).as_dict()["table"]


def test_a_server_is_asked_once_a_study_for_each_query_and_again_by_the_next(write):
    with ChatServer() as server:
        served = []
        server.get = lambda: served.append(1) or (200, {"topk": [{"text": "Lyon | A city.", "pid": 1, "score": 2.0}]})
        retriever = {"name": "colbert", "url": server.url, "k": 1}
        base = {"program": {"name": "rag", "reader": "none"}, "retriever": retriever}
        for longest in (4, 6):  # of what no model is asked for: other cells, and the same queries
            result = run_study(load_study(write(base=base, grid={"lm.default.max_tokens": [longest, longest + 1]})))
            assert [outcome.metrics["retrievals"] for outcome in result.outcomes] == [1.0, 1.0]
            assert len(served) == 2, "of each of the two questions"
            served.clear()


def test_cells_with_several_retrievers_in_turn_load_each_once(write):
    of = ["bm25", "bm25"]
    retrievers = ["bm25", *({"name": "hybrid", "of": of, "depth": depth} for depth in (5, 10))]
    configs = [load_config(None, [], BASE | {"retriever": one}) for one in retrievers]
    first, second = ([Workbench(config).retriever for config in configs] for _ in range(2))
    assert all(one is other for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("error", [UserError("no such thing"), ZeroDivisionError("no\nway")], ids=["mistake", "bug"])
def test_a_cell_that_fails_is_kept_as_failed_and_does_not_stop_the_rest(write, monkeypatch, error):
    study = load_study(write(grid={"lm.default.max_tokens": [6, 8]}, columns="lm.default.max_tokens"))
    with monkeypatch.context() as patch:
        breaking(patch, error, at=study.cells[0].name)
        result = run_study(study)
    assert [outcome.status for outcome in result.outcomes] == ["failed", "finished"]
    failed = client(study).get_run(result.outcomes[0].run_id)
    assert failed.info.status == client(study).get_run(result.run_id).info.status == "FAILED"
    assert failed.data.tags["hop.failure"] == result.outcomes[0].failure
    assert result.outcomes[0].failure in ("no such thing", "ZeroDivisionError: no way")
    assert [line.failed for line in result.lines] == [1, 0]
    assert sheets(study, result.lines)[0].rows[0][0] == "failed"

    again = run_study(study)
    assert [outcome.run_id for outcome in again.outcomes] == [outcome.run_id for outcome in result.outcomes]
    mended = client(study).get_run(failed.info.run_id)
    assert (mended.info.status, "hop.failure" in mended.data.tags) == ("FINISHED", False)
    assert client(study).get_run(result.run_id).info.status == "FINISHED"


def test_a_cell_that_fails_before_its_run_has_one_all_the_same(write):
    study = load_study(write(grid={"lm.default.model": ["local/no-such-model"]}))
    result = run_study(study)
    [run] = children(study, result.run_id)
    assert (run.info.status, run.info.run_id) == ("FAILED", result.outcomes[0].run_id)
    assert "no-such-model" in run.data.tags["hop.failure"]


def test_the_table_has_means_and_deviations_over_seeds(write):
    study = load_study(
        write(
            cells=[{"name": "few shots", "program": "rag", "compile": True}, {"name": "none", "program": "rag"}],
            grid={"retriever.k": [1, 2]},
            base={"data": {"name": "atlas", "train": 2, "dev": 1}, "optimizer": {"name": "labeled_few_shot", "k": 1}},
            seeds=[1, 2],
            columns="retriever.k",
            plot={"x": "retriever.k", "y": "recall"},
        )
    )
    result = run_study(study)
    assert [outcome.status for outcome in result.outcomes] == ["finished"] * 8
    for number, row in enumerate(result.as_dict()["table"]):
        seeds = [outcome.metrics for outcome in result.outcomes[2 * number : 2 * number + 2]]
        for name in ("f1", "passages", "lm_calls", "retrievals"):
            assert row[name] == pytest.approx(fmean(metrics[name] for metrics in seeds))
            assert row[f"{name}_sd"] == pytest.approx(stdev(metrics[name] for metrics in seeds))
        assert (row["seeds"], row["failed"], row["n"]) == (2, 0, 1)
    crossed, complete = sheets(study, result.lines)
    assert crossed.header == ["name", "k 1", "k 2"]
    assert [row[0] for row in crossed.rows] == ["few shots", "none"]
    assert all("±" in figure for row in crossed.rows for figure in row[1:])
    assert complete.header[:4] == ["name", "k", "em", "f1"]
    assert len(complete.rows) == 4
    runs = children(study, result.run_id)
    assert {run.data.tags["hop.kind"] for run in runs} == {"compile", "eval"}
    logged = {item.path for item in client(study).list_artifacts(result.run_id)}
    assert logged == {f"study.{end}" for end in ("json", "csv", "md", "tex", "html")} | {"scores.png", "curve.png"}


def test_with_one_seed_the_table_has_intervals_over_the_questions(write):
    study = load_study(
        write(
            base={
                "data": {"name": "atlas", "dev": 4},
                "program": {"name": "rag", "reader": "none"},
                "metric": "recall",
            },
            grid={"retriever.k": [1, 3]},
            figures=["f1", "recall"],
        )
    )
    result = run_study(study)
    tracker = Tracker(study.config.tracking.uri, study.config.experiment)
    compared = compare_variants(tracker, [o.run_id for o in result.outcomes], metric="recall", seed=study.config.seed)
    for row, variant in zip(result.as_dict()["table"], compared.variants, strict=True):
        estimate = variant.estimates["recall"]
        shown = [row["recall"], row["recall_low"], row["recall_high"]]
        assert shown == pytest.approx([estimate.mean, estimate.low, estimate.high]), "tables in MLflow have ten digits"
        assert row["recall_sd"] is None
    [sheet] = sheets(study, result.lines)
    assert sheet.title == "small on dev, n = 4, 95% intervals"
    assert ["[" in figure for figure in sheet.rows[1]] == [False, False, True]


def test_a_program_that_never_searches_has_no_recall_in_any_table(write):
    cells = [{"name": name, "program": name} for name in ("direct", "rag")]
    study = load_study(write(cells=cells, baseline={"name": "rag"}))
    result = run_study(study)
    assert (result.significance.p["recall"].keys(), result.significance.p["f1"].keys()) == (set(), {0})
    tracker = Tracker(study.config.tracking.uri, study.config.experiment)
    compared = compare_variants(tracker, [outcome.run_id for outcome in result.outcomes])
    for sheet in (*sheets(study, result.lines), scores_sheet(compared)):
        recall, passages = (sheet.header.index(name) for name in ("recall", "passages"))
        assert [row[recall] == "–" for row in sheet.rows] == [True, False]
        assert sheet.rows[0][passages] == "0.00"
    assert [figure_of("recall", outcome.metrics) == "–" for outcome in result.outcomes] == [True, False]


def test_every_cell_starts_from_a_variant_and_the_table_shows_the_figures_asked_for(write, tmp_path, store):
    words = ["data=atlas", "data.train=2", "data.dev=2", "program=rag", "retriever=bm25", "lm.default.max_tokens=8"]
    words += ["optimizer=labeled_few_shot", "optimizer.prompt_formats=[plain]", f"tracking.uri={store}"]
    config = load_config(None, [*words, f"tracking.experiment={tmp_path.name}"])
    variant = compile_variant(config)
    path = write(
        base={"program": "rag", "data": {"dev": 1}},
        grid={"retriever.k": [1, 2]},
        figures=["recall", "subquestions", "lm_calls"],
        plot={"x": "retriever.k", "y": "iterations"},
    )
    study = load_study(path, run_id=variant.run_id, variant=config.public())
    assert [cell.config.optimizer.name for cell in study.cells] == ["labeled_few_shot"] * 2
    assert (study.cells[0].config.data.train, study.cells[0].n) == (2, 1)
    assert study.digest != load_study(path, variant=config.public()).digest
    other = load_study(
        write(base={"optimizer": {"name": "distill"}}, grid={"retriever.k": [1]}),
        run_id=variant.run_id,
        variant=config.public(),
    )
    assert other.config.optimizer.name == "distill", "without the options of the variant's optimizer"
    result = run_study(study)
    runs = children(study, result.run_id)
    assert {run.data.tags["hop.variant"] for run in runs} == {variant.run_id}
    assert sheets(study, result.lines)[0].header == ["k", "recall", "LM calls"]
    assert all(line.estimates["iterations"].mean == 1 for line in result.lines)


def test_the_command_prints_one_object_and_exits_1_where_a_cell_failed(write, tmp_path, monkeypatch, capsys):
    new(tmp_path / "mine")
    models = ["local/smollm2-135m-instruct", "local/none"]
    path = write(grid={"data.name": ["atlas", "mine"], "lm.default.model": models}, base={"data": "atlas"})
    monkeypatch.setattr(sys, "argv", ["hop", "study", str(path), "data.dev=1", "--json"])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert end.value.code == 1
    assert (result["study"], result["metric"], len(result["cells"]), len(result["table"])) == ("small", "f1", 4, 4)
    assert [cell["status"] for cell in result["cells"]] == ["finished", "failed"] * 2
    assert result["cells"][0]["overrides"]["data.name"] == "atlas"
    lines = [line for line in err.splitlines() if line.startswith("hop: ")]
    assert len(lines) == 2
    assert all("local/none" in line for line in lines)


def test_a_study_takes_over_what_was_finished_when_it_had_other_rows(write, monkeypatch):
    words = {"grid": {"lm.default.max_tokens": [6, 8]}}
    first = run_study(load_study(write(**words)))
    words["grid"]["lm.default.max_tokens"] = [10, 8, 6]
    grown = load_study(write(**words))
    ran = breaking(monkeypatch, None, at=None)
    result = run_study(grown)
    assert ran == [grown.cells[0].name]
    assert [outcome.run_id for outcome in result.outcomes[:0:-1]] == [outcome.run_id for outcome in first.outcomes]
    assert result.run_id != first.run_id
    ran.clear()
    one = run_study(load_study(write(**words), only=["lm.default.max_tokens=8"]))
    assert (ran, one.outcomes[0].run_id) == ([], first.outcomes[1].run_id)
