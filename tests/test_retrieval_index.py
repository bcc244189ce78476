"""Indexes on disk: exact against brute force, changed and damaged ones, and PLAID against exact."""

import logging
import shutil
import subprocess
import sys

import pytest
import torch

from hoptimizer.common.errors import UserError
from hoptimizer.eval.datasets.dataset import load
from hoptimizer.eval.datasets.settings import DataSettings
from hoptimizer.retrieval import Corpus, DenseSettings, Passage, RetrieverSettings, build_retriever, index_info
from hoptimizer.retrieval.colbert import plaid_build
from hoptimizer.retrieval.colbert.checkpoint import find_checkpoint, load_checkpoint
from hoptimizer.retrieval.colbert.encoder import ColBERTEncoder
from hoptimizer.retrieval.encoders import windows
from hoptimizer.retrieval.index_folder import index_folder

SETTINGS = RetrieverSettings(index="exact")


@pytest.fixture
def corpus():
    animals = ["cat", "heron", "salmon", "ant", "horse", "whale", "owl", "toad"]
    places = ["river", "forest", "desert", "harbour", "mountain"]
    texts = [(a, f"The {a} of the {p} sleeps{' and eats' * n}.") for n, a in enumerate(animals) for p in places]
    return Corpus([Passage(f"p{i}", title, text) for i, (title, text) in enumerate(texts)], "animals")


@pytest.fixture
def own_indexes(tmp_path, monkeypatch):
    """A home without indexes, but with the checkpoint that is there already."""
    checkpoint = find_checkpoint("minilm").folder
    monkeypatch.setenv("HOPTIMIZER_HOME", str(tmp_path))
    shutil.copytree(checkpoint, tmp_path / "checkpoints" / checkpoint.name)
    return tmp_path / "indexes"


rounds = pytest.mark.skipif(
    not torch.cpu._is_vnni_supported() or torch.cuda.is_available(), reason="no vectors are rounded on this machine"
)


class Counted:
    """Progress that remembers what it was told."""

    def __init__(self):
        self.calls = []

    def __call__(self, done, total):
        self.calls.append((done, total))


def test_exact_search_is_brute_force_maxsim(corpus):
    encoder = ColBERTEncoder(find_checkpoint("minilm"))
    vectors = {}
    for places, batch in encoder.passages([str(p) for p in corpus]):
        vectors |= zip(places, batch, strict=True)
    queries = ["Which bird sleeps in the harbour?", "salmon", "the owl and the toad of the desert"]
    found = build_retriever(SETTINGS, corpus).search(queries, len(corpus))
    for vectors_of_query, ranking in zip(encoder.queries(queries), found, strict=True):
        expected = {
            corpus.passages[place].id: (passage.float() @ vectors_of_query.cpu().T).amax(0).sum().item()
            for place, passage in vectors.items()
        }
        assert {p.id: p.score for p in ranking} == pytest.approx(expected, abs=2e-4)
        assert [p.score for p in ranking] == sorted((p.score for p in ranking), reverse=True)


def test_a_query_scores_the_same_in_any_company(corpus):
    retriever = build_retriever(SETTINGS, corpus)
    queries = ["Which bird sleeps in the harbour?", "horse", "a query of rather more words than all of the others have"]
    assert retriever.search(queries, 5) == [retriever.search([query], 5)[0] for query in queries]


@rounds
def test_estimating_first_loses_no_passage():
    data = load(DataSettings(name="atlas"))
    questions = [question.question for question in data.split("test", 60)] + ["?", "Lyon"]
    retriever = build_retriever(SETTINGS, data.corpus)
    estimated = retriever.search(questions, 10)
    retriever._index._rounded = None  # now every passage is scored in full
    for ranking, full in zip(estimated, retriever.search(questions, 10), strict=True):
        assert [p.id for p in ranking] == [p.id for p in full]
        assert [p.score for p in ranking] == pytest.approx([p.score for p in full], abs=2e-4)


@rounds
def test_searches_of_many_sizes_keep_little_memory():
    code = """
import psutil, torch
from hoptimizer.eval.datasets.dataset import load
from hoptimizer.eval.datasets.settings import DataSettings
from hoptimizer.retrieval import RetrieverSettings, build_retriever
index = build_retriever(RetrieverSettings(index="exact"), load(DataSettings(name="atlas")).corpus)._index
vectors = torch.randn(64, 16, index._vectors.shape[1], generator=torch.manual_seed(7))
vectors = torch.nn.functional.normalize(vectors, dim=-1)
index.search(list(vectors[:1]), 5)
before = psutil.Process().memory_info().rss
for tokens in range(3, 16, 3):
    index.search([vector[:tokens] for vector in vectors[: 4 * tokens]], 5)
print(psutil.Process().memory_info().rss - before)
"""  # a process of its own: what other tests leave and give back is not counted
    grown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    # oneDNN keeps kernels for each shape of a product; passages of 100 lengths took 1 GB of them.
    assert int(grown) < 200e6


