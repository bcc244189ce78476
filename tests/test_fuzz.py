"""Whatever goes in: a valid result or a clean error. `benchmarks/fuzz.py` looks for others for longer."""

import copy
import io
import json
import time

import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
import yaml
from fuzz_answers import CLIENTS, COMPLETION, Reply
from fuzz_targets import HOTPOT, MUSIQUE, PASSAGES, QUESTIONS, STATES, STORED, STUDIES, WIKI
from fuzz_values import PITFALLS
from fuzzing import TARGETS, feed, search


@pytest.mark.parametrize("name", TARGETS)
def test_strange_inputs_end_in_a_result_or_in_one_line(name):
    found = search(TARGETS[name], rounds=1, examples=30)
    assert not found.findings, [(finding.what, finding.given) for finding in found.findings.values()]
    assert found.accepted
    assert found.refused


def changed(data, path, value=None):
    """Plain data with another value at a dotted path; without the key where the value is ``...``."""
    data = copy.deepcopy(data)
    *outer, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    holder = data
    for part in outer:
        holder = holder[part]
    if value is ...:
        del holder[last]
    else:
        holder[last] = value
    return data


def config(text, *words):
    return "config.yaml", f"retriever: bm25\n{text}".encode("utf-8", "surrogatepass"), list(words)


def study(path, yaml_text):
    text = yaml.safe_dump(changed(STUDIES[0], path, "@here@")).replace("'@here@'", yaml_text)
    return "study.yaml", text.encode(), []


def state(path, value):
    return yaml.safe_dump(STORED[0]).encode(), json.dumps(changed(STATES[0], path, value)).encode()


def kept(text):
    return text.encode("utf-8", "surrogatepass"), json.dumps(STATES[0]).encode()


def published(name, row, **beside):
    return name, (".jsonl", json.dumps(row).encode()), beside


def folder(passages, questions=None):
    questions = questions or (".jsonl", "\n".join(json.dumps(row) for row in QUESTIONS).encode())
    return "folder", passages, {"dev": questions}


def lines(rows):
    return ".jsonl", "\n".join(json.dumps(row) for row in rows).encode()


def parquet(table):
    file = io.BytesIO()
    pyarrow.parquet.write_table(table, file)
    return ".parquet", file.getvalue()


def answer(path, value, program="rag", client=CLIENTS[0], **reply):
    body = json.dumps(changed(COMPLETION, path, value)).encode()
    return (
        program,
        "json",
        client,
        [Reply(**({"status": 200, "headers": (), "body": body, "way": "whole"} | reply))],
        1.0,
    )


