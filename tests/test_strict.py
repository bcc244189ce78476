"""Files that are malformed on purpose, or by accident: one line, no traceback, nothing read wrongly."""

import pytest

from hoptimizer import UserError, load_config
from hoptimizer.eval.datasets.rows import read_rows
from hoptimizer.models.folder import check_model
from hoptimizer.stored import stored_config, stored_state

DEEP = "[" * 100_000
LONG = "9" * 5000


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("data: atlas".encode("utf-16"), "not UTF-8"),
        (f"data: {DEEP}".encode(), "nested more than 100 deep"),
        (f"data: atlas\nseed: {LONG}".encode(), "Exceeds the limit"),
        (b"data: \x00", "control characters"),
        (b"data: atlas\ndata: other", "duplicate key"),
    ],
)
def test_a_config_that_is_malformed_is_one_line(tmp_path, content, says):
    file = tmp_path / "my.yaml"
    file.write_bytes(content)
    with pytest.raises(UserError, match=rf"my\.yaml: .*{says}") as caught:
        load_config(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [DEEP, LONG])
def test_an_argument_that_is_malformed_is_one_line(value):
    with pytest.raises(UserError, match="seed: the value after = can't be read"):
        load_config(None, ["data=atlas", f"seed={value}"])


def test_a_strangers_variant_that_is_malformed_is_one_line():
    with pytest.raises(UserError, match="nested more than 100 deep"):
        stored_config(f"data: {DEEP}", "a run")
    for text, says in (
        (DEEP, "nested too deeply"),
        (LONG, "Exceeds the limit"),
        ('{"a": 1, "a": 2}', "'a' is there twice"),
    ):
        with pytest.raises(UserError, match=says):
            stored_state(text, "a run")


def test_a_models_own_settings_may_hold_numbers_of_any_size(tmp_path):
    """Tokenizers without a longest text say so by one, and name tokens that are no characters."""
    settings = '{"model_max_length": 1000000000000000019884624838656, "scale": 1e999, "token": "\\ud800"}'
    (tmp_path / "tokenizer_config.json").write_text(settings)
    assert check_model(tmp_path)["tokenizer_config.json"]["model_max_length"] == int(1e30)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", '{"id": "1", "id": "2"}', "a.jsonl:1: the key 'id' is there twice"),
        ("a.json", '[{"id": "1", "id": "2"}]', "a.json:1: the key 'id' is there twice"),
        ("a.jsonl", f'{{"id": {DEEP}', "a.jsonl:1: nested too deeply"),
        ("a.jsonl", f'{{"id": {LONG}}}', "a.jsonl:1: Exceeds the limit"),
        ("a.csv", "id,text,text\n1,x,y\n", "a.csv:1: the column 'text' is there twice"),
        ("a.csv", f'id,answers\n1,"{DEEP}"\n', "'answers' must be JSON text"),
    ],
)
def test_a_data_file_that_is_malformed_is_one_line(tmp_path, name, content, says):
    (tmp_path / name).write_text(content)
    problems = []
    assert list(read_rows(tmp_path / name, problems.append)) == []
    [problem] = problems
    assert says in problem
    assert "\n" not in problem
