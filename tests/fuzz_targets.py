"""What strange inputs are fed to: config files, arguments, data files, stored variants."""

import contextlib
import io
import json
import os
import shutil
import socket
import sys
from pathlib import Path
from unittest.mock import patch

import pandas as pd
import yaml
from chat_server import ChatServer
from fuzz_values import as_json, as_yaml, changed, damaged, texts, values
from hypothesis import strategies as st

from hoptimizer import Workbench, answer_all, cli, config, load_config, load_study, load_variant, make_config
from hoptimizer.common.errors import ServiceError, UserError
from hoptimizer.eval import check, load
from hoptimizer.eval.datasets.folder import new
from hoptimizer.eval.datasets.importers import import_published
from hoptimizer.models import served
from hoptimizer.retrieval import BM25Retriever, Corpus, Passage
from hoptimizer.tracking.tracker import Tracker

SMALL = Corpus([Passage("lyon", "Lyon", "Lyon lies on the Rhône."), Passage("oslo", "Oslo", "Oslo is in Norway.")])
SERVER = "http://127.0.0.1:9/v1"  # where nobody answers
LM = {"model": "openai/scripted", "api_base": SERVER, "api_key": "none", "timeout": 1, "num_retries": 0}

CONFIGS = [
    {"data": "atlas", "program": "rag", "retriever": "bm25", "lm": LM},
    {
        "data": {"name": "atlas", "train": 12, "dev": 6},
        "program": {"name": "ircot", "max_steps": 3, "max_passages": 8, "reader": "cot"},
        "retriever": {"name": "bm25", "k": 4},
        "lm": {"default": LM, "teacher": "${lm.default}", "reader": "openai/gpt-4o", "judge": LM},
        "optimizer": {"name": "miprov2", "budget": {"lm_calls": 200, "minutes": 5}, "prompt_formats": ["json"]},
        "metric": {"f1": 1.0, "lm_calls": -0.01},
        "tracking": {"uri": "sqlite:///mlflow.db", "experiment": "one"},
        "seed": 7,
        "workers": 8,
        "max_unanswered": 0.1,
    },
    {"data": "atlas", "program": {"name": "ra_isf", "preset": "paper"}, "retriever": "bm25", "optimizer": "distill"},
    {
        "data": "atlas",
        "program": "efficient_rag",
        "retriever": {"name": "colbert", "url": "http://127.0.0.1:9"},
        "lm": LM | {"extra_headers": {"X-Key": "abc"}, "extra_body": {"top_k": 5, "stop": ["."]}},
        "optimizer": {"name": "better_together", "strategy": [{"name": "labeled_few_shot", "k": 2}, "gepa"]},
    },
    {"data": "atlas", "optimizer": {"name": "ensemble", "of": {"name": "bootstrap_random_search"}, "size": 2}},
]
STUDIES = [
    {
        "base": {"data": {"name": "atlas", "dev": 5}, "program": "rag", "retriever": "bm25", "lm": LM},
        "grid": {"retriever.k": [2, 4], "program.reader": ["cot", "none"]},
        "seeds": [1, 2],
        "rows": ["retriever.k"],
        "columns": ["program.reader"],
        "figures": ["f1", "recall"],
        "plot": {"x": "retriever.k", "y": "f1"},
    },
    {
        "base": {"data": "atlas", "retriever": {"name": "bm25"}, "lm": LM},
        "cells": [
            {"name": "one", "program": {"name": "direct"}},
            {"name": "two", "program.name": "rag", "compile": True},
        ],
        "split": "test",
    },
]
WORDS = [
    "data=atlas",
    "data.dev=3",
    "data={name: atlas, train: 4}",
    "program=ircot",
    "program.max_steps=2",
    "retriever.k=3",
    "lm=openai/x",
    "lm.default.temperature=0.5",
    "lm.reader.model=openai/y",
    "optimizer.budget.lm_calls=50",
    "metric={f1: 1, lm_calls: -0.01}",
    "tracking.uri=sqlite:///mlflow.db",
    "seed=1",
    "workers=2",
]


