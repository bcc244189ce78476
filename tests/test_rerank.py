"""A cross-encoder over a retriever: its scores, how many passages it reads and how often, and how a config names it."""

import asyncio
import json
import re

import pytest
import torch
from small_encoders import SIZES, WORDS, save_tokenizer, write
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, BertModel

from hoptimizer import Workbench, load_config
from hoptimizer.common.errors import UserError
from hoptimizer.retrieval import (
    BM25Retriever,
    Corpus,
    HybridSettings,
    Passage,
    RerankSettings,
    RetrieverSettings,
    build_retriever,
)
from hoptimizer.retrieval.rerank import CrossEncoder

ANIMALS = ["cat", "heron", "salmon", "ant", "horse", "whale", "owl", "toad"]
CORPUS = Corpus([Passage(a, a, f"The {a} of the river sleeps{' and eats' * n}.") for n, a in enumerate(ANIMALS)], "a")
QUERIES = ["Which bird of the river sleeps?", "the cat eats"]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOPTIMIZER_HOME", str(tmp_path / "home"))


@pytest.fixture
def folder(tmp_path):
    """An untrained cross-encoder."""
    config = BertConfig(vocab_size=len(WORDS), max_position_embeddings=64, num_labels=1, **SIZES)
    torch.manual_seed(3)
    model = BertForSequenceClassification(config)
    model.classifier.weight.data *= 50  # scores that differ
    model.save_pretrained(tmp_path / "cross")
    save_tokenizer(tmp_path / "cross")
    return tmp_path / "cross"


@pytest.fixture(autouse=True)
def _in_fp32(monkeypatch):
    monkeypatch.setattr("hoptimizer.retrieval.rerank.device_and_dtype", lambda: (torch.device("cpu"), torch.float32))


def settings(folder, **options):
    return RetrieverSettings(name="bm25", rerank=RerankSettings(model=str(folder), **options))


def scores_by_hand(folder, query):
    model = BertForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    scores = {}
    for passage in CORPUS:
        with torch.no_grad():
            inputs = tokenizer(query, str(passage), truncation="longest_first", max_length=64, return_tensors="pt")
            scores[passage.id] = model(**inputs).logits.item()
    return scores


def test_passages_are_ordered_by_the_scores_of_the_model(folder):
    found = build_retriever(settings(folder), CORPUS).search(QUERIES, 8)
    for query, ranking in zip(QUERIES, found, strict=True):
        expected = scores_by_hand(folder, query)
        assert {p.id: p.score for p in ranking} == pytest.approx(expected, abs=1e-3)
        assert [p.score for p in ranking] == sorted((p.score for p in ranking), reverse=True)
    assert [p.id for p in found[0]] != [p.id for p in BM25Retriever(CORPUS).search(QUERIES, 8)[0]]


@pytest.mark.parametrize(("depth", "k"), [(3, 2), (2, 5), (30, 3), (3, 1_000)])
def test_as_many_passages_are_read_as_the_depth_says_and_others_stay_behind_them(folder, depth, k):
    retriever = build_retriever(settings(folder, depth=depth, max_tokens=8 + depth), CORPUS)
    [found] = retriever.search(QUERIES[:1], k)
    [before] = BM25Retriever(CORPUS).search(QUERIES[:1], max(k, depth))
    assert retriever._scorer.passes == min(depth, len(CORPUS))
    assert len(found) == min(k, len(CORPUS))
    assert {p.id for p in found[:depth]} <= {p.id for p in before[:depth]}
    assert [p.id for p in found[depth:]] == [p.id for p in before[depth:]]
    scores = [p.score for p in found]
    assert scores == sorted(scores, reverse=True)


def test_searches_that_go_further_and_further_down_read_no_more(folder):
    retriever = build_retriever(settings(folder, depth=3, max_tokens=24), CORPUS)
    rankings = [asyncio.run(retriever.asearch(QUERIES[0], k)) for k in (1, 4, 1_000)]
    assert retriever._scorer.passes == 3
    assert [ranking[:4] for ranking in rankings] == [rankings[2][:1], rankings[2][:4], rankings[2][:4]]


