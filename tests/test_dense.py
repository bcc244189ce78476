"""Dense retrieval: vectors as the model's files describe them, indexes that are kept, exact search."""

import logging
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_encoders import HIDDEN, SIZES, WORDS, save_dense, save_modules, save_tokenizer, tiny_bert, write
from torch import nn
from transformers import (
    AutoModel,
    AutoTokenizer,
    CanineTokenizer,
    RobertaConfig,
    RobertaForSequenceClassification,
    RobertaModel,
)

from hoptimizer import Workbench, load_config
from hoptimizer.common.errors import UserError
from hoptimizer.retrieval import Corpus, DenseSettings, Passage, RerankSettings, build_retriever, index_info
from hoptimizer.retrieval.dense.encoder import DenseEncoder
from hoptimizer.retrieval.dense.model import find_model
from hoptimizer.retrieval.dense.vectors import VectorIndex
from hoptimizer.retrieval.encoders.cut import cut_rows

ST = "sentence_transformers.models"
TEXTS = ["The cat of the river sleeps.", "Which bird eats?", "", "the owl " * 40]


@pytest.fixture
def corpus():
    animals = ["cat", "heron", "salmon", "ant", "horse", "whale", "owl", "toad"]
    texts = [
        (a, f"The {a} of the {p} sleeps{' and eats' * n}.") for n, a in enumerate(animals) for p in ("river", "desert")
    ]
    return Corpus([Passage(f"p{i}", title, text) for i, (title, text) in enumerate(texts)], "animals")


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOPTIMIZER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def in_fp32(monkeypatch):
    monkeypatch.setattr(
        "hoptimizer.retrieval.dense.encoder.device_and_dtype", lambda: (torch.device("cpu"), torch.float32)
    )


def published(folder, pooling, *, activation=None, normalize=True, **settings):
    """A BERT in the layout of sentence-transformers; gives the weights of its projection."""
    tiny_bert(folder)
    modules = [("", f"{ST}.Transformer"), ("1_Pooling", f"{ST}.Pooling")]
    write(folder / "1_Pooling", "config.json", pooling)
    weights = None
    if activation:
        weights = save_dense(folder / "2_Dense", (HIDDEN, 8), f"torch.nn.modules.{activation}", bias=True)
        modules.append(("2_Dense", f"{ST}.Dense"))
    if normalize:
        modules.append(("3_Normalize", f"{ST}.Normalize"))
    save_modules(folder, *modules)
    write(folder, "config_sentence_transformers.json", settings)
    return weights


