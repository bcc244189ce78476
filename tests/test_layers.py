"""Names and their options, over files and arguments: a config names what it runs, and nothing is lost silently."""

import json
import logging
from dataclasses import dataclass
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hoptimizer.common.errors import UserError
from hoptimizer.config import Config, load_config, make_config
from hoptimizer.study.cells import load_study


@dataclass(frozen=True)
class Section:
    """A section with a name and options that go together, and others that do."""

    key: str
    name: str
    options: dict[str, Any]
    other: str
    others: dict[str, Any]

    @property
    def naming(self) -> str:
        return "model" if self.key.startswith("lm") else "name"

    def whole(self, name: str | None, options: dict[str, Any]) -> dict[str, Any]:
        """The section as a mapping."""
        if self.key == "metric":
            return ({name: 1.0} if name else {}) | options
        return ({self.naming: name} if name else {}) | options

    def file(self, name: str | None, options: dict[str, Any]) -> dict[str, Any]:
        """What a file says of it: a name alone is no mapping."""
        value = name if name and not options else self.whole(name, options)
        if not value:
            return {}
        first, _, role = self.key.partition(".")
        return {first: {role: value} if role else value}

    def alone(self, name: str) -> str:
        """The argument that changes the name, and it alone."""
        return f"{self.key}.{name}=1" if self.key == "metric" else f"{self.key}.{self.naming}={name}"

    def word(self, option: str, options: dict[str, Any]) -> str:
        return f"{self.key}.{option}={json.dumps(options[option])}"

    def expected(self, options: dict[str, Any]) -> str:
        """Digest of the config that has this name and exactly these options."""
        key = "lm.default" if self.key == "lm" else self.key
        value = self.name if self.key == "metric" and not options else self.whole(self.name, options)
        first, _, role = key.partition(".")
        return make_config(BASE | {first: {role: value} if role else value}).digest


BASE = {"data": "atlas", "program": "rag"}
LM = ({"max_tokens": 48, "temperature": 0.5}, "local/smollm2-135m-instruct", {"max_tokens": 9, "seed": 3})
SECTIONS = [
    Section("program", "ircot", {"max_steps": 3, "reader": "none"}, "ra_isf", {"max_depth": 2, "reader": "direct"}),
    Section("optimizer", "labeled_few_shot", {"k": 3}, "distill", {"epochs": 2, "questions": 9}),
    Section("retriever", "colbert", {"k": 6, "checkpoint": "mine"}, "bm25", {"k": 3}),
    Section("data", "atlas", {"train": 7, "dev": 5}, "elsewhere", {"test": 4, "dev": 3}),
    Section("metric", "em", {"lm_calls": -0.01, "passages": -0.1}, "f1", {"retrievals": -0.2, "passages": -0.3}),
    Section("lm", "openai/gpt-4o", *LM),
    *(Section(f"lm.{role}", "openai/gpt-4o", *LM) for role in ("default", "reader", "teacher", "reflection", "judge")),
]


