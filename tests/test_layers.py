"""A config runs what it names, whatever the order of its names and options and wherever they stand."""

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hoptimizer.common.errors import UserError
from hoptimizer.config import Config, load_config

# Of each section: the key of its name, and options by name. None is a default, so that a lost one is seen.
SECTIONS = {
    "data": ("name", {"atlas": {"train": 5, "dev": 3}}),
    "program": (
        "name",
        {"rag": {"reader": "cot"}, "ircot": {"max_steps": 3, "reader": "direct"}, "ra_isf": {"max_depth": 1}},
    ),
    "retriever": ("name", {"bm25": {"k": 6}, "colbert": {"k": 7, "index": "exact"}}),
    "optimizer": ("name", {"copro": {"breadth": 3, "depth": 2}, "labeled_few_shot": {"k": 2}}),
    **{
        f"lm.{role}": ("model", {name: {"max_tokens": 48, "temperature": 0.5} for name in ("openai/gpt-4o", "local/m")})
        for role in ("default", "teacher", "reader")
    },
}
NAMES = [(section, name) for section, (_, names) in SECTIONS.items() for name in names]


def found(config: Config, section: str):
    head, _, role = section.partition(".")
    return config.lm[role] if role else getattr(config, head)


def expected(section: str, name: str, options: dict):
    """The section by name and options together, which nothing has to be merged for."""
    key, _ = SECTIONS[section]
    words = [f"{section}={yaml.safe_dump({key: name, **options}, default_flow_style=True).strip()}"]
    return found(load_config(None, words if section == "data" else ["data=atlas", *words]), section)


@st.composite
def written(draw):
    """A section, its name and some of its options, spread over a file and arguments in some order."""
    section, name = draw(st.sampled_from(NAMES))
    key, names = SECTIONS[section]
    options = draw(st.lists(st.sampled_from(sorted(names[name].items())), unique=True))
    in_file = draw(st.lists(st.sampled_from(options), unique=True)) if options else []
    rest = [(option, value) for option, value in options if (option, value) not in in_file]
    words = [f"{section}.{option}={value}" for option, value in rest]
    file = dict(in_file)
    if draw(st.booleans()):
        words.append(draw(st.sampled_from([f"{section}={name}", f"{section}.{key}={name}"])))
    elif file:
        file[key] = name
    else:
        file = name
    return section, name, dict(options), file, draw(st.permutations(words))


def load(tmp_path, section: str, file, words) -> Config:
    head, _, role = section.partition(".")
    values = {"data": "atlas"} if section != "data" else {}
    if file:
        values[head] = {role: file} if role else file
    path = tmp_path / "my.yaml"
    path.write_text(yaml.safe_dump(values))
    return load_config(path, words)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("configs")


@settings(max_examples=300, deadline=None)
@given(case=written())
def test_a_name_and_its_options_go_in_any_order(folder, case):
    section, name, options, file, words = case
    assert found(load(folder, section, file, words), section) == expected(section, name, options)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_name_on_the_command_line_begins_anew(folder, data):
    section = data.draw(st.sampled_from([section for section, (_, names) in SECTIONS.items() if len(names) > 1]))
    key, names = SECTIONS[section]
    before, name = data.draw(st.permutations(sorted(names)))[:2]
    options = dict(data.draw(st.lists(st.sampled_from(sorted(names[name].items())), unique=True)))
    words = data.draw(st.permutations([f"{section}={name}", *(f"{section}.{o}={v}" for o, v in options.items())]))
    config = load(folder, section, {key: before, **names[before]}, words)
    assert found(config, section) == expected(section, name, options)


def test_a_model_of_the_same_server_is_named_without_its_section(folder):
    server = {"model": "openai/one", "api_base": "http://127.0.0.1:1/v1", "max_tokens": 9}
    [one] = load(folder, "lm.default", server, ["lm.default.model=openai/other"]).lm.values()
    assert (one.model, one.api_base, one.max_tokens) == ("openai/other", server["api_base"], 9)
    [one] = load(folder, "lm.default", server, ["lm.default=openai/other"]).lm.values()
    assert (one.model, one.api_base, one.max_tokens) == ("openai/other", None, None)


def test_options_of_the_default_model_need_no_role(folder):
    [one] = load_config(None, ["data=atlas", "lm.temperature=0.5", "lm=openai/gpt-4o"]).lm.values()
    assert (one.model, one.temperature) == ("openai/gpt-4o", 0.5)


def test_options_that_the_named_one_does_not_have_are_an_error(folder):
    with pytest.raises(UserError, match=r"program\.max_steps: unknown key"):
        load_config(None, ["data=atlas", "program=ircot", "program.max_steps=4", "program=rag"])


def test_an_optimizer_within_an_optimizer_is_named_like_any_other():
    config = load_config(None, ["data=atlas", "optimizer.of.breadth=3", "optimizer=ensemble", "optimizer.of=copro"])
    assert (config.optimizer.of.name, config.optimizer.of.breadth) == ("copro", 3)


@pytest.mark.parametrize("words", [["metric=em", "metric.lm_calls=-0.01"], ["metric.lm_calls=-0.01", "metric=em"]])
def test_a_metric_and_a_further_weight_go_in_any_order(words):
    assert load_config(None, ["data=atlas", *words]).metric == {"em": 1.0, "lm_calls": -0.01}