def vectors_by_hand(folder, texts, pooling="mean", longest=64):
    """Pooled hidden states, text by text, by transformers alone."""
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = []
    for text in texts:
        tokens = tokenizer(text, truncation=True, max_length=longest, return_tensors="pt")
        with torch.no_grad():
            hidden = model(**tokens).last_hidden_state[0]
        rows.append({"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}[pooling])
    return torch.stack(rows)


def encoded(folder, texts, **options):
    """Vectors of the texts as queries and as passages."""
    encoder = DenseEncoder(find_model(DenseSettings(model=str(folder), **options)))
    passages = torch.empty(len(texts), encoder.dim)
    for places, vectors in encoder.passages(texts):
        passages[places] = vectors.float()
    return encoder.queries(texts), passages


@pytest.mark.parametrize(
    ("said", "pooling"),
    [
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "last"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": "lasttoken"}, "last"),
    ],
)
def test_vectors_are_those_that_the_files_of_sentence_transformers_describe(tmp_path, in_fp32, said, pooling):
    published(tmp_path, {"word_embedding_dimension": HIDDEN, **said}, normalize=pooling != "cls")
    expected = vectors_by_hand(tmp_path, TEXTS, pooling)
    expected = expected if pooling == "cls" else nn.functional.normalize(expected, dim=-1)
    queries, passages = encoded(tmp_path, TEXTS)
    torch.testing.assert_close(queries, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(passages, expected, atol=2e-3, rtol=2e-3)  # fp16


@pytest.mark.parametrize(("activation", "applied"), [("activation.Tanh", torch.tanh), ("linear.Identity", lambda v: v)])
def test_a_projection_stands_between_pooling_and_normalization(tmp_path, in_fp32, activation, applied):
    weights = published(tmp_path, {"pooling_mode": "mean"}, activation=activation)
    pooled = vectors_by_hand(tmp_path, TEXTS)
    projected = applied(pooled @ weights["linear.weight"].T + weights["linear.bias"])
    queries, _ = encoded(tmp_path, TEXTS)
    torch.testing.assert_close(queries, nn.functional.normalize(projected, dim=-1), atol=1e-5, rtol=1e-5)


def test_prompts_stand_before_queries_and_passages(tmp_path, in_fp32):
    published(tmp_path, {"pooling_mode": "mean"}, prompts={"query": "query: ", "document": "passage: "})
    queries, passages = encoded(tmp_path, TEXTS[:2])
    for found, prompt in ((queries, "query: "), (passages, "passage: ")):
        expected = nn.functional.normalize(vectors_by_hand(tmp_path, [prompt + text for text in TEXTS[:2]]), dim=-1)
        torch.testing.assert_close(found, expected, atol=2e-3, rtol=2e-3)


def test_what_is_cut_is_counted_with_its_prompt(tmp_path, home, caplog):
    published(tmp_path, {"pooling_mode": "mean"})
    corpus = Corpus([Passage(str(n), "", "the " * n) for n in (0, 59, 60, 61, 62, 63, 100)])
    for prefix, cut in (("", 2), ("passage: ", 4)):  # of 64 tokens two are marks
        build_retriever(DenseSettings(model=str(tmp_path), passage_prefix=prefix), corpus)
        [record] = caplog.records
        caplog.clear()
        said = f"retriever: {cut} of the encoded passages are longer than the 64 tokens that the retriever reads of one"
        assert record.getMessage().startswith(said)


def test_where_a_tokenizer_in_python_cuts_is_seen_by_the_length():
    encoded = CanineTokenizer()(["owl", "ow", "", "owls and"], truncation=True, padding=True, max_length=5)
    assert cut_rows(encoded, 5) == [0, 3]  # the first one just fits: that can't be told


def test_no_queries_have_no_vectors(tmp_path):
    tiny_bert(tmp_path)
    assert DenseEncoder(find_model(DenseSettings(model=str(tmp_path)))).queries([]).shape == (0, HIDDEN)


def test_the_default_prompt_is_for_both_where_no_other_is(tmp_path, in_fp32):
    published(tmp_path, {"pooling_mode": "mean"}, prompts={"any": "a: "}, default_prompt_name="any")
    assert find_model(DenseSettings(model=str(tmp_path))).encoding.query_prefix == "a: "
    assert find_model(DenseSettings(model=str(tmp_path))).encoding.passage_prefix == "a: "


def test_options_win_over_the_files(tmp_path, in_fp32):
    published(tmp_path, {"pooling_mode": "max"}, prompts={"query": "which: "})
    write(tmp_path, "sentence_bert_config.json", {"max_seq_length": 32, "do_lower_case": False})
    options = {"pooling": "cls", "normalize": False, "query_prefix": "", "max_tokens": 8}
    queries, _ = encoded(tmp_path, TEXTS, **options)
    torch.testing.assert_close(queries, vectors_by_hand(tmp_path, TEXTS, "cls", longest=8), atol=1e-5, rtol=1e-5)


def test_texts_are_cut_and_lowered_as_the_files_say(tmp_path, in_fp32):
    published(tmp_path, {"pooling_mode": "mean"})
    tiny_bert(tmp_path, lower=False)
    write(tmp_path, "sentence_bert_config.json", {"max_seq_length": 6, "do_lower_case": True})
    queries, _ = encoded(tmp_path, ["THE OWL OF THE RIVER SLEEPS"])
    expected = vectors_by_hand(tmp_path, ["the owl of the"], longest=6)
    torch.testing.assert_close(queries, nn.functional.normalize(expected, dim=-1), atol=1e-5, rtol=1e-5)


def test_a_folder_of_transformers_alone_gives_the_mean_with_length_one(tmp_path, in_fp32):
    tiny_bert(tmp_path)
    queries, _ = encoded(tmp_path, TEXTS)
    expected = nn.functional.normalize(vectors_by_hand(tmp_path, TEXTS), dim=-1)
    torch.testing.assert_close(queries, expected, atol=1e-5, rtol=1e-5)


def without_weights(folder):
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")


def without_a_layer(folder):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    weights.pop("encoder.layer.1.output.dense.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda f: save_modules(f, ("", f"{ST}.Transformer"), ("1", "evil.module.Own")),
            "'evil.module.Own' is not known",
        ),
        (lambda f: save_modules(f, ("../elsewhere", f"{ST}.Transformer")), "'../elsewhere' is no folder of the model"),
        (lambda f: save_modules(f, ("1_Pooling", f"{ST}.Pooling")), "first module is no Transformer"),
        (lambda f: write(f, "modules.json", {"0": ""}), "expected a list of modules"),
        (lambda f: (f / "modules.json").write_text("["), "not JSON"),
        (lambda f: write(f / "1_Pooling", "config.json", {"pooling_mode": "max"}), "pooling by max is not known"),
        (lambda f: write(f / "1_Pooling", "config.json", {}), "pooling by nothing is not known"),
        (
            lambda f: write(f / "1_Pooling", "config.json", {"pooling_mode": "mean", "include_prompt": False}),
            "without the prompt",
        ),
        (lambda f: save_dense(f / "2_Dense", (HIDDEN, 8), "os.system", bias=True), "'os.system' is not known here"),
        (lambda f: (f / "2_Dense" / "model.safetensors").unlink(), "convert them to safetensors"),
        (lambda f: (f / "2_Dense" / "model.safetensors").write_bytes(b"no"), "is broken"),
        (lambda f: save_dense(f / "2_Dense", (8, 8), "torch.nn.Tanh"), "no linear.weight for vectors of 16 numbers"),
        (lambda f: write(f, "config_sentence_transformers.json", {"prompts": [1]}), "expected texts by name"),
        (lambda f: write(f, "sentence_bert_config.json", {"max_seq_length": "long"}), "is no number of tokens"),
        (without_weights, "lack embeddings"),
        (without_a_layer, r"lack encoder\.layer\.1\.output\.dense\.weight"),
        (lambda f: write(f, "config.json", {"model_type": "own", "auto_map": {"AutoModel": "own.Own"}}), "can't load"),
    ],
)
def test_what_is_not_known_or_broken_is_one_line(tmp_path, change, said):
    published(tmp_path, {"pooling_mode": "mean"}, activation="activation.Tanh")
    change(tmp_path)
    with pytest.raises(UserError, match=said) as error:
        DenseEncoder(find_model(DenseSettings(model=str(tmp_path))))
    assert "\n" not in str(error.value)


def test_weights_that_are_pickles_of_tensors_are_read_where_there_are_no_others(tmp_path, in_fp32):
    whole, digest = encoded(tiny_bert(tmp_path), TEXTS), find_model(DenseSettings(model=str(tmp_path))).digest
    weights = load_file(tmp_path / "model.safetensors")
    torch.save(weights, tmp_path / "pytorch_model.bin")
    assert find_model(DenseSettings(model=str(tmp_path))).digest == digest  # these are not read beside safetensors
    (tmp_path / "model.safetensors").unlink()
    for one, other in zip(encoded(tmp_path, TEXTS), whole, strict=True):
        assert torch.equal(one, other)
    digest = find_model(DenseSettings(model=str(tmp_path))).digest
    torch.save({name: weight + 1 for name, weight in weights.items()}, tmp_path / "pytorch_model.bin")
    assert find_model(DenseSettings(model=str(tmp_path))).digest != digest


class Mine:
    """What a pickle may make where nothing keeps it from that."""

    def __reduce__(self):
        return Path.touch, (Path("ran"),)


def test_pickles_that_would_run_code_are_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny_bert(tmp_path / "bert")
    (tmp_path / "bert" / "model.safetensors").unlink()
    torch.save({"embeddings": Mine()}, tmp_path / "bert" / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"can't load .* as an encoder: ") as error:
        DenseEncoder(find_model(DenseSettings(model="./bert")))
    assert "\n" not in str(error.value)
    assert not Path("ran").exists()


def test_pickles_are_fetched_only_where_a_repository_has_no_safetensors(tmp_path, monkeypatch):
    asked = []

    def fetch(name, allow_patterns, ignore_patterns):
        asked.append("pytorch_model*.bin" in allow_patterns)
        return str(tmp_path / name)

    monkeypatch.setattr("hoptimizer.retrieval.encoders.model_files.snapshot_download", fetch)
    tiny_bert(tmp_path / "some" / "safe")
    tiny_bert(tmp_path / "some" / "old")
    (tmp_path / "some" / "old" / "model.safetensors").unlink()
    for name in ("some/safe", "some/old"):
        find_model(DenseSettings(model=name))
    assert asked == [False, False, True]


@pytest.mark.parametrize("name", ["no such encoder", "./nowhere"])
def test_a_model_that_is_nowhere_is_named(name, corpus):
    with pytest.raises(UserError, match=f"retriever.model: '{name}' is no folder"):
        build_retriever(DenseSettings(model=name), corpus)


def test_search_is_brute_force_with_ties_in_the_order_of_the_corpus(tmp_path):
    torch.manual_seed(1)
    vectors = torch.randn(50, 24).half()
    vectors[[3, 17, 31]] = vectors[40].clone()  # four passages that say the same
    (tmp_path / "vectors.f16").write_bytes(vectors.numpy().tobytes())
    index = VectorIndex(tmp_path, 50, 24, torch.device("cpu"))
    queries = torch.cat([torch.randn(70, 24), vectors[40:41].float()])
    found = index.search(queries, 50)
    for query, ranking in zip(queries, found, strict=True):
        expected = (vectors.double() @ query.double()).tolist()
        assert dict(ranking) == pytest.approx(dict(enumerate(expected)), abs=1e-4)
        assert [score for _, score in ranking] == sorted((score for _, score in ranking), reverse=True)
    assert [place for place, _ in found[-1][:4]] == [3, 17, 31, 40]
    assert [index.search(query[None], 7)[0] for query in queries] == index.search(queries, 7)


def test_a_query_scores_the_same_in_any_company(tmp_path, home, corpus):
    retriever = build_retriever(DenseSettings(model=str(tiny_bert(tmp_path / "bert"))), corpus)
    queries = ["Which bird sleeps?", "horse", "a query of rather more words than all of the others have"]
    assert retriever.search(queries, 5) == [retriever.search([query], 5)[0] for query in queries]


def test_an_index_is_built_once_and_tied_to_corpus_model_and_options(tmp_path, home, corpus):
    model = str(tiny_bert(tmp_path / "bert"))
    settings, calls = DenseSettings(model=model), []

    def progress(done, total):
        calls.append((done, total))

    assert index_info(settings, corpus)["state"] == "absent"
    found = build_retriever(settings, corpus, progress=progress).search(["owl"], 3)
    assert calls[-1] == (len(corpus), len(corpus))
    info = index_info(settings, corpus)
    assert (info["retriever"], info["index"], info["state"], info["checkpoint"]) == ("dense", "dense", "ready", model)
    calls.clear()
    assert build_retriever(settings, corpus, progress=progress).search(["owl"], 3) == found
    asked_otherwise = build_retriever(DenseSettings(model=model, query_prefix="query "), corpus, progress=progress)
    assert asked_otherwise.search(["owl"], 3) != found
    assert calls == []
    others = [
        (DenseSettings(model=model, pooling="cls"), corpus),
        (DenseSettings(model=model, passage_prefix="passage: "), corpus),
        (settings, Corpus(corpus.passages[1:], "animals")),
    ]
    assert [index_info(*other)["state"] for other in others] == ["absent"] * 3
    tiny_bert(tmp_path / "bert", longest=32)
    assert index_info(settings, corpus)["state"] == "absent"


@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing"])
def test_a_broken_index_is_said_and_built_anew(tmp_path, home, corpus, caplog, damage):
    settings = DenseSettings(model=str(tiny_bert(tmp_path / "bert")))
    whole = build_retriever(settings, corpus).search(["owl"], 3)
    [vectors] = home.rglob("vectors.f16")
    content = vectors.read_bytes()
    if damage == "missing":
        vectors.unlink()
    else:
        vectors.write_bytes(content[:40] if damage == "truncated" else content[:40] + bytes(40) + content[80:])
    assert index_info(settings, corpus)["state"].startswith("broken: vectors.f16")
    with caplog.at_level(logging.WARNING):
        assert build_retriever(settings, corpus).search(["owl"], 3) == whole
    [record] = caplog.records
    assert "vectors.f16" in record.getMessage()


def test_an_index_that_was_cut_off_is_no_index(tmp_path, home, corpus):
    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_retriever(DenseSettings(model=str(tiny_bert(tmp_path / "bert"))), corpus, progress=stop)
    assert not [one for one in (home / "indexes").iterdir() if one.is_dir() and not one.name.startswith(".")]


def test_a_stranger_s_vectors_that_are_no_numbers_are_not_served(tmp_path):
    torch.full((3, 4), float("nan")).half().numpy().tofile(tmp_path / "vectors.f16")
    with pytest.raises(Exception, match="no number"):
        VectorIndex(tmp_path, 3, 4, torch.device("cpu"))


def test_a_model_whose_places_begin_behind_the_padding_is_read_as_far_as_they_go(tmp_path, home, corpus):
    config = RobertaConfig(vocab_size=len(WORDS), max_position_embeddings=66, pad_token_id=1, num_labels=1, **SIZES)
    encoder, cross = tmp_path / "encoder", tmp_path / "cross"
    for folder, kind in ((encoder, RobertaModel), (cross, RobertaForSequenceClassification)):
        kind(config).save_pretrained(folder)
        save_tokenizer(folder, longest=10**9)
    long = Corpus([*corpus, Passage("long", "", "the cat sleeps " * 100)])
    rerank = RerankSettings(model=str(cross))
    retriever = build_retriever(DenseSettings(model=str(encoder), rerank=rerank), long)
    assert len(retriever.search(["cat"], len(long))[0]) == len(long)
    assert DenseEncoder(find_model(DenseSettings(model=str(encoder)))).max_tokens == 64


def test_an_encoder_that_gives_no_numbers_is_one_line(tmp_path, home, corpus):
    folder = tiny_bert(tmp_path / "encoder")
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.LayerNorm.weight"].fill_(torch.nan)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        UserError, match=r"index of .* by .*encoder can't be used as it was built \(vectors.f16 .*no number"
    ):
        build_retriever(DenseSettings(model=str(folder)), corpus)