CONTENT = "choices.0.message.content"
YAML = {name: yaml_text for name, (yaml_text, _) in PITFALLS.items()}
# What ended otherwise once: inputs, and whether they are valid.
FOUND = {
    "config": [
        (config('data: atlas\n"\\r": 1'), False),
        (config(f"data: atlas\nprogram: {'京' * 5_000}"), False),
        (config(f"data: {'x' * 300}"), False),
        (config("data: ~no-such-user/x"), False),
        (config('data: "a\\0b"'), False),
        (config("data: atlas", f"data.corpus={'x' * 300}"), False),
        (config(f"data: atlas\nseed: {YAML['@long hexadecimal number@']}"), False),
        (config(f"data: atlas\nseed: {YAML['@long sexagesimal number@']}"), False),
        (config("data: atlas\nseed: -1"), False),
        (config("data: atlas", f"lm.default.extra_body.a={10**30}"), False),
        (config("data: atlas\nlm: {default: {model: openai/x, temperature: .inf}}"), False),
        (config("data: atlas\nlm: /"), False),
        (config("data: atlas\nlm: openai/"), False),
        (config("data: atlas\nlm: {default: {model: openai/x, extra_body: {a: '\\ud800'}}}"), True),  # no escape there
        (config('data: atlas\nlm: {default: {model: openai/x, extra_body: {a: "\\ud800"}}}'), False),
        (config("data: atlas\nlm: {default: {model: openai/x, timeout: 1e308}}"), False),
        (config("data: atlas", "retriever={name: colbert, url: 'http://['}"), False),
        (config("data: atlas", "retriever={name: colbert, url: 'http://127.0.0.1:x'}"), False),
        (study("grid", "京" * 5_000), False),
        (study("grid", "{retriever.k: [2, !!binary gA==]}"), False),
    ],
    "arguments": [
        (["compare", "1f2e", "tracking.uri=true"], False),
        (["eval", "x" * 5_000], False),
        (["data", "check", "x" * 5_000], False),
        (["data", "new", "x" * 5_000], False),
        (["data", "join", "d=1", "atlas=2", "--out", "made\udcff", "--json"], True),
        (["data", "new", "new\udcff"], True),
        (["eval", "data=atlas", "tracking.uri=http://["], False),
        (["eval", "data=atlas", "tracking.uri=http://127.0.0.1:x"], False),
        (["eval", "data=atlas", f"tracking.uri=http://{'x' * 300}"], False),
        (["eval", "data=atlas", "tracking.uri=postgresql://127.0.0.1:x/runs"], False),
        (["eval", "data=atlas", "tracking.uri=mssql://127.0.0.1/runs"], False),  # a driver that nobody installed
        (["eval", "data=atlas", 'tracking.uri="a\\0b"'], False),
        (["data", "check", "d", "--corpus", "x" * 5_000], False),
        (["data", "import", "2wikimultihopqa", "y/" * 3_000, "--out", "made"], False),
        (["data", "join", "", "atlas=2", "--out", "made"], False),
        (["data", "show-labels", ""], False),
    ],
    "importers": [
        (published("hotpotqa", changed(HOTPOT, "context.0.1.0", "\ud800")), False),
        (published("musique", changed(MUSIQUE, "answer_aliases.0", "\ud800")), False),
        (
            published(
                "2wikimultihopqa",
                WIKI | {"answer_id": "Q1"},
                aliases=lines([{"Q_id": "Q1", "aliases": ["\ud800"], "demonyms": []}]),
            ),
            False,
        ),
        (folder(lines(changed(PASSAGES, "0.title", "\ud800"))), False),
        (folder(parquet(pa.table({"id": [b"\xff"], "text": ["x"]}))), False),
        (folder(parquet(pa.table([["a"], ["x"], ["y"]], names=["id", "text", "text"]))), False),
        (folder(lines(PASSAGES), parquet(pa.Table.from_pandas(pd.DataFrame(QUESTIONS)))), True),
    ],
    "states": [
        *((kept(f"data: atlas\nx: {YAML[name]}"), False) for name in ("@laughs@", "@itself@", "@itself in a mapping@")),
        ((b"\xff\xfe", json.dumps(STATES[0]).encode()), False),
        ((yaml.safe_dump(STORED[0]).encode(), b"\xff\xfe"), False),
        (kept(yaml.safe_dump(STORED[0] | {"tracking": None})), True),
        (kept(yaml.safe_dump(STORED[0] | {"tracking": 5})), False),
        (state("program", {"members": 5}), False),
        (state("program.models", None), False),
        (state("program.lms", []), False),
        (state("program.neighbours", None), True),
        (state("program.neighbours", {"k": 1, "encoder": "x", "pool": [["Who?"]]}), False),
        (state("program.prompt_format", ...), True),
        (state("program.prompt_format", "xml"), False),
        *((state(f"reader.{key}", ...), False) for key in ("signature", "lm", "demos", "signature.instructions")),
        *((state(f"reader.{key}", None), False) for key in ("signature", "demos", "signature.fields")),
        (state("reader.signature.fields.0.prefix", ...), False),
        (state("reader.demos.0", [{"question": "Who?"}]), False),
        (state("reader.demos.0.question", [1]), False),
        (state("reader.demos.0.question", "\ud800"), False),
        (state("reader.demos.0.more", float("nan")), False),
        (state("reader.fields", {"answer": {"threshold": 1}}), False),
    ],
    "answers": [
        (answer("id", "1", status=413, body=b'{"error": "\\ud800"}'), True),
        (answer(CONTENT, "{" * 20_000), True),
        (answer(CONTENT, '{"answer": ' * 3_000), True),
        (answer("choices", [], program="ircot", client=CLIENTS[2]), True),
        (answer("usage.prompt_tokens", 10**400), True),
        (answer("usage.prompt_tokens_details.cached_tokens", 10**400), True),
        (answer("usage.prompt_tokens", -5), True),
    ],
}


@pytest.mark.parametrize("name", FOUND)
def test_what_ended_otherwise_once_does_not_any_more(name, tmp_path):
    with TARGETS[name].open(tmp_path) as attempt:
        for given, valid in FOUND[name]:
            assert feed(attempt, given) is valid, f"{given!r:.300}"


def test_a_server_that_drips_is_not_waited_for_longer_than_the_timeout(tmp_path):
    with TARGETS["answers"].open(tmp_path) as attempt:
        start = time.monotonic()
        assert feed(attempt, answer("id", "1", way="dripping"))
    assert time.monotonic() - start < 30
