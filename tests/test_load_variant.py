"""Compiled variants in one's own application, and those that version 0.1.0 logged."""

import asyncio
import json
import shutil
from pathlib import Path

import dspy
import mlflow
import pytest
from dspy.utils import DummyLM

from hoptimizer import UserError, compile_variant, load_config, load_variant, register_variant
from hoptimizer.compiled import check_default
from hoptimizer.config import DEFAULT_LM
from hoptimizer.upgrade import upgraded_config, upgraded_state

OLD = Path(__file__).parent / "variants" / "0.1.0"
# What version 0.1.0 answered with the variant, from memory: questions are split up otherwise since.
ANSWERS = {
    "What is the official language of the country that now includes Darmstadt?": "German",
    "Who was the older of the two, Henry James or Gottfried Semper?": "Gottfried Semper",
}


@pytest.fixture(scope="module")
def compiled(store):
    words = ["data=atlas", "data.train=8", "data.dev=2", "program=rag", "retriever.k=2", "lm.default.max_tokens=16"]
    words += ["optimizer=labeled_few_shot", "optimizer.prompt_formats=[plain]", f"tracking.uri=sqlite:///{store}/x.db"]
    return compile_variant(load_config(None, words))


def settings():
    return {"lm": dspy.settings.lm, "adapter": dspy.settings.adapter, "cache": dspy.cache}


def test_a_run_is_a_module_that_answers_as_it_was_scored_and_changes_no_setting(compiled):
    before, uri = settings(), mlflow.get_tracking_uri()
    program = load_variant(f"runs:/{compiled.run_id}", tracking_uri=compiled.config.tracking.uri)
    assert isinstance(program, dspy.Module)
    row = compiled.after.rows[0]
    prediction = program(question=row.question.question)
    assert prediction.answer == row.answer
    assert [passage.id for passage in prediction.passages] == row.passages
    assert settings() == before
    assert mlflow.get_tracking_uri() == uri
    assert "program.reader" in dict(program.named_predictors())


def test_it_asks_its_own_language_model_until_another_one_is_set(compiled):
    program, other = (
        load_variant(f"runs:/{compiled.run_id}", tracking_uri=compiled.config.tracking.uri),
        DummyLM([{"answer": "of another model"}] * 2),
    )
    with dspy.context(lm=other):
        assert program(question="Where?").answer != "of another model"
    program.set_lm(other)
    assert program(question="Where?").answer == "of another model"


def test_it_can_be_called_where_an_event_loop_runs_as_in_a_notebook(compiled):
    program = load_variant(f"runs:/{compiled.run_id}", tracking_uri=compiled.config.tracking.uri)
    row = compiled.after.rows[1]

    async def cell():
        return program(question=row.question.question), await program.acall(question=row.question.question)

    assert [prediction.answer for prediction in asyncio.run(cell())] == [row.answer, row.answer]


def test_overrides_change_its_config(compiled):
    source = f"runs:/{compiled.run_id}"
    program = load_variant(source, ["retriever.k=3"], tracking_uri=compiled.config.tracking.uri)
    assert program.config.retriever.k == 3
    assert len(program(question="Who painted the Mona Lisa?").passages) == 3


def test_a_registered_model_is_loaded_by_its_version_its_alias_and_its_id(compiled):
    uri, row = compiled.config.tracking.uri, compiled.after.rows[0]
    registered = register_variant(uri, compiled.run_id, "capitals")
    mlflow.MlflowClient(uri).set_registered_model_alias("capitals", "best", registered.version)
    for source in (
        registered.uri,
        "models:/capitals@best",
        "models:/capitals/latest",
        f"models:/{registered.model_id}",
    ):
        assert load_variant(source, tracking_uri=uri)(question=row.question.question).answer == row.answer
    for source, said in (
        ("models:/capitals/7", r"models:/capitals/7: .*version=7\) not found"),
        ("models:/towns/latest", "models:/towns/latest: .*no model 'towns'"),
        ("models:/capitals@worst", "alias worst not found"),
        ("models:/m-0", "m-0' not found"),
        ("models:/capitals", r"expected models:/NAME/VERSION, models:/NAME@ALIAS or models:/ID"),
    ):
        with pytest.raises(UserError, match=said) as error:
            load_variant(source, tracking_uri=uri)
        assert "\n" not in str(error.value)