@st.composite
def words(draw, known=tuple(WORDS)):
    """A ``key=value`` argument, whole or changed."""
    key, _, value = draw(st.sampled_from(known)).partition("=")
    match draw(st.sampled_from(["whole", "value", "value", "key", "cut"])):
        case "value":
            value = draw(texts() | st.builds(as_yaml, values()))
        case "key":
            key = draw(st.sampled_from([f"{key}.", f".{key}", f"{key}s", f"{key}.x", f"{key}[0]", "a..b"]) | texts())
        case "cut":
            return f"{key}={value}"[: draw(st.integers(0, len(key) + len(value)))]
    return f"{key}={value}"


@contextlib.contextmanager
def alone(folder):
    """A home of one's own, and a machine that reaches nobody else; what a server does not answer is not asked again."""
    look_up = socket.getaddrinfo

    def here(host, *rest, **options):
        if host not in ("127.0.0.1", b"127.0.0.1"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return look_up(host, *rest, **options)

    before = Path.cwd()
    environment = {"HOPTIMIZER_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1"}
    with (
        patch.dict(os.environ, environment),
        patch("socket.getaddrinfo", here),
        patch.object(config, "DEFAULT_LM", "openai/nobody"),
        patch.object(served._Patience, "_again", staticmethod(lambda _: False)),
    ):
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


CONFIG_FILES = st.tuples(
    st.just("config.yaml"), damaged(st.builds(as_yaml, changed(CONFIGS))), st.lists(words(), max_size=1)
) | st.tuples(st.just("study.yaml"), damaged(st.builds(as_yaml, changed(STUDIES))), st.lists(words(), max_size=1))


@contextlib.contextmanager
def config_files(folder):
    """Takes a file's name, its bytes, and arguments."""

    def attempt(one):
        name, content, overrides = one
        Path(name).write_bytes(content)
        if name == "study.yaml":
            study = load_study(Path(name), overrides)
            configs = [cell.config for cell in study.cells[:2]]
            json.dumps([study.digest, [cell.place for cell in study.cells]]).encode()
        else:
            configs = [load_config(Path(name), overrides)]
        for made in configs:
            use(made)

    with alone(folder):
        yield attempt


def use(made):
    """What a command does with a config before anything is asked: it can be kept, and its parts can be made."""
    public = made.public()
    text = yaml.safe_dump(public, allow_unicode=True).encode()
    json.dumps(public, allow_nan=False).encode()
    again = make_config(yaml.safe_load(text))
    if again.public() != public or again.digest != made.digest:
        raise AssertionError(f"kept as another config: {public} {again.public()}")
    bench = Workbench(made)
    bench.retriever = BM25Retriever(SMALL)
    bench.summary("dev", "train").encode()
    bench.lms  # noqa: B018 - they are made now
    bench.program()
    bench.optimizer()


HOTPOT = {
    "_id": "h1",
    "type": "bridge",
    "question": "Where was the bridge's designer born?",
    "answer": "Lyon",
    "context": [["The Bridge", ["It is of steel.", " Ines Moreau designed it."]], ["Ines Moreau", ["Born in Lyon."]]],
    "supporting_facts": [["Ines Moreau", 0], ["The Bridge", 1]],
}
WIKI = HOTPOT | {"evidences": [["The Bridge", "designer", "Ines Moreau"], ["Ines Moreau", "birth", "Lyon"]]}
MUSIQUE = {
    "id": "2hop__1_2",
    "question": "Where was the bridge's designer born?",
    "answer": "Lyon",
    "answer_aliases": ["Lyons"],
    "answerable": True,
    "paragraphs": [{"idx": 1, "title": "Bridge", "paragraph_text": "By Ines Moreau.", "is_supporting": True}],
    "question_decomposition": [{"id": 12, "question": "#1 >> x", "answer": "Ines", "paragraph_support_idx": 1}],
}
STRATEGY = {"qid": "s1", "question": "Is it?", "answer": True, "term": "Lyon", "facts": ["Lyon is.", "It is."]}
OPEN = {"question": "Where?", "answer": ["Lyon", "Lyons"]}
SPAN = {"start_token": 0, "end_token": 4}
NQ = {
    "example_id": 12,
    "question_text": "where?",
    "document_url": "https://example.org/?title=Lyon",
    "document_text": "<P> Lyon lies here </P>",
    "long_answer_candidates": [SPAN | {"end_token": 5, "top_level": True}],
    "annotations": [
        {"long_answer": SPAN, "short_answers": [{"start_token": 1, "end_token": 2}], "yes_no_answer": "NONE"}
    ],
}
TRIVIA = {
    "QuestionId": "tc_1",
    "Question": "Where?",
    "Answer": {"Value": "Lyon", "Aliases": ["Lyons"]},
    "EntityPages": [{"Title": "Lyon", "Filename": "Lyon.txt", "text": "Lyon lies here."}],
}
IIRC = {
    "title": "The Bridge",
    "text": "Ines designed it.",
    "links": [{"target": "Lyon", "indices": [0, 4]}],
    "questions": [
        {
            "question": "Where?",
            "context": [
                {"text": "Lyon lies", "passage": "Lyon", "indices": [0, 9]},
                {"text": "Ines", "passage": "main"},
            ],
            "answer": {"type": "span", "answer_spans": [{"text": "Lyon"}]},
        }
    ],
}
ARTICLES = {
    "lyon": '<a href="x">Lyon</a> lies where two rivers meet, and has been there for two thousand years.',
    "b": "",
}
PUBLISHED = [
    ("hotpotqa", HOTPOT),
    ("fullwiki", HOTPOT),
    ("2wikimultihopqa", WIKI | {"answer_id": "Q1"}),
    ("musique", MUSIQUE),
    ("strategyqa", STRATEGY),
    ("nq", OPEN),
    ("nq", NQ),
    ("triviaqa", TRIVIA),
    ("iirc", IIRC),
]
BESIDE = {"aliases": "id_aliases.json", "articles": "context_articles.json"}
CHAIN = {"_id": "h1", "qa_pairs": [{"question": "Who?", "answer": "Ines"}], "explanation": "Because."}
ALIASES = {"Q_id": "Q1", "aliases": ["Lyons"], "demonyms": ["Lyonnais"]}
PASSAGES = [{"id": "lyon", "title": "Lyon", "text": "Lyon lies on the Rhône."}, {"id": "b", "text": "Moreau."}]
QUESTIONS = [
    {
        "id": "1",
        "question": "Where?",
        "answers": ["Lyon"],
        "passages": ["lyon"],
        "hops": [{"question": "Who?", "answer": "Moreau", "passage": "b"}],
        "rationale": "So it is Lyon.",
        "type": "bridge",
    },
    {"id": "2", "question": "Who?", "answers": ["Ines", "Moreau"]},
]
SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")


def as_lines(rows):
    return "\n".join(as_json(row) for row in rows) if isinstance(rows, list) else as_json(rows)


def as_csv(rows):
    rows = [row if isinstance(row, dict) else {"id": row} for row in (rows if isinstance(rows, list) else [rows])]
    cells = [{key: as_json(value) if isinstance(value, list) else value for key, value in row.items()} for row in rows]
    return pd.DataFrame(cells, dtype=object).to_csv(index=False)


@st.composite
def tables(draw, rows, suffixes=SUFFIXES):
    """The suffix and the bytes of a file that holds rows."""
    suffix = draw(st.sampled_from(suffixes))
    drawn = changed([rows])
    if suffix == ".parquet":
        return suffix, parquet(draw(drawn), draw(st.integers(0, 5_000)), draw(st.binary(max_size=4)))
    write = {".jsonl": as_lines, ".json": as_json, ".csv": as_csv}[suffix]
    return suffix, draw(damaged(st.builds(write, drawn)))


def parquet(rows, place, put_in):
    """A parquet file of rows, some of its bytes replaced; one of columns of many kinds where these are no table."""
    file = io.BytesIO()
    try:
        pd.DataFrame(rows).to_parquet(file)
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, RuntimeError, NotImplementedError):
        kinds = {"when": pd.Timestamp("2024-01-31"), "raw": b"\xff\xfe", "far": 1e308, "some": [1.5, None]}
        pd.DataFrame([{"id": 1, "text": "x", **kinds}]).to_parquet(file)
    content = file.getvalue()
    return content[:place] + put_in + content[place + len(put_in) :]


