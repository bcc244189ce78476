"""ColBERT checkpoints in PyLate's layout: vectors by transformers and the projection, and what is refused."""

import shutil
import string

import pytest
import torch
from small_encoders import HIDDEN, save_dense, save_modules, tiny_bert, tiny_modernbert, write
from torch import nn
from transformers import AutoModel, AutoTokenizer

from hoptimizer.common.errors import UserError
from hoptimizer.retrieval import Corpus, Passage, RetrieverSettings, build_retriever, index_info
from hoptimizer.retrieval.colbert.checkpoint import find_checkpoint
from hoptimizer.retrieval.colbert.retriever import load_encoder

TRANSFORMER, DENSE = "sentence_transformers.models.Transformer", "pylate.models.Dense.Dense"
IDENTITY = "torch.nn.modules.linear.Identity"
PREFIXES = ("[Q] ", "[D] ")
# As lightonai/GTE-ModernColBERT-v1 has them, with fewer tokens.
PUBLISHED = {
    "prompts": {},
    "default_prompt_name": None,
    "similarity_fn_name": "MaxSim",
    "query_prefix": "[Q] ",
    "document_prefix": "[D] ",
    "query_length": 12,
    "document_length": 16,
    "attend_to_expansion_tokens": False,
    "skiplist_words": list(string.punctuation),
}
TEXTS = ["The owl of the river sleeps.", "Which bird eats: the heron?", "cat", "the toad " * 20]


@pytest.fixture(autouse=True)
def _in_fp32(monkeypatch):
    monkeypatch.setattr(
        "hoptimizer.retrieval.colbert.pylate.device_and_dtype", lambda: (torch.device("cpu"), torch.float32)
    )


def published(folder, make=tiny_modernbert, dim=8, **settings):
    """A checkpoint with one projection; gives its weights."""
    make(folder, added=PREFIXES) if make is tiny_modernbert else make(folder)
    save_modules(folder, ("", TRANSFORMER), ("1_Dense", DENSE))
    write(folder, "config_sentence_transformers.json", PUBLISHED | settings)
    return save_dense(folder / "1_Dense", (HIDDEN, dim), IDENTITY, bias=False)


def by_hand(folder, text, project, prefix, longest, expand=False, attend=False, skipped=""):
    """Token vectors of a text by transformers alone."""
    model, tokenizer = (
        AutoModel.from_pretrained(folder, dtype=torch.float32).eval(),
        AutoTokenizer.from_pretrained(folder),
    )
    ids = tokenizer(text.strip(), truncation=True, max_length=longest - bool(prefix))["input_ids"]
    ids = [ids[0], *([tokenizer.convert_tokens_to_ids(prefix)] if prefix else []), *ids[1:]]
    filled = longest - len(ids) if expand else 0
    mask = [1] * len(ids) + [int(attend)] * filled
    ids = ids + [tokenizer.mask_token_id] * filled
    with torch.no_grad():
        hidden = model(torch.tensor([ids]), attention_mask=torch.tensor([mask])).last_hidden_state[0]
        vectors = nn.functional.normalize(project(hidden), dim=-1)
    skip = {tokenizer.convert_tokens_to_ids(word) for word in skipped}
    return vectors[[id not in skip for id in ids]]


def linear(weights):
    return lambda hidden: hidden @ weights["linear.weight"].T


def check(folder, project, queries, passages):
    """Compare the encoder's vectors with those that are made by hand."""
    encoder = load_encoder(find_checkpoint(str(folder)))
    for found, text in zip(encoder.queries(TEXTS), TEXTS, strict=True):
        torch.testing.assert_close(found, by_hand(folder, text, project, **queries), atol=1e-5, rtol=1e-4)
    seen = []
    for places, vectors in encoder.passages(TEXTS):
        for place, found in zip(places, vectors, strict=True):
            seen.append(place)
            expected = by_hand(folder, TEXTS[place], project, **passages)
            torch.testing.assert_close(found.float(), expected, atol=1e-3, rtol=1e-2)  # fp16
    assert sorted(seen) == list(range(len(TEXTS)))


def test_vectors_are_those_of_modernbert_and_the_projection(tmp_path):
    weights = published(tmp_path)
    queries = {"prefix": "[Q] ", "longest": 12, "expand": True}
    check(tmp_path, linear(weights), queries, {"prefix": "[D] ", "longest": 16, "skipped": ":.?"})


def test_queries_may_attend_to_what_fills_them_up(tmp_path):
    weights = published(tmp_path, attend_to_expansion_tokens=True)
    queries = {"prefix": "[Q] ", "longest": 12, "expand": True, "attend": True}
    check(tmp_path, linear(weights), queries, {"prefix": "[D] ", "longest": 16, "skipped": ":.?"})


def test_queries_need_not_be_filled_up_and_prefixes_need_not_be_there(tmp_path):
    settings = {"do_query_expansion": False, "query_prefix": "", "document_prefix": "", "skiplist_words": ["the"]}
    weights = published(tmp_path, tiny_bert, **settings)
    queries = {"prefix": "", "longest": 12}
    check(tmp_path, linear(weights), queries, {"prefix": "", "longest": 16, "skipped": ["the"]})


