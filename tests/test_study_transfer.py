"""Studies whose programs are compiled on one data set, or with one model, and scored on or with another."""

import json

import mlflow
import pytest
import yaml

from hoptimizer import UserError, estimate_study, load_study, run_study
from hoptimizer.study import cell_runs

TOPICS = {
    "rivers": ["Rhine, Basel", "Danube, Vienna", "Seine, Paris", "Vistula, Warsaw", "Tiber, Rome", "Thames, London"],
    "planets": ["Io, Jupiter", "Titan, Saturn", "Triton, Neptune", "Ariel, Uranus", "Deimos, Mars", "Rhea, Saturn"],
}


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a study file beside the data sets ``rivers`` and ``planets``."""
    monkeypatch.chdir(tmp_path)
    for topic, names in TOPICS.items():
        facts = [name.split(", ") for name in names]
        folder = tmp_path / topic
        folder.mkdir()
        passages = [
            {"id": f"{topic}{n}", "title": name, "text": f"{name} of the {topic} is at {place}."}
            for n, (name, place) in enumerate(facts)
        ]
        rows = [
            {
                "id": f"{n}",
                "question": f"Where is {name} of the {topic}?",
                "answers": [place],
                "passages": [f"{topic}{n}"],
                "rationale": f"{name} is at {place}.",
            }
            for n, (name, place) in enumerate(facts)
        ]
        for file, lines in (("corpus", passages), ("train", rows[:3]), ("dev", rows[3:4]), ("test", rows[4:])):
            (folder / f"{file}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    def written(**keys):
        base = {
            "data": {"name": "rivers"},
            "program": {"name": "ircot", "max_steps": 2, "thoughts": "phrase"},
            "retriever": {"name": "bm25", "k": 1},
            "lm": {"default": {"max_tokens": 12}},
            "optimizer": {"name": "labeled_few_shot", "k": 2, "prompt_formats": []},
            "tracking": {"uri": f"sqlite:///{tmp_path}/mlflow.db"},
        }
        path = tmp_path / "transfer.yaml"
        path.write_text(yaml.safe_dump({"base": base | keys.pop("base", {})} | keys, sort_keys=False))
        return path

    return written


TRANSFER = {
    "cells": [{"name": "rag", "program": "rag"}, {"name": "IRCoT"}],
    "grid": {"compile.data.name": ["rivers", "planets"], "data.name": ["rivers", "planets"]},
    "columns": "data.name",
    "compile": True,
    "split": "test",
    "baseline": "rag",
}

DIRECT = {"cells": [{"name": "direct", "program": "direct"}], "baseline": "direct"}


def tags(study, run_id):
    return mlflow.MlflowClient(study.config.tracking.uri).get_run(run_id).data.tags


def logged(run_id, artifact):
    return mlflow.artifacts.load_text(f"runs:/{run_id}/{artifact}")


def test_demonstrations_come_from_one_data_set_and_answers_from_the_other(write):
    study = load_study(write(**TRANSFER))
    result = run_study(study)
    assert result.failed == []
    starts = {}
    for outcome in result.outcomes:
        source, target = outcome.cell.place["compile.data.name"], outcome.cell.place["data.name"]
        start = tags(study, outcome.run_id)["hop.variant"]
        starts.setdefault((outcome.cell.place["name"], source), set()).add(start)
        program = logged(start, "variant/program.json")
        other = next(topic for topic in TOPICS if topic != source)
        assert f"of the {source} is at" in program, "the demonstrations show passages of their own corpus"
        assert other not in program
        table = json.loads(logged(outcome.run_id, "predictions/test-after.json"))
        rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
        assert all(row["question"].endswith(f" of the {target}?") for row in rows)
        assert outcome.metrics["recall"] == 1, "what supports the answer is in the corpus of the question alone"
    assert [len(runs) for runs in starts.values()] == [1] * 4, "compiled once for both targets"
    crossed, complete = result.sheets
    assert [row[:2] for row in crossed.rows] == [[name, topic] for name in ("rag", "IRCoT") for topic in TOPICS]
    assert crossed.header == ["name", "compile.data.name", "data.name rivers", "data.name planets"]
    assert len(complete.rows) == 8
    assert sorted(result.significance.p["f1"]) == [4, 5, 6, 7], "each IRCoT against rag of the same two data sets"
    again = run_study(load_study(write(**TRANSFER)))
    assert [outcome.run_id for outcome in again.outcomes] == [outcome.run_id for outcome in result.outcomes]


def test_what_can_not_be_compiled_fails_the_rows_that_start_from_it_and_is_tried_again(write, monkeypatch):
    study = load_study(write(**TRANSFER | DIRECT))
    compile_variant = cell_runs.compile_variant

    def broken(config, **options):
        if config.data.name.endswith("planets"):
            raise UserError("no such planet")
        return compile_variant(config, **options)

    with monkeypatch.context() as patch:
        patch.setattr(cell_runs, "compile_variant", broken)
        result = run_study(study)
    assert [outcome.failure for outcome in result.outcomes] == [
        None,
        None,
        *["compile of direct, data.name=planets: no such planet"] * 2,
    ]
    compiled = []

    def counting(config, **options):
        compiled.append(options["name"])
        return compile_variant(config, **options)

    monkeypatch.setattr(cell_runs, "compile_variant", counting)
    expected = estimate_study(study)
    assert (expected.finished, [cell.compiled for cell in expected.cells]) == (3, [True, False, False])
    again = run_study(study)
    assert again.failed == []
    assert compiled == ["compile of direct, data.name=planets"]
    assert estimate_study(study).finished == 6, "two compiles and four rows"


def test_values_are_chosen_on_the_data_set_that_is_asked_and_what_was_compiled_to_choose_from_is_scored(write):
    path = write(
        **TRANSFER | DIRECT,
        choose={"grid": {"optimizer.k": [1, 2]}, "by": "f1"},
        base={"lm": {"default": {"max_tokens": 4}}},
        seeds=[1, 2],
    )
    study = load_study(path)
    result = run_study(study)
    assert result.failed == []
    assert len(result.tried) == 4 * 2
    made = {outcome.run_id: tags(study, outcome.run_id) for outcome in (*result.tried, *result.outcomes)}
    kinds = [made[outcome.run_id]["hop.kind"] for outcome in result.tried]
    assert kinds == ["compile"] * 2 + ["eval"] * 4 + ["compile"] * 2, "a data set's own are what others start from"
    assert len({tag["hop.variant"] for tag in made.values() if "hop.variant" in tag}) <= 2 * (2 + 2)
    for outcome in result.outcomes:
        start = made[outcome.run_id]["hop.variant"]
        [demo, *_] = json.loads(logged(start, "variant/program.json"))["reader"]["demos"]
        assert f"of the {outcome.cell.place['compile.data.name']}?" in demo["question"]


def test_one_language_model_takes_over_what_another_was_compiled_with(write):
    lm = {"model": "local/smollm2-135m-instruct", "max_tokens": 4}
    path = write(
        cells=[{"name": "taken over", "compile.lm.default.temperature": 0.5}, {"name": "its own"}],
        base={"program": "direct", "lm": {"default": lm}},
        compile=True,
        split="test",
    )
    study = load_study(path)
    [source] = study.sources.values()
    assert (source.name, source.config.lm["default"].temperature) == ("compile of taken over", 0.5)
    assert {cell.config.lm["default"].temperature for cell in study.cells} == {0.0}
    assert run_study(study).failed == []


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"grid": {"compile.retriever.k": [1, 2]}}, "grid: compile.retriever.k: nothing is compiled there"),
        (
            {"cells": [{"name": "a", "compile": False, "compile.seed": 2}, {"name": "b"}], "compile": True},
            "cell 'a': compile.seed: a study has one seed",
        ),
        (
            {"cells": [{"name": "a", "compile": False, "compile.retriever.k": 2}, {"name": "b"}], "compile": True},
            "cell 'a': compile.retriever.k: nothing is compiled there; say compile: true",
        ),
        (
            {"grid": {"compile.retriever.kk": [1]}, "compile": True},
            "cell 'compile.retriever.kk=1': retriever.kk: unknown key",
        ),
        ({"grid": {"compile.program": ["rag"]}, "compile": True}, "compile.program: ircot can't be scored as what rag"),
        ({"grid": {"compile.metric": ["em"]}, "compile": True}, "grid: compile.metric: a study has one metric"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_key_of_a_compile_that_there_is_not_is_one_line(write, keys, says):
    with pytest.raises(UserError) as error:
        load_study(write(**keys))
    assert says in str(error.value)