DATA_FILES = st.one_of(
    *(
        st.tuples(
            st.just(name),
            tables([row, row | {next(iter(row)): "another"}], (".jsonl", ".json")),
            st.fixed_dictionaries(
                {},
                optional={
                    "corpus": tables(PASSAGES),
                    "decompositions": tables([CHAIN], (".jsonl", ".json")),
                    "aliases": tables([ALIASES], (".jsonl",)),
                    "articles": st.tuples(st.just(".json"), damaged(changed([ARTICLES]).map(as_json))),
                },
            ),
        )
        for name, row in PUBLISHED
    ),
    st.tuples(st.just("folder"), tables(PASSAGES), st.fixed_dictionaries({"dev": tables(QUESTIONS)})),
)


@contextlib.contextmanager
def data_files(folder):
    """Takes a format (``folder`` for a data set's own), its file's suffix and bytes, and those of the files beside."""

    def attempt(one):
        name, (suffix, content), beside = one
        shutil.rmtree("data", ignore_errors=True)
        Path("data").mkdir()
        if name == "folder":
            Path(f"data/corpus{suffix}").write_bytes(content)
            Path(f"data/dev{beside['dev'][0]}").write_bytes(beside["dev"][1])
            read("data")
            return
        file = Path(f"data/published{suffix}")
        file.write_bytes(content)
        Path("data/context_articles.json").write_text(as_json(ARTICLES))
        options = {"skip_bad": len(content) % 2 == 0, "chunk": "words:3" if len(content) % 3 == 0 else None}
        for key, (ending, more) in beside.items():
            path = Path("data") / BESIDE.get(key, f"{key}{ending}")
            path.write_bytes(more)
            if key not in BESIDE and (name, key) != ("iirc", "corpus"):
                options[key] = [path] if key == "decompositions" else path
        if name != "2wikimultihopqa":
            options.pop("decompositions", None)
        import_published(name, {"dev": file}, Path("data/made"), **options)
        if problems := check("data/made").problems:
            raise AssertionError(f"what was imported is no data set: {problems}")
        read("data/made")

    with alone(folder):
        yield attempt


