"""Config: files, arguments, defaults, and one clear line for every mistake."""

import hashlib
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


def test_a_model_that_is_named_is_the_one_that_runs_whatever_follows():
    config = load_config(None, ["data=atlas", "lm.default=openai/gpt-4o", "lm.default.max_tokens=48"])
    assert (config.lm["default"].model, config.lm["default"].max_tokens) == ("openai/gpt-4o", 48)
    config = load_config(None, ["data=atlas", "lm.reader.max_tokens=48", "lm.reader=openai/gpt-4o"])
    assert (config.lm["reader"].model, config.lm["reader"].max_tokens) == ("openai/gpt-4o", 48)
    assert config.lm["default"].model == "local/smollm2-135m-instruct"
    config = load_config(None, ["data=atlas", "lm.temperature=0.5", "lm=openai/gpt-4o", "lm.reader=openai/o3"])
    assert (config.lm["default"].model, config.lm["default"].temperature) == ("openai/gpt-4o", 0.5)
    assert config.lm["reader"].model == "openai/o3"


def test_a_role_can_have_another_ones_model_with_its_options(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text("data: atlas\nlm: {default: {model: openai/x, max_tokens: 9}, teacher: '${lm.default}'}\n")
    teacher = load_config(file, ["lm.teacher.temperature=1"]).lm["teacher"]
    assert (teacher.model, teacher.max_tokens, teacher.temperature) == ("openai/x", 9, 1)


def test_another_model_does_not_get_the_server_and_the_key_of_the_one_before(tmp_path, caplog):
    file = tmp_path / "my.yaml"
    file.write_text("data: atlas\nlm: {default: {model: openai/x, api_base: 'http://h/v1', api_key: sk-secret}}\n")
    lm = load_config(file, ["lm.default=anthropic/y"]).lm["default"]
    assert (lm.model, lm.api_base, lm.api_key) == ("anthropic/y", None, None)
    assert caplog.messages == [
        "lm.default: anthropic/y takes the place of openai/x, whose api_base, api_key are dropped; "
        "lm.default.model=anthropic/y would change the name alone"
    ]
    lm = load_config(file, ["lm.default.model=openai/z"]).lm["default"]
    assert (lm.model, lm.api_base, lm.api_key.get_secret_value()) == ("openai/z", "http://h/v1", "sk-secret")
    assert len(caplog.messages) == 1


def test_a_name_given_to_a_run_drops_its_options_and_tells_only_what_is_lost(caplog):
    words = ["data=atlas", "lm.default.max_tokens=9", "lm.teacher=openai/t"]
    run = load_config(None, words).public()
    config = load_config(None, ["lm=openai/gpt-4o-mini"], run)
    assert (config.lm["default"].max_tokens, config.lm["teacher"].model) == (None, "openai/t")
    [note] = caplog.messages
    assert "max_tokens is dropped" in note


@pytest.mark.parametrize(
    ("program", "k"), [("rag", 4), ("ircot", 4), ("ra_isf", 5), ("efficient_rag", 10), ("direct", 4)]
)
def test_passages_per_retrieval_are_the_programs_own_unless_the_config_sets_them(program, k):
    config = load_config(None, ["data=atlas", f"program={program}", "program.reader=direct"])
    assert (config.retriever.k, config.k, config.public()["retriever"]["k"]) == (None, k, k)
    assert make_config(config.public()).digest == config.digest
    assert load_config(None, ["retriever.k=2"], config.public()).k == 2


def test_a_run_that_was_logged_with_its_passages_per_retrieval_keeps_them():
    run = {"data": {"name": "atlas"}, "program": {"name": "ra_isf"}, "retriever": {"name": "colbert", "k": 4}}
    assert load_config(None, ["seed=8"], run).k == 4
    assert load_config(None, ["retriever.k=null"], run).k == 5


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
        (["data=atlas", "retriever.k=true"], ["retriever.k", "expected a number, got True"]),
        (["data=atlas", "lm.default.temperature=yes"], ["lm.default.temperature", "expected a number, got True"]),
        (["data=atlas", "program=ircot", "program.max_steps=on"], ["program.max_steps", "expected a number"]),
        (["data=atlas", "data.dev=true"], ["data.dev", "expected a number"]),
        (["data=atlas", "seed=false"], ["seed", "expected a number"]),
        (["data=atlas", "optimizer.budget.minutes=true"], ["optimizer.budget.minutes", "expected a number"]),
        (["data=atlas", "retriever.kk=3"], ["retriever.kk", "did you mean 'k'"]),
        (["data=atlas", "lm.readr=openai/x"], ["lm.readr", "did you mean 'reader'"]),
        (["data=atlas", "lm.default.modle=openai/x"], ["lm.default.modle", "did you mean 'model'"]),
        (["data=atlas", "seed=seven"], ["seed", "integer", "'seven'"]),
        (["data=atlas", "optimizer.budget=2000"], ["optimizer.budget", "lm_calls, minutes or usd", "2000"]),
        (["data=atlas", "lm=5"], ["lm: expected a model", "int"]),
        (["data=atlas", "lm=[a]"], ["lm: expected a model", "list"]),
        (["data=atlas", "lm.reader.max_tokens=48"], ["lm.reader.model", "required"]),
        (["data=atlas", "lm={default: a, seed: 3}"], ["lm: default stands beside seed", "lm.default"]),
        (["data=atlas", "lm.default=null", "lm.default.seed=3"], ["lm.default: set to null beside lm.default.seed"]),
        (["data=atlas", "program=ircot", "program.max_steps=3", "program=rag"], ["program.max_steps", "unknown key"]),
        (["data=[atlas"], ["data: the value after =", "YAML"]),
        (["data=atlas", "lm.reader="], ["lm.reader: expected a name after =, got nothing"]),
        (["data=atlas", "lm.default.model="], ["lm.default.model: expected a name after =, got nothing"]),
        (["data=atlas", "program.name="], ["program.name: expected a name after =, got nothing"]),
        (["data=atlas", "tracking=[x]"], ["tracking: expected keys such as uri", "got list"]),
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


def test_options_that_are_given_nothing_have_their_defaults():
    words = ["data=atlas", "data.dev=", "retriever.k=", "lm.default.api_base=", "lm.max_tokens=", "program=null"]
    assert load_config(None, words).digest == load_config(None, ["data=atlas"]).digest


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.yaml: no such config file"):
        load_config(tmp_path / "nowhere.yaml")


def test_the_schema_for_editors_knows_every_program_and_optimizer():
    text = json.dumps(json_schema())
    for name in ("ircot", "max_steps", "bootstrap_random_search", "num_candidate_programs", "checkpoint"):
        assert name in text


@pytest.mark.parametrize(
    "word",
    [
        "lm.default.api_key=4815162342",  # no text, and without a model that takes it
        "lm.api_key=4815162342",
        "lm.default.api_key=sk-4815162342",
        "lm.default.api_key=[4815162342]",
        "lm.default.api_key='4815162342",
        "lm.default.api_key=4815162342${",
        "lm.default.api_ky=4815162342",
        "lm.default=[{api_key: 4815162342}]",
        "lm=[{api_key: 4815162342}]",
        "lm={model: openai/x, api_ky: 4815162342}",
        "retriever.url=ftp://me:4815162342@host",
        "lm={model: openai/x, api_base: me:4815162342@host/v1}",
    ],
)
def test_a_mistake_with_a_key_or_beside_it_does_not_tell_it(word):
    with pytest.raises(UserError) as error:
        load_config(None, ["data=atlas", word])
    assert "4815162342" not in str(error.value)
    assert "\n" not in str(error.value)


def test_passwords_in_addresses_are_not_dumped():
    words = ["data=atlas", "lm.default.model=openai/x", "lm.default.api_base=http://me:hunter2@host:8000/v1"]
    config = load_config(None, [*words, "tracking.uri=postgresql://me:hunter2@db/mlflow"])
    assert config.tracking.uri == "postgresql://me:hunter2@db/mlflow"
    public = config.public()
    assert "hunter2" not in json.dumps(public)
    assert public["tracking"]["uri"] == "postgresql://db/mlflow"
    assert public["lm"]["default"]["api_base"] == "http://host:8000/v1"
    assert load_config(None, ["data=atlas"]).public()["tracking"]["uri"] == "sqlite:///mlflow.db"


def test_a_folder_of_weights_decides_by_what_is_in_it(tmp_path, monkeypatch):
    digests = []
    for name, weights in (("a", b"one"), ("b", b"two"), ("c", b"one")):
        (tmp_path / name / "model").mkdir(parents=True)
        (tmp_path / name / "model" / "model.safetensors").write_bytes(weights * 10_000)
        monkeypatch.chdir(tmp_path / name)
        digests.append(load_config(None, ["data=atlas", "lm=local/model"]).digest)
    assert digests[0] == digests[2] != digests[1]
    (tmp_path / "c" / "model" / "model.safetensors").write_bytes(b"one" * 9_999 + b"two")
    assert load_config(None, ["data=atlas", "lm=local/model"]).digest not in digests


@pytest.mark.parametrize(
    "words",
    [
        ["optimizer=distill", "optimizer.base=start"],
        ["optimizer=train_tagger", "optimizer.base=start"],
        ["optimizer=knn_few_shot", "optimizer.encoder=start"],
        ["optimizer=better_together", "optimizer.strategy=[copro, {name: distill, base: start}]"],
    ],
    ids=lambda words: " ".join(words),
)
def test_the_model_that_an_optimizer_starts_from_decides_by_what_is_in_its_folder(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    named = load_config(None, ["data=atlas", *words]).digest
    (tmp_path / "start").mkdir()
    weights = tmp_path / "start" / "model.safetensors"
    digests = []
    for content in (b"one", b"two", b"one"):
        weights.write_bytes(content * 10_000)
        digests.append(load_config(None, ["data=atlas", *words]).digest)
    assert digests[0] == digests[2] != digests[1]
    assert named not in digests


def test_a_config_without_folders_and_parts_of_ones_own_is_told_by_its_text_alone():
    words = ["data=atlas", "optimizer=knn_few_shot", "retriever=hybrid", "metric.f1=1", "metric.lm_calls=-0.01"]
    config = load_config(None, [*words, "lm=openai/m"])
    assert config.digest == hashlib.sha256(json.dumps(config.deciding, sort_keys=True).encode()).hexdigest()


def test_the_server_that_the_environment_names_decides_and_its_users_do_not(monkeypatch):
    def made(*words):
        return load_config(None, ["data=atlas", "lm=openai/m", *words])

    without = made().digest
    told = {}
    for url in ("http://a:1/v1", "http://b:1/v1", "http://me:hunter2@b:1/v1"):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        told[url] = made().digest
        assert "hunter2" not in json.dumps(made().deciding) + made().lm["default"].shown
        assert made().public()["lm"]["default"]["api_base"] is None, "it is no part of the config"
    first, second, third = told.values()
    assert second == third
    assert len({without, first, second}) == 3
    assert made("lm.default.api_base=http://a:1/v1").digest == first, "the config's own server goes before it"
    local = load_config(None, ["data=atlas"])
    monkeypatch.delenv("OPENAI_BASE_URL")
    assert load_config(None, ["data=atlas"]).digest == local.digest
