"""Config: files, arguments, defaults, and one clear line for every mistake."""

import json

import pytest
import yaml

from hoptimizer.common.errors import UserError
from hoptimizer.config import json_schema, load_config, make_config


def test_only_data_is_required():
    config = load_config(None, ["data=atlas"])
    assert config.data.name == "atlas"
    assert config.program.name == "rag"
    assert config.lm["default"].model == "local/smollm2-135m-instruct"
    assert config.experiment == "atlas"


def test_arguments_win_over_the_file(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text("data: {name: atlas, dev: 10}\nprogram: ircot\nretriever: {k: 6}\n")
    config = load_config(file, ["program.max_steps=3", "data.dev=20"])
    assert (config.program.name, config.program.max_steps, config.data.dev, config.retriever.k) == ("ircot", 3, 20, 6)


def test_a_language_model_is_swapped_by_one_argument():
    config = load_config(None, ["data=atlas", "lm=openai/gpt-4o-mini"])
    assert config.lm["default"].model == "openai/gpt-4o-mini"
    config = load_config(None, ["data=atlas", "program=ircot", "lm.reader=openai/gpt-4o-mini"])
    assert config.lm["reader"].model == "openai/gpt-4o-mini"
    assert config.lm["default"].model.startswith("local/")


def test_a_metric_is_a_name_or_weights_and_both_read_back():
    weighed = load_config(None, ["data=atlas", "metric.f1=1", "metric.lm_calls=-0.01"])
    assert weighed.metric == {"f1": 1.0, "lm_calls": -0.01}
    assert weighed.objective.label == "f1 - 0.01 lm_calls"
    logged = yaml.safe_load(yaml.safe_dump(weighed.public()))
    assert make_config(logged).digest == weighed.digest
    assert load_config(None, ["metric.lm_calls=0"], logged).objective.name == "f1"
    assert load_config(None, ["metric=em"], logged).metric == "em"


def test_a_weight_is_added_to_a_metric_that_was_a_name(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text("data: atlas\nmetric: em\n")
    assert load_config(file, ["metric.lm_calls=-0.01"]).metric == {"em": 1.0, "lm_calls": -0.01}


def test_weights_given_whole_take_the_place_of_those_before(tmp_path):
    logged = {"data": {"name": "atlas"}, "metric": {"f1": 1.0, "lm_calls": -0.01}}
    file = tmp_path / "my.yaml"
    file.write_text("metric: {em: 1, passages: -0.1}\n")
    assert load_config(file, base=logged).metric == {"em": 1.0, "passages": -0.1}
    assert load_config(None, ["metric={em: 1, passages: -0.1}"], logged).metric == {"em": 1.0, "passages": -0.1}


def test_environment_variables_are_resolved_and_a_key_is_never_public(monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    config = load_config(None, ["data=atlas", "lm.default.model=openai/x", "lm.default.api_key=${oc.env:MY_KEY}"])
    assert config.lm["default"].api_key.get_secret_value() == "sk-very-secret"
    assert "sk-very-secret" not in json.dumps(config.public()) + repr(config) + str(config)


def test_a_resolved_config_reads_back_as_itself():
    config = load_config(None, ["data=atlas", "program=ircot", "optimizer=labeled_few_shot"])
    assert make_config(yaml.safe_load(yaml.safe_dump(config.public()))).digest == config.digest


def test_where_a_run_is_tracked_does_not_change_what_it_is():
    one = load_config(None, ["data=atlas", "tracking.uri=sqlite:///a.db"])
    other = load_config(None, ["data=atlas", "tracking.uri=sqlite:///b.db"])
    assert one.digest == other.digest != load_config(None, ["data=atlas", "seed=8"]).digest


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], ["data", "required"]),
        (["data=atlas", "progam.name=ircot"], ["progam", "did you mean 'program'"]),
        (["data=atlas", "program=irctt"], ["program.name", "'irctt'", "did you mean 'ircot'"]),
        (["data=atlas", "program=ircot", "program.max_step=2"], ["program.max_step", "did you mean 'max_steps'"]),
        (["data=atlas", "program=ircot", "program.max_steps=0"], ["program.max_steps", "greater than", "0"]),
        (["data=atlas", "program=ircot", "program.reader=maybe"], ["program.reader", "'direct'", "'maybe'"]),
        (["data=atlas", "optimizer=bootstrap"], ["optimizer.name", "bootstrap_few_shot"]),
        (["data=atlas", "optimizer.demos=3"], ["optimizer.demos", "unknown key"]),
        (
            ["data=atlas", "optimizer=ensemble", "optimizer.of={name: copro, budget: {lm_calls: 9}}"],
            ["optimizer", "copro", "give one for all, optimizer.budget"],
        ),
        (["data=atlas", "metric=f2"], ["metric", "'f2'"]),
        (["data=atlas", "metric.lm_call=-1"], ["metric", "did you mean 'lm_calls'"]),
        (["data=atlas", "metric.f1=.nan"], ["metric.f1", "finite number", "nan"]),
        (["data=atlas", "metric=[f1]"], ["metric", "names with weights", "['f1']"]),
        (["data=atlas", "metric=passages"], ["metric", "at least one of em, f1", "'passages'"]),
        (["data=atlas", "metric=accuracy"], ["metric", "lm.judge="]),
        (["data=atlas", "metric.f1=1", "metric.accuracy=1"], ["metric", "lm.judge="]),
        (["data=atlas", "retriever.kk=3"], ["retriever.kk", "did you mean 'k'"]),
        (["data=atlas", "lm.readr=openai/x"], ["lm.readr", "did you mean 'reader'"]),
        (["data=atlas", "lm.default.modle=openai/x"], ["lm.default.modle", "did you mean 'model'"]),
        (["data=atlas", "seed=seven"], ["seed", "integer", "'seven'"]),
        (["data=atlas", "optimizer.budget=2000"], ["optimizer.budget", "lm_calls, minutes or usd", "2000"]),
        (["data=atlas", "lm=5"], ["lm: expected a model", "5"]),
        (["data=atlas", "lm=[a]"], ["lm: expected a model", "['a']"]),
        (["data=atlas", "noequals"], ["noequals", "key=value"]),
        (["data=atlas", "lm.default.api_key=${oc.env:NO_SUCH_VARIABLE}"], ["NO_SUCH_VARIABLE"]),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key_and_the_remedy(words, says):
    with pytest.raises(UserError) as error:
        load_config(None, words)
    message = str(error.value)
    assert "\n" not in message
    for part in says:
        assert part in message, message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("data: [", "not a YAML mapping"),
        ("- data", "mapping"),
        ("data: atlas\nprogram: {name: 7}", "program.name"),
        ("data: atlas\nlm: {default: {temperature: hot, model: x}}", "lm.default.temperature"),
    ],
)
def test_a_malformed_file_is_named(tmp_path, text, says):
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(UserError) as error:
        load_config(file)
    assert "bad.yaml" in str(error.value)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.yaml: no such config file"):
        load_config(tmp_path / "nowhere.yaml")


def test_the_schema_for_editors_knows_every_program_and_optimizer():
    text = json.dumps(json_schema())
    for name in ("ircot", "max_steps", "bootstrap_random_search", "num_candidate_programs", "checkpoint"):
        assert name in text


def test_a_mistake_beside_a_key_does_not_tell_it():
    with pytest.raises(UserError) as error:
        load_config(None, ["data=atlas", "lm.default.api_key=sk-very-secret"])
    assert "sk-very-secret" not in str(error.value)


def test_passwords_in_addresses_are_not_dumped():
    words = ["data=atlas", "lm.default.model=openai/x", "lm.default.api_base=http://me:hunter2@host:8000/v1"]
    config = load_config(None, [*words, "tracking.uri=postgresql://me:hunter2@db/mlflow"])
    assert config.tracking.uri == "postgresql://me:hunter2@db/mlflow"
    public = config.public()
    assert "hunter2" not in json.dumps(public)
    assert public["tracking"]["uri"] == "postgresql://db/mlflow"
    assert public["lm"]["default"]["api_base"] == "http://host:8000/v1"
    assert load_config(None, ["data=atlas"]).public()["tracking"]["uri"] == "sqlite:///mlflow.db"