def test_equal_passages_tie_in_the_order_of_the_corpus():
    twins = Corpus([Passage(f"p{i}", "Twin", "The same words twice.") for i in range(5)], "twins")
    [ranking] = build_retriever(SETTINGS, twins).search(["twice"], 5)
    assert [p.id for p in ranking] == ["p0", "p1", "p2", "p3", "p4"]


def test_our_encoding_is_colbert_ais(corpus):
    encoder = ColBERTEncoder(find_checkpoint("minilm"))
    encoder.model.float()
    texts = [str(p) for p in corpus][:6]
    # Their own batching, and their query augmentation, which this checkpoint turns into vectors of zeros.
    theirs = encoder._colbert.docFromText(texts, bsize=4, keep_dims=False)[0]
    for places, vectors in encoder.passages(texts):
        for place, ours in zip(places, vectors, strict=True):
            torch.testing.assert_close(ours.float(), theirs[place].float(), atol=2e-3, rtol=0)
    [ours] = encoder.queries(["Which bird sleeps?"])
    [query] = encoder._colbert.queryFromText(["Which bird sleeps?"])
    atol = 5e-4 if torch.cuda.is_available() else 1e-4  # a GPU's products are other kernels for other shapes
    torch.testing.assert_close(ours, query[: len(ours)].float(), atol=atol, rtol=0)
    assert not query[len(ours) :].any()


def test_passages_are_read_as_colbert_ai_reads_them():
    encoder = ColBERTEncoder(find_checkpoint("minilm"))
    texts = ["", " ", "owl", "Łódź, 雪: 'a [MASK]'?\n", "owl " * 253, "owl " * 254, "The owl sleeps. " * 200]
    for some in (texts, *([text] for text in texts), texts[::-1]):
        ours, cut = encoder.tokenize_passages(some)
        ids, mask = encoder._colbert.doc_tokenizer.tensorize(some)
        for one, theirs in ((ours.ids, ids), (ours.mask, mask)):
            assert (one.dtype, one.device) == (theirs.dtype, theirs.device)
            assert torch.equal(one, theirs)
        assert [some[row] for row in cut] == [text for text in some if len(text) > 4 * 253]  # and three marks are read


def test_queries_are_read_as_colbert_ai_reads_them_and_the_first_that_is_cut_is_told(caplog):
    encoder = ColBERTEncoder(find_checkpoint("minilm"))
    texts = ["", "owl", "Łódź, 雪: 'a [MASK]'?", "owl " * 125, "owl " * 126, "The owl sleeps. " * 200]
    for text in texts:
        ours, cut = encoder.tokenize_queries([text])
        ids, mask = encoder._colbert.query_tokenizer.tensorize([text])
        read = ours.ids.shape[1]
        assert torch.equal(ours.ids, ids[:, :read])
        assert torch.equal(ours.mask, mask[:, :read])
        assert not mask[:, read:].any()
        assert cut == ([0] if len(text) > 4 * 125 else [])
    encoder.queries(texts[:4])
    assert warnings(caplog) == []
    encoder.queries(texts)
    encoder.queries(texts)
    [line] = warnings(caplog)
    assert line.startswith("retriever: a query ('owl owl")
    assert "the 128 tokens" in line


def test_an_index_is_built_once_and_found_again(corpus, own_indexes):
    first, second = Counted(), Counted()
    found = build_retriever(SETTINGS, corpus, progress=first).search(["owl"], 3)
    assert first.calls[-1] == (len(corpus), len(corpus))
    assert build_retriever(SETTINGS, corpus, progress=second).search(["owl"], 3) == found
    assert second.calls == []


def with_long_ones(corpus):
    """A corpus with 16 passages that are too long, one of a token too much for ColBERT alone, and one that fits."""
    long = [Passage(f"long{i}", "", f"The {p.title} eats. " * (130 + i)) for i, p in enumerate(corpus.passages[:16])]
    return Corpus([*corpus, *long, Passage("254", "", "owl " * 254), Passage("253", "", "owl " * 253)], "long")


def warnings(caplog):
    """What was said since this was called before."""
    said = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return said