def test_a_pair_is_scored_once_in_a_process(folder):
    first = build_retriever(settings(folder), CORPUS)
    found = first.search(QUERIES, 4)
    passes = first._scorer.passes
    again = build_retriever(settings(folder), Corpus(CORPUS.passages, "the same"))
    assert again.search([*QUERIES, *QUERIES], 4) == found * 2
    assert again._scorer.passes == passes == len(QUERIES) * len(CORPUS)


def test_only_the_latest_scores_are_remembered(folder, monkeypatch):
    monkeypatch.setattr("hoptimizer.retrieval.rerank._REMEMBERED", 3)
    encoder = CrossEncoder(str(folder), 64)
    pairs = [("owl", f"the {animal}") for animal in ANIMALS]
    assert encoder(pairs) == encoder(pairs)
    assert len(encoder._known) == 3


def test_a_query_is_scored_the_same_in_any_company(folder):
    retriever = build_retriever(settings(folder, max_tokens=63), CORPUS)
    together = retriever.search(QUERIES, 5)
    alone = CrossEncoder(str(folder), 63)
    assert [p.score for p in together[1]] == alone([(QUERIES[1], str(CORPUS[p.id])) for p in together[1]])


def test_a_long_passage_is_cut(folder):
    assert len(CrossEncoder(str(folder), 512)([("owl " * 500, "cat " * 500), ("", "")])) == 2


def two_labels(folder):
    config = json.loads((folder / "config.json").read_text())
    write(folder, "config.json", config | {"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0, "b": 1}})


def without_a_head(folder):
    BertModel(BertConfig(vocab_size=len(WORDS), max_position_embeddings=64, **SIZES)).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    write(folder, "config.json", config | {"id2label": {"0": "score"}, "label2id": {"score": 0}})


def as_pickles(folder):
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (two_labels, "has 2 labels, not one score"),
        (without_a_head, r"lack classifier\.bias"),
        (as_pickles, "lack bert"),
        (lambda f: write(f, "config.json", {"model_type": "own", "auto_map": {"AutoModel": "own.Own"}}), "can't load"),
    ],
)
def test_what_is_no_cross_encoder_is_one_line(folder, change, said):
    change(folder)
    with pytest.raises(UserError, match=said) as error:
        CrossEncoder(str(folder), 64)
    assert "\n" not in str(error.value)


def test_a_config_names_it_for_any_retriever(folder):
    words = ["data=atlas", f"retriever.rerank.model={folder}", "retriever.rerank.depth=5"]
    for name, shown in (("bm25", "bm25"), ("dense", "dense all-minilm-l6-v2"), ("hybrid", HybridSettings().shown)):
        config = load_config(None, [*words, f"retriever={name}"])
        assert config.retriever.rerank == RerankSettings(model=str(folder), depth=5)
        assert config.retriever.shown == f"{shown}, reranked by {folder}"
        assert load_config(None, [], config.public()).digest == config.digest
    [found] = Workbench(load_config(None, [*words, "retriever=bm25"])).retriever.search(["Who wrote Hamlet?"], 2)
    assert len(found) == 2
    for wrong, said in (
        ("retriever.rerank.deep=3", r"retriever\.rerank\.deep: unknown key; did you mean 'depth'"),
        ("retriever.rerank.depth=0", r"retriever\.rerank\.depth: input should be greater than or equal to 1"),
    ):
        with pytest.raises(UserError, match=said):
            load_config(None, [*words, wrong])


def test_a_config_without_one_is_the_one_that_it_was():
    config = load_config(None, ["data=atlas", "retriever=bm25"])
    assert "rerank" not in json.dumps(config.public())


def test_one_that_is_nowhere_is_named():
    with pytest.raises(UserError, match=re.escape("retriever.rerank.model: 'no such model' is no folder")):
        build_retriever(settings("no such model"), CORPUS)