def test_what_is_no_variant_is_said(tmp_path):
    with pytest.raises(UserError, match=r"no config.yaml in it, so it is no variant; give runs:/ID"):
        load_variant(tmp_path)
    with pytest.raises(UserError, match=r"runs:/0000/variant: can't be fetched from sqlite:///.*none.db"):
        load_variant("runs:/0000", tracking_uri=f"sqlite:///{tmp_path}/none.db")


def test_a_variant_of_version_0_1_0_answers_as_it_did():
    program = load_variant(OLD / "variant")
    assert program.program.prompt_format == "plain"
    assert program.program.closed_book.demos
    assert {question: program(question=question).answer for question in ANSWERS} == ANSWERS


def test_an_mlflow_model_of_version_0_1_0_answers_as_it_did(tmp_path):
    model = mlflow.pyfunc.load_model(str(shutil.copytree(OLD / "model", tmp_path / "model")))
    assert [given["answer"] for given in model.predict(list(ANSWERS))] == list(ANSWERS.values())


def test_names_of_version_0_1_0_are_taken_for_todays():
    old = [
        "lm.default.adapter=plain",
        "optimizer=better_together",
        "optimizer.strategy=[{name: copro, layouts: [json]}]",
    ]
    config = load_config(None, ["data=atlas", "program=ra_isf", "lm.recall=local/other", *old])
    assert config.lm["default"].prompt_format == "plain"
    assert "closed_book" in config.lm
    assert config.optimizer.strategy[0].prompt_formats == ("json",)
    with pytest.raises(UserError, match=r"lm.default.adapter: is called lm.default.prompt_format now"):
        load_config(None, ["data=atlas", "lm.default.adapter=plain", "lm.default.prompt_format=json"])


@pytest.mark.parametrize(("given", "judged"), [("true", "passage"), ("false", "none"), ("sufficiency", "sufficiency")])
def test_relevance_was_on_or_off_in_version_0_1_0(given, judged):
    assert load_config(None, ["data=atlas", "program=ra_isf", f"program.relevance={given}"]).program.relevance == judged


def test_upgrading_leaves_todays_names_alone():
    state = upgraded_state(json.loads((OLD / "variant" / "program.json").read_text()))
    assert upgraded_state(state) == state
    assert "recall" not in state
    config = {"data": "atlas", "lm": "local/m", "optimizer": "copro", "program": {"name": "rag"}}
    assert upgraded_config(config) == config


def test_what_the_first_version_left_to_us_stays_as_it_was():
    logged = {
        "data": {"name": "atlas"},
        "program": {"name": "ircot", "reader": "cot"},
        "lm": {"default": {"model": "local/smollm2-135m-instruct", "adapter": "auto"}},
    }
    upgraded = upgraded_config(logged)
    papers = {"thoughts": "phrase", "later_k": None, "fill": False}
    assert upgraded["program"] == {"name": "ircot", "reader": "phrase", **papers}
    assert upgraded["lm"]["default"]["prompt_format"] == "json"
    today = {"data": "atlas", "program": {"name": "ircot", "reader": "cot"}, "lm": {"default": "local/m"}}
    assert upgraded_config(today) == today


@pytest.mark.parametrize(("words", "said"), [(["lm=openai/other"], True), ([], False)])
def test_self_knowledge_that_was_learned_from_another_model_is_said(words, said, caplog):
    config = load_config(None, ["data=atlas", "program=ra_isf", *words])
    state = {"program": {"models": ["self_knowledge"], "lms": {}}, "self_knowledge": {}, "reader": {}}
    check_default(config, {"lm": {"default": {"model": DEFAULT_LM}}}, state)
    assert ("self_knowledge was learned from what" in caplog.text) is said