@pytest.mark.parametrize(
    ("settings", "whole", "said"),
    [
        (SETTINGS, True, (17, 256)),
        (RetrieverSettings(index="plaid"), True, (17, 256)),
        (RetrieverSettings(index="plaid"), False, (17, 256)),
        (DenseSettings(), True, (16, 512)),
        (DenseSettings(index="ivf"), True, (16, 512)),
    ],
    ids=["exact", "plaid", "plaid, a sample first", "dense", "dense, ivf"],
)
def test_a_build_says_once_how_many_passages_are_cut(corpus, own_indexes, monkeypatch, caplog, settings, whole, said):
    if not whole:
        # There is room for some of the long passages, 8 of which come at a time, and not for all.
        monkeypatch.setattr(plaid_build, "_SAMPLE", 384 * 3200)
        for module in (windows, plaid_build):
            monkeypatch.setattr(module, "WINDOW", 8)
    build_retriever(settings, corpus)
    assert warnings(caplog) == []
    build_retriever(settings, with_long_ones(corpus))
    [line] = warnings(caplog)
    assert line.startswith("retriever: {} of the encoded passages are longer than the {} tokens that".format(*said))
    build_retriever(settings, with_long_ones(corpus))  # which is there already
    assert warnings(caplog) == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (RetrieverSettings(bits=4), "retriever.bits: the exact index of animals has whole vectors; "),
        (DenseSettings(probes=4), "retriever.probes: the exact index of animals has no cells; "),
    ],
    ids=["bits", "probes"],
)
def test_an_option_that_the_index_of_a_small_corpus_does_not_have_is_told(corpus, own_indexes, caplog, settings, said):
    build_retriever(settings, corpus)
    [line] = warnings(caplog)
    assert line.startswith(said)


class KilledError(BaseException):
    """A signal that ends a process without a chance to clean up."""


def killed_at(passages):
    """Progress that ends the build once so many passages are encoded."""

    def progress(done, total):
        if done >= passages:
            raise KilledError

    return progress


def files_of(indexes):
    """The bytes of every file of the one index, by its name."""
    [folder] = [path for path in indexes.iterdir() if path.is_dir()]
    assert not folder.name.startswith(".")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def small_windows(monkeypatch):
    """Windows of 8 passages, and samples of so many numbers that no corpus here is in one as a whole."""
    monkeypatch.setattr(windows, "WINDOW", 8)
    monkeypatch.setattr(plaid_build, "WINDOW", 8)
    monkeypatch.setattr(plaid_build, "_SAMPLE", 384 * 250)