def shares(options: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Some of the options."""
    return st.sets(st.sampled_from(sorted(options))).map(lambda names: {name: options[name] for name in names})


class Notes(logging.Handler):
    """The warnings of a config."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def read(folder, file: dict[str, Any], words: list[str]) -> tuple[Config | str, list[str]]:
    """The config of a file and arguments, or its error's message; and what was told."""
    path = folder / "my.yaml"
    path.write_text(yaml.safe_dump(BASE | file))
    logger, notes = logging.getLogger("hoptimizer.config"), Notes()
    logger.addHandler(notes)
    try:
        return load_config(path, words), notes.lines
    except UserError as error:
        return str(error), notes.lines
    finally:
        logger.removeHandler(notes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("config")


every_section = pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.key)
often = settings(max_examples=40, deadline=None, derandomize=True)


@every_section
@often
@given(data=st.data())
def test_a_name_and_its_options_may_stand_anywhere(folder, section, data):
    wanted = data.draw(shares(section.options))
    in_file = data.draw(shares(wanted)) if wanted else {}
    named_in = data.draw(st.sampled_from(["file", "argument", "its own key", "a mapping"]))
    words = [section.word(option, wanted) for option in wanted if option not in in_file]
    if named_in == "argument":
        words.append(f"{section.key}={section.name}")
    elif named_in == "its own key":
        words.append(section.alone(section.name))
    elif named_in == "a mapping":
        inside = data.draw(shares(wanted)) if wanted else {}
        words.append(f"{section.key}={json.dumps(section.whole(section.name, inside))}")
    words = data.draw(st.permutations(words))
    name = section.name if named_in == "file" else None
    file = section.file(name, in_file)
    if section.key in ("data", "program") and not file:
        file = {section.key: {}}  # what is named in the arguments is not named in the file
    config, notes = read(folder, file, words)
    assert isinstance(config, Config), config
    assert config.digest == section.expected(wanted)
    assert notes == []


@every_section
@often
@given(data=st.data())
def test_another_name_has_the_options_that_were_given_for_it_and_what_is_dropped_is_told(folder, section, data):
    before = data.draw(shares(section.others))
    wanted = data.draw(shares(section.options))
    words = data.draw(
        st.permutations(
            [f"{section.key}={section.name}", *(section.word(option, section.options) for option in wanted)]
        )
    )
    config, notes = read(folder, section.file(section.other, before), words)
    assert isinstance(config, Config), config
    assert config.digest == section.expected(wanted)
    lost = [option for option in before if option not in wanted]
    assert len(notes) == bool(lost)
    for option in lost:
        assert option in notes[0].partition("dropped")[0]


@every_section
@often
@given(data=st.data())
def test_a_name_changed_by_its_own_key_keeps_all_options_or_fails_in_one_line(folder, section, data):
    before = data.draw(shares(section.others))
    wanted = data.draw(shares(section.options))
    words = data.draw(
        st.permutations([section.alone(section.name), *(section.word(o, section.options) for o in wanted)])
    )
    config, notes = read(folder, section.file(section.other, before), words)
    assert notes == []
    if isinstance(config, str):
        assert "\n" not in config
        assert section.key in config
    else:
        kept = {section.other: 1.0} if section.key == "metric" else {}
        assert config.digest == section.expected(kept | before | wanted)


@pytest.mark.parametrize("section", [one for one in SECTIONS if one.key != "metric"], ids=lambda one: one.key)
@often
@given(data=st.data())
def test_of_two_names_among_the_arguments_the_last_one_counts(folder, section, data):
    first, last = data.draw(st.permutations([section.name, section.other]))
    option = section.word(next(iter(section.options)), section.options)
    named = [data.draw(st.sampled_from([f"{section.key}={name}", section.alone(name)])) for name in (first, last)]
    place = data.draw(st.integers(0, 2))
    config, _ = read(folder, {}, [*named[:place], option, *named[place:]])
    if isinstance(config, str):
        assert "\n" not in config
        return
    found: Any = config.public()
    for part in ("lm.default" if section.key == "lm" else section.key).split("."):
        found = found[part]
    assert found[section.naming] == last


def test_in_a_study_a_name_keeps_the_bases_options_for_it_and_what_another_drops_is_told_once(tmp_path, caplog):
    file = tmp_path / "study.yaml"
    file.write_text(
        "base: {data: {name: atlas, dev: 2}, program: {name: ircot, max_steps: 3, reader: cot}, retriever: bm25}\n"
        "grid: {program: [ircot, rag]}\nseeds: [1, 2]\n"
    )
    programs = [cell.config.program for cell in load_study(file).cells]
    assert [program.name for program in programs] == ["ircot", "ircot", "rag", "rag"]
    assert (programs[0].max_steps, programs[0].reader) == (3, "cot")
    # That rag has no max_steps is no news.
    assert [note.partition(";")[0] for note in caplog.messages] == [
        "program: rag takes the place of ircot, whose reader is dropped"
    ]


def test_a_preset_over_a_variant_takes_the_place_of_the_options_that_the_variant_logged():
    logged = load_config(None, ["data=atlas", "program=efficient_rag", "optimizer=train_tagger"]).public()
    words = ["optimizer={name: train_tagger, preset: paper, batch: 3}"]
    alone = load_config(None, ["data=atlas", "program=efficient_rag", *words])
    over = load_config(None, words, logged)
    assert over.optimizer == alone.optimizer
    assert over.optimizer.batch == 3
    assert over.optimizer != load_config(None, [], logged).optimizer


def test_a_section_that_is_none_is_no_default():
    for section in ("program=false", "optimizer=0", "retriever=[]", "lm=false"):
        with pytest.raises(UserError, match=section.partition("=")[0]):
            load_config(None, ["data=atlas", section])