def read(folder):
    """A data set's folder is usable, or the check of it says what is wrong."""
    found = check(folder)
    json.dumps(found.model_dump()).encode()
    try:
        data = load(folder)
    except UserError:
        if not found.problems:
            raise AssertionError("the check finds nothing wrong") from None
        raise
    if found.problems:
        raise AssertionError(f"it is read, but {found.problems}")
    data.digest.encode()
    for question in data.split("dev"):
        question.to_dspy()
    if data.corpus:
        BM25Retriever(data.corpus).search([question.question for question in data.split("dev")], 2)


STATES = [
    {
        "reader": {
            "traces": [],
            "train": [],
            "fields": {},
            "demos": [
                {"question": "Where?", "context": ["Lyon: a city."], "answer": "Lyon"},
                {"augmented": True, "question": "Who?", "context": [], "answer": "Ines"},
            ],
            "signature": {
                "instructions": "Answer the question.",
                "fields": [
                    {"prefix": "Context:", "description": "passages"},
                    {"prefix": "Question:", "description": "${question}"},
                    {"prefix": "Answer:", "description": "a name"},
                ],
            },
            "lm": None,
        },
        "program": {"prompt_format": "json", "models": [], "lms": {}},
    }
]
STATES.append({"program": {"members": [STATES[0], STATES[0]]}})
STATES.append(
    STATES[0]
    | {
        "program": STATES[0]["program"]
        | {
            "neighbours": {
                "k": 1,
                "encoder": "nowhere",
                "pool": [["Who?", {"reader": STATES[0]["reader"]["demos"][0]}]],
            }
        }
    }
)
STORED = [
    {
        "data": {"name": "atlas", "dev": 3},
        "program": {"name": "rag", "reader": "direct", "steps": {}},
        "retriever": {"name": "bm25", "k": 2},
        "lm": {"default": LM},
        "optimizer": {"name": "labeled_few_shot"},
        "metric": "f1",
        "tracking": {"uri": "sqlite:///mlflow.db"},
        "seed": 7,
    }
]
VARIANTS = st.tuples(damaged(st.builds(as_yaml, changed(STORED))), damaged(st.builds(as_json, st.just(STATES[0])))) | (
    st.tuples(damaged(st.builds(as_yaml, st.just(STORED[0]))), damaged(st.builds(as_json, changed(STATES))))
)