KINDS = {
    "exact": (SETTINGS, "vectors.f16"),
    "plaid": (RetrieverSettings(index="plaid"), "vectors.i8"),
    "plaid, 4 bits": (RetrieverSettings(index="plaid", bits=4), "residuals.u8"),
    "dense": (DenseSettings(), None),  # its file has its whole length from the start
    "dense, ivf": (DenseSettings(index="ivf"), None),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_build_that_was_killed_goes_on(corpus, own_indexes, small_windows, kind):
    settings, rows = KINDS[kind]
    build_retriever(settings, corpus)
    whole = files_of(own_indexes)
    shutil.rmtree(own_indexes)
    for passages in (3, 12, 30, 40):  # the first before a window was kept
        with pytest.raises(KilledError):
            build_retriever(settings, corpus, progress=killed_at(passages))
        if rows:
            [draft] = own_indexes.glob(".*.part")
            with (draft / rows).open("ab") as file:
                file.write(b"half a row")  # as it is where a process ends while it writes
    ended = Counted()
    build_retriever(settings, corpus, progress=ended)
    assert [done for done, _ in ended.calls] == [40]  # those of the last window alone
    assert files_of(own_indexes) == whole


def test_a_build_goes_on_whatever_its_corpus_is_called(corpus, own_indexes, small_windows):
    with pytest.raises(KilledError):
        build_retriever(SETTINGS, corpus, progress=killed_at(30))
    ended = Counted()
    build_retriever(SETTINGS, Corpus(corpus.passages, "renamed"), progress=ended)
    assert [done for done, _ in ended.calls] == [32, 40]


@pytest.mark.parametrize("settings", [SETTINGS, DenseSettings()], ids=["exact", "dense"])
def test_a_build_that_goes_on_says_how_many_of_the_others_are_cut(corpus, own_indexes, small_windows, caplog, settings):
    corpus = Corpus(with_long_ones(corpus).passages[:56], "long")  # 40 and 16, in windows of 8
    with pytest.raises(KilledError):
        build_retriever(settings, corpus, progress=killed_at(49))  # in the last window, after 8 long ones
    [ended] = warnings(caplog)
    build_retriever(settings, corpus)
    [said] = warnings(caplog)
    assert [ended.split(" are ")[0], said.split(" are ")[0]] == [
        f"retriever: {cut} of the encoded passages" for cut in (16, 8)
    ]


@pytest.mark.parametrize("change", ["cut off", "no state", "a bad state", "other settings"])
def test_what_is_not_what_was_kept_begins_anew(corpus, own_indexes, small_windows, change):
    with pytest.raises(KilledError):
        build_retriever(SETTINGS, corpus, progress=killed_at(30))
    [draft] = own_indexes.glob(".*.part")
    match change:
        case "cut off":
            (draft / "scales.f32").write_bytes(b"")
        case "no state":
            (draft / "kept.json").unlink()
        case "a bad state":
            (draft / "kept.json").write_text("{")
        case "other settings":
            (draft / "wanted.json").write_text("{}")
    ended = Counted()
    build_retriever(SETTINGS, corpus, progress=ended)
    assert [done for done, _ in ended.calls] == [8, 16, 24, 32, 40]
    assert not any(path.name.startswith(".") for path in own_indexes.iterdir())
    assert "kept.json" not in files_of(own_indexes)


def test_a_changed_corpus_is_another_index(corpus, own_indexes):
    build_retriever(SETTINGS, corpus)
    changed = Corpus([*corpus.passages[:-1], Passage("new", "Axolotl", "The axolotl never grows up.")], "animals")
    rebuilt = Counted()
    [[best]] = build_retriever(SETTINGS, changed, progress=rebuilt).search(["Which animal never grows up?"], 1)
    assert best.id == "new"
    assert rebuilt.calls


@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing", "no manifest", "bad manifest"])
def test_a_broken_index_is_said_and_built_anew(corpus, own_indexes, caplog, damage):
    whole = build_retriever(SETTINGS, corpus).search(["owl"], 3)
    folder = index_folder(corpus, find_checkpoint("minilm"), "exact")
    vectors, manifest = folder / "vectors.f16", folder / "manifest.json"
    content = vectors.read_bytes()
    match damage:
        case "truncated":
            vectors.write_bytes(content[: len(content) // 2])
        case "flipped":
            vectors.write_bytes(content[:100] + bytes(100) + content[200:])
        case "missing":
            vectors.unlink()
        case "no manifest":
            manifest.unlink()
        case "bad manifest":
            manifest.write_text("{")
    said = "manifest.json" if "manifest" in damage else "vectors.f16"
    assert str(index_info(SETTINGS, corpus)["state"]).startswith(f"broken: {said}")
    with caplog.at_level(logging.WARNING):
        assert build_retriever(SETTINGS, corpus).search(["owl"], 3) == whole
    [record] = caplog.records
    assert said in record.getMessage()
    assert "\n" not in record.getMessage()
    assert index_info(SETTINGS, corpus)["state"] == "ready"


def test_a_large_file_is_read_in_samples_before_it_serves_and_whole_on_demand(corpus, own_indexes, caplog, monkeypatch):
    monkeypatch.setattr("hoptimizer.retrieval.index_folder._LARGE", 1000)
    monkeypatch.setattr("hoptimizer.retrieval.index_folder._SAMPLE", 16)
    build_retriever(SETTINGS, corpus)
    caplog.clear()  # the checkpoint's copy has samples of other sizes, and was made anew
    vectors = index_folder(corpus, find_checkpoint("minilm"), "exact") / "vectors.f16"
    content = vectors.read_bytes()
    vectors.write_bytes(content[:20] + bytes([content[20] ^ 1]) + content[21:])  # between the first samples
    with caplog.at_level(logging.WARNING):
        build_retriever(SETTINGS, corpus)
    assert not caplog.records
    assert index_info(SETTINGS, corpus)["state"] == "broken: vectors.f16 is truncated or damaged"
    for wrong in (content[:-2], bytes([content[0] ^ 1]) + content[1:], content[:-1] + bytes([content[-1] ^ 1])):
        vectors.write_bytes(wrong)
        build_retriever(SETTINGS, corpus)
        assert vectors.read_bytes() == content
    assert len(caplog.records) == 3


def test_an_index_that_was_cut_off_is_no_index(corpus, own_indexes):
    assert index_info(SETTINGS, corpus)["state"] == "absent"
    with pytest.raises(KilledError):
        build_retriever(SETTINGS, corpus, progress=killed_at(1))
    assert not [entry for entry in own_indexes.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    assert index_info(SETTINGS, corpus)["state"] == "unfinished"


def test_info_tells_what_the_index_is_tied_to(corpus, own_indexes):
    build_retriever(SETTINGS, corpus)
    info = index_info(SETTINGS, corpus)
    assert (info["retriever"], info["index"], info["state"]) == ("colbert", "exact", "ready")
    assert (info["passages"], info["corpus_digest"]) == (len(corpus), corpus.digest)
    assert info["checkpoint"] == "minilm"
    assert str(info["folder"]).startswith(str(own_indexes))


@pytest.mark.parametrize("damage", ["truncated", "missing"])
def test_a_copy_of_the_embedded_checkpoint_that_is_not_whole_is_made_anew(own_indexes, caplog, damage):
    folder = find_checkpoint("minilm").folder
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    match damage:
        case "truncated":
            weights.write_bytes(whole[: len(whole) // 2])
        case "missing":
            (folder / "artifact.metadata").unlink()
    with caplog.at_level(logging.WARNING):
        assert find_checkpoint("minilm").folder == folder
    [record] = caplog.records
    assert str(folder) in record.getMessage()
    assert (weights.read_bytes(), (folder / "artifact.metadata").is_file()) == (whole, True)
    find_checkpoint("minilm")
    assert len(caplog.records) == 1


def test_a_folder_serves_as_a_checkpoint(corpus):
    folder = str(find_checkpoint("minilm").folder)
    [[best]] = build_retriever(RetrieverSettings(checkpoint=folder, index="exact"), corpus).search(["owl"], 1)
    assert best.title == "owl"


def test_a_checkpoint_without_a_projection_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "checkpoint"
    shutil.copytree(find_checkpoint("minilm").folder, folder)
    weights = load_file(folder / "model.safetensors")
    del weights["linear.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"no linear\.weight"):
        load_checkpoint(folder)


def test_a_checkpoint_that_brings_code_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert", "auto_map": {"AutoModel": "evil.Model"}}')
    with pytest.raises(UserError, match="needs code of its own"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["no such checkpoint", "./nowhere"])
def test_a_checkpoint_that_is_nowhere_is_named(name, corpus):
    with pytest.raises(UserError, match=f"checkpoint: '{name}' is no folder"):
        build_retriever(RetrieverSettings(checkpoint=name), corpus)


@pytest.mark.slow(reason="the one test of PLAID on a corpus of some size, against exact search")
def test_plaid_finds_what_exact_finds(published, own_indexes, capfd):
    import json

    rows = json.loads((published / "2wikimultihopqa" / "corpus_6119.json").read_text())[:600]
    corpus = Corpus([Passage(str(i), row["title"], row["text"]) for i, row in enumerate(rows)], "2wiki")
    asked = json.loads((published / "2wikimultihopqa" / "train_500.json").read_text())[:50]
    queries = [item["question"] for item in asked]
    torch.manual_seed(11)
    drawn = torch.get_rng_state()
    plaid = build_retriever(RetrieverSettings(index="plaid"), corpus)
    assert torch.equal(torch.get_rng_state(), drawn)
    exact = build_retriever(SETTINGS, corpus)
    agreement = [
        len({p.id for p in a} & {p.id for p in b}) / 10
        for a, b in zip(plaid.search(queries, 10), exact.search(queries, 10), strict=True)
    ]
    assert sum(agreement) / len(agreement) >= 0.95
    [everything] = plaid.search(["anything"], len(corpus) + 5)
    assert len({p.id for p in everything}) == len(corpus)
    assert index_info(RetrieverSettings(index="plaid"), corpus)["state"] == "ready"
    again = Counted()
    assert build_retriever(RetrieverSettings(index="plaid"), corpus, progress=again).search(queries[:5], 10)
    assert again.calls == []
    # colbert-ai, faiss and tqdm have much to say, and none of it is for the user.
    assert capfd.readouterr() == ("", "")


def test_plaid_of_next_to_nothing_is_found_and_its_residuals_are_refused(own_indexes):
    corpus = Corpus([Passage("only", "Only", "The only passage.")], "one")
    [found] = build_retriever(RetrieverSettings(index="plaid"), corpus).search(["Which one?"], 3)
    assert [passage.id for passage in found] == ["only"]
    with pytest.raises(UserError, match=r"1 short passages are too few for residuals: leave it at 8"):
        build_retriever(RetrieverSettings(index="plaid", bits=4), corpus)