def test_projections_may_be_several_with_activation_and_residual(tmp_path):
    published(tmp_path)
    first = save_dense(tmp_path / "1_Dense", (HIDDEN, 8), "torch.nn.modules.activation.GELU", use_residual=True)
    second = save_dense(tmp_path / "2_Dense", (8, 8), IDENTITY, bias=True, use_residual=True)
    save_modules(tmp_path, ("", TRANSFORMER), ("1_Dense", DENSE), ("2_Dense", DENSE))

    def project(hidden):
        once = nn.functional.gelu(hidden @ first["linear.weight"].T) + hidden @ first["residual.weight"].T
        return once @ second["linear.weight"].T + second["linear.bias"] + once

    queries = {"prefix": "[Q] ", "longest": 12, "expand": True}
    check(tmp_path, project, queries, {"prefix": "[D] ", "longest": 16, "skipped": ":.?"})


def test_it_searches_and_its_index_is_tied_to_all_of_its_files(tmp_path, monkeypatch):
    monkeypatch.setenv("HOPTIMIZER_HOME", str(tmp_path / "home"))
    folder = tmp_path / "checkpoint"
    published(folder)
    animals = ["cat", "heron", "salmon", "ant", "horse", "whale", "owl", "toad"]
    corpus = Corpus([Passage(a, a, f"The {a} of the river sleeps.") for a in animals], "animals")
    settings = RetrieverSettings(checkpoint=str(folder))
    [found] = build_retriever(settings, corpus).search(["the owl sleeps"], 8)
    encoder = load_encoder(find_checkpoint(str(folder)))
    [query] = encoder.queries(["the owl sleeps"])
    expected = {
        animals[place]: (vectors.float() @ query.T).amax(0).sum().item()
        for places, batch in encoder.passages([str(passage) for passage in corpus])
        for place, vectors in zip(places, batch, strict=True)
    }
    assert {p.id: p.score for p in found} == pytest.approx(expected, abs=2e-4)
    assert index_info(settings, corpus)["state"] == "ready"
    for change in (
        lambda: write(folder, "config_sentence_transformers.json", PUBLISHED | {"document_length": 15}),
        lambda: save_dense(folder / "1_Dense", (HIDDEN, 8), IDENTITY, bias=False),
    ):
        change()
        assert index_info(settings, corpus)["state"] == "absent"


def test_what_is_cut_is_counted_with_the_token_that_marks_a_passage(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("HOPTIMIZER_HOME", str(tmp_path / "home"))
    folder = tmp_path / "checkpoint"
    texts = ["the " * 13, "the " * 14, "", "the " * 15]
    corpus = Corpus([Passage(str(n), "", text) for n, text in enumerate(texts)])
    for settings, cut in (({}, 2), ({"document_prefix": ""}, 1), ({"document_length": 18}, 0)):
        published(folder, **settings)
        build_retriever(RetrieverSettings(checkpoint=str(folder)), corpus)
        said = [record.getMessage().split(" that ")[0] for record in caplog.records]
        caplog.clear()
        assert said == [f"retriever: {cut} of the encoded passages are longer than the 16 tokens"] * bool(cut)


def unlike(folder):
    shutil.rmtree(folder)
    published(folder)
    tiny_modernbert(folder)  # without the prefixes


def of_another_model(folder):
    tokenizers = folder.with_name("others")
    tiny_modernbert(tokenizers, added=("more", *PREFIXES))
    for file in tokenizers.glob("tokenizer*"):
        shutil.copy(file, folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda f: save_modules(f, ("", TRANSFORMER)), "has no projection of its tokens"),
        (lambda f: save_modules(f, ("", TRANSFORMER), ("1_Dense", "evil.Own")), "'evil.Own' is not known here"),
        (lambda f: save_dense(f / "1_Dense", (HIDDEN, 8), "os.system"), "'os.system' is not known here"),
        (lambda f: (f / "1_Dense" / "model.safetensors").unlink(), "convert them to safetensors"),
        (lambda f: save_dense(f / "1_Dense", (4, 8), IDENTITY), "no linear.weight for vectors of 16 numbers"),
        (lambda f: write(f, "config_sentence_transformers.json", PUBLISHED | {"query_length": "x"}), "query_length"),
        (unlike, r"has no token '\[Q\] '"),
        (of_another_model, "has tokens that its model does not know"),
        (lambda f: write(f, "config.json", {"model_type": "own", "auto_map": {"AutoModel": "own.Own"}}), "can't load"),
    ],
)
def test_what_is_not_known_or_does_not_fit_is_one_line(tmp_path, change, said):
    folder = tmp_path / "checkpoint"
    published(folder)
    change(folder)
    with pytest.raises(UserError, match=said) as error:
        load_encoder(find_checkpoint(str(folder)))
    assert "\n" not in str(error.value)


@pytest.mark.slow(reason="the one test of PLAID over a checkpoint that colbert-ai itself can't load; it may compile")
def test_plaid_searches_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HOPTIMIZER_HOME", str(tmp_path / "home"))
    published(tmp_path / "checkpoint", dim=32)  # like 96, no multiple of 64
    words = ["cat", "heron", "salmon", "ant", "horse", "whale", "owl", "toad"]
    texts = [f"The {a} eats the {b} of the {c}." for a in words for b in words for c in ("river", "forest", "desert")]
    corpus = Corpus([Passage(str(n), "", text) for n, text in enumerate(texts)], "animals")
    plaid, exact = (
        build_retriever(RetrieverSettings(checkpoint=str(tmp_path / "checkpoint"), index=index), corpus).search(
            ["Which owl eats the toad?"], k
        )[0]
        for index, k in (("plaid", 10), ("exact", len(texts)))
    )
    # The texts are so much alike that others are as good as the best ten, but for what rounding changes.
    scores = {passage.id: passage.score for passage in exact}
    assert min(scores[passage.id] for passage in plaid) > exact[9].score - 0.02