@contextlib.contextmanager
def variants(folder):
    """Takes the bytes of a config and of a state, and asks the program."""

    bm25 = BM25Retriever(SMALL)
    answer = "[[ ## answer ## ]]\nLyon\n\n[[ ## completed ## ]]"

    def attempt(one):
        Path("config.yaml").write_bytes(one[0].replace(SERVER.encode(), server.url.encode()))
        Path("program.json").write_bytes(one[1])
        with patch.object(Workbench, "check_lms", lambda *_, **__: None), patch.object(Workbench, "retriever", bm25):
            program = load_variant(Path.cwd())
        json.dumps(program.program.dump_state(), allow_nan=False).encode()
        json.dumps(answer_all(program, ["Where does the Rhône flow?"]), allow_nan=False).encode()

    with alone(folder), ChatServer(lambda _: answer) as server:
        yield attempt


COMMANDS = [
    "eval CONFIG W W --split dev --json",
    "compile W W W --split test",
    "compare W --split dev --metric f1 --by type --json",
    "compare 1f2e W",
    "eval --run 1f2e W",
    "study STUDY W --json",
    "ask T CONFIG W --json",
    "data check d --json",
    "data check d --corpus d/corpus.jsonl",
    "data import hotpotqa published.json --out made --sizes train=0.5,dev=0.5 --seed 1",
    "data import hotpotqa train=published.json dev=published.json --out made --corpus d/corpus.jsonl",
    "data join d=1 atlas=2 --out made --dev 1 --test 1 --seed 3",
    "data divide d --parts 2 --out made",
    "data new made",
    "data show-labels atlas --split dev -n 1 --question dev-001",
    "data list --json",
    "models list",
    "models pull scripted",
    "index search T CONFIG W --json",
    "index info CONFIG W",
    "index build CONFIG W",
    "index push CONFIG W",
    "doctor CONFIG W --json",
    "--version",
]
# What the arguments of a process can hold: no NUL, and halves of characters only where bytes are no UTF-8.
_ARGUMENTS = str.maketrans({"\x00": "?"} | {chr(code): "\udcff" for code in range(0xD800, 0xE000)})


@st.composite
def command_lines(draw):
    """A command's arguments, some of them changed, left out, doubled or in another place."""
    line = []
    for word in draw(st.sampled_from(COMMANDS)).split():
        line.append(draw({"W": words(), "T": texts()}[word]) if word in ("W", "T") else word)
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(line) - 1)) if line else 0
        match draw(st.sampled_from(["other", "gone", "twice", "swapped", "word"])):
            case "other" if line:
                line[place] = draw(texts())
            case "gone" if line:
                del line[place]
            case "twice" if line:
                line.insert(place, line[place])
            case "swapped":
                line.append(line.pop(place) if line else "")
            case _:
                line.insert(place, draw(words()))
    return [word.translate(_ARGUMENTS) for word in line]


COMMAND_LINES = command_lines()


@contextlib.contextmanager
def arguments(folder):
    """Takes the arguments of ``hop``, up to where it would begin to work."""
    with alone(folder):
        new(Path("d"))
        Path("CONFIG").write_text(as_yaml(CONFIGS[0]))
        Path("STUDY").write_text(as_yaml(STUDIES[0]))
        Path("published.json").write_text(json.dumps([HOTPOT, HOTPOT | {"_id": "h2"}]))
        Tracker("sqlite:///mlflow.db", "atlas")  # takes seconds where there is none
        with patch.object(Workbench, "retriever", BM25Retriever(SMALL)):
            yield hop


def hop(line):
    """Run ``hop``.

    Raises:
        UserError: it ended with another exit code than 0.
    """
    shutil.rmtree("made", ignore_errors=True)
    # As strict as a terminal's, a file's and a pipe's are.
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    with (
        patch.object(sys, "argv", ["hop", *line]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        patch.object(Workbench, "check_lms", _nobody),
    ):
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        out.flush()
    err.flush()
    said = err.buffer.getvalue().decode()
    if code not in (0, 1, 2) or "Traceback" in said:
        raise AssertionError(f"exit code {code}: {said[-500:]}")
    if code:
        lines = [one for one in said.splitlines() if one.startswith("hop: ") and not one.startswith("hop: cell ")]
        if len(lines) > 1:
            raise AssertionError(f"{len(lines)} lines: {said[-500:]}")
        raise UserError(f"exit code {code}")


def _nobody(*_, **__):
    raise ServiceError("nobody is asked here")