def test_a_config_chooses_the_encoder_and_its_options(tmp_path):
    model = tiny_bert(tmp_path / "bert")
    words = ["data=atlas", "retriever=dense", f"retriever.model={model}", 'retriever.query_prefix="query: "']
    config = load_config(None, words)
    assert config.retriever == DenseSettings(model=str(model), query_prefix="query: ")
    assert Workbench(config).search_summary(3) == f"dense {model} k=3 · atlas (1482 passages)"
    with pytest.raises(UserError, match=r"retriever\.poling: unknown key; did you mean 'pooling'"):
        load_config(None, [*words, "retriever.poling=cls"])
    with pytest.raises(UserError, match=r"retriever\.pooling: input should be 'mean', 'cls' or 'last', got 'max'"):
        load_config(None, [*words, "retriever.pooling=max"])


def test_t5_is_its_encoder_alone(tmp_path, in_fp32):
    from transformers import T5Config, T5EncoderModel, T5ForConditionalGeneration

    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    torch.manual_seed(0)
    T5ForConditionalGeneration(T5Config(vocab_size=28, **sizes)).save_pretrained(tmp_path)
    tokens = tiny_bert(tmp_path / "bert")
    shutil.copy(tokens / "tokenizer.json", tmp_path)
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]"}
    write(tmp_path, "tokenizer_config.json", about | {"model_input_names": ["input_ids", "attention_mask"]})
    queries, _ = encoded(tmp_path, ["the owl"])
    inputs = AutoTokenizer.from_pretrained(tokens)("the owl", return_tensors="pt")
    with torch.no_grad():
        hidden = T5EncoderModel.from_pretrained(tmp_path)(inputs["input_ids"]).last_hidden_state[0]
    torch.testing.assert_close(queries[0], nn.functional.normalize(hidden.mean(0), dim=-1), atol=1e-5, rtol=1e-5)
