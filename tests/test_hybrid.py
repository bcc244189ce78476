"""Rankings of several retrievers as one: how they are fused, and how a config names them."""

import asyncio
import threading

import pytest

from hoptimizer import Workbench, load_config
from hoptimizer.common.errors import UserError
from hoptimizer.layers import Layers
from hoptimizer.retrieval import (
    BM25Retriever,
    Corpus,
    DenseSettings,
    HybridRetriever,
    HybridSettings,
    OracleRetriever,
    Passage,
    RerankedRetriever,
    Retriever,
    RetrieverSettings,
    build_retriever,
    index_info,
)

CORPUS = Corpus([Passage(id, id.upper(), f"About {id}.") for id in ("ant", "bee", "cat", "dog", "elk")], "animals")


class Fixed(Retriever):
    """Finds the same passages whatever is asked; a scripted retriever."""

    def __init__(self, *ids, scores=None, computes=True):
        self.ids, self.scores, self.computes = ids, scores or [1.0] * len(ids), computes
        self.asked = []

    def search(self, queries, k):
        self.asked.append((queries, k))
        found = [CORPUS[id].scored(score) for id, score in zip(self.ids, self.scores, strict=True)]
        return [found[:k] for _ in queries]


def test_scores_are_sums_of_reciprocal_ranks():
    hybrid = HybridRetriever([Fixed("ant", "bee", "cat"), Fixed("cat", "dog")])
    [found] = hybrid.search(["?"], 10)
    expected = {"cat": 1 / 63 + 1 / 61, "ant": 1 / 61, "bee": 1 / 62, "dog": 1 / 62}
    assert {p.id: p.score for p in found} == pytest.approx(expected)
    assert [p.id for p in found] == ["cat", "ant", "bee", "dog"]  # of a tie, the first retriever's


def test_scores_are_scaled_to_the_ranking_of_their_query_and_weighed():
    members = [Fixed("ant", "bee", "cat", scores=[30.0, 20.0, 10.0]), Fixed("cat", "dog", scores=[0.9, 0.5])]
    [found] = HybridRetriever(members, fusion="scores", weights=[2, 1]).search(["?"], 10)
    assert {p.id: p.score for p in found} == pytest.approx({"ant": 2.0, "bee": 1.0, "cat": 1.0, "dog": 0.0})
    [by_ranks] = HybridRetriever(members, weights=[0.1, 1]).search(["?"], 1)
    assert by_ranks[0].id == "cat"


def test_scores_that_are_all_the_same_say_only_what_was_found():
    nothing, alike = Fixed("elk", "dog", scores=[0.0, 0.0]), Fixed("ant", "bee", scores=[3.0, 3.0])
    [found] = HybridRetriever([nothing, alike], fusion="scores").search(["?"], 4)
    assert [(p.id, p.score) for p in found] == [("ant", 1.0), ("bee", 1.0), ("elk", 0.0), ("dog", 0.0)]


def test_a_retriever_without_scores_is_not_fused_by_scores():
    with pytest.raises(UserError, match=r"gives no scores; use retriever\.fusion=ranks"):
        HybridRetriever([Fixed("ant", scores=[None]), Fixed("bee")], fusion="scores").search(["?"], 1)


def test_fusion_and_weights_are_set_by_config_and_shown():
    of = "retriever.of=[bm25, dense]"
    config = load_config(
        None, ["data=atlas", "retriever=hybrid", of, "retriever.fusion=scores", "retriever.weights=[1, 2]"]
    )
    assert config.retriever.shown == "hybrid by scores of 1 bm25, 2 dense all-minilm-l6-v2"
    assert build_retriever(config.retriever, CORPUS).weights == (1.0, 2.0)
    for weights, said in (("[1]", "weights has 1 numbers for 2 retrievers"), ("[1, 0]", "greater than 0")):
        with pytest.raises(UserError, match=said):
            load_config(None, ["data=atlas", "retriever=hybrid", of, f"retriever.weights={weights}"])


def test_a_place_at_which_nothing_was_found_counts_for_nothing():
    nothing = Fixed("elk", "dog", "cat", "bee", "ant", scores=[0.0] * 5)
    [found] = HybridRetriever([nothing, Fixed("ant", "bee")]).search(["?"], 5)
    assert [p.id for p in found] == ["ant", "bee", "elk", "dog", "cat"]


def test_bm25_without_a_shared_word_leaves_the_ranking_to_the_other():
    [found] = HybridRetriever([BM25Retriever(CORPUS), Fixed("dog", "cat")]).search(["zebra"], 2)
    assert [p.id for p in found] == ["dog", "cat"]


@pytest.mark.parametrize(("depth", "k", "pool"), [(3, 2, 3), (1, 4, 4)])
def test_as_many_passages_are_fused_as_the_depth_says_and_at_least_k(depth, k, pool):
    members = [Fixed("ant", "bee", "cat", "dog"), Fixed("elk", "dog", "cat", "bee")]
    [found, again] = HybridRetriever(members, depth).search(["one", "two"], k)
    assert [member.asked for member in members] == [[(["one", "two"], pool)]] * 2
    assert found == again
    assert len(found) == k


@pytest.mark.parametrize("kind", ["hybrid", "reranked", "oracle"])
def test_what_is_found_does_not_depend_on_what_else_was_searched(kind):
    ids = ["ant", "bee", "cat", "dog", "elk"]

    def made():
        one, other = Fixed(*ids), Fixed("elk", "cat", "bee", "ant", "dog")
        if kind == "hybrid":
            return HybridRetriever([one, other], depth=2)
        if kind == "reranked":
            return RerankedRetriever(one, lambda pairs: [float(len(text)) for _, text in pairs], depth=2)
        return OracleRetriever({"one": ["elk", "dog"], "two": ["cat"]}, CORPUS, one, others=3)

    async def together(retriever, *asked):
        found = await asyncio.gather(*(retriever.asearch(*one) for one in asked))
        return [[p.id for p in ranking] for ranking in found]

    asked = [(query, k) for query in ("one", "two") for k in (5, 1, 2, 4)]
    alone = [asyncio.run(together(made(), one))[0] for one in asked]
    assert asyncio.run(together(made(), *asked)) == alone, "in one batch"
    retriever = made()
    assert [asyncio.run(together(retriever, one))[0] for one in asked] == alone, "one after another"


def test_what_is_found_elsewhere_is_known_by_its_id():
    stranger = Passage("17", "", "A lake.", 1.0)

    class Far(Fixed):
        def passage(self, passage_id):
            return stranger if passage_id == "17" else None

    far, near = Far(), Fixed("ant")
    assert OracleRetriever({"?": ["dog"]}, CORPUS, far).passage("17") == stranger
    parts = HybridRetriever([near, far], fusion="parts", corpus=CORPUS)
    assert [parts.passage(id) and parts.passage(id).id for id in ("1/17", "0/17", "2/17", "17", "ant")] == [
        *("1/17", None, None, None, "ant")
    ]


def test_no_queries_give_no_rankings():
    assert HybridRetriever([Fixed("ant"), BM25Retriever(CORPUS)]).search([], 3) == []


def test_a_server_is_waited_for_while_others_compute():
    computed = threading.Event()

    class Server(Fixed):
        def search(self, queries, k):
            assert computed.wait(10)
            return super().search(queries, k)

    class Here(Fixed):
        def search(self, queries, k):
            computed.set()
            return super().search(queries, k)

    hybrid = HybridRetriever([Server("ant", computes=False), Here("bee")])
    assert [p.id for p in hybrid.search(["?"], 2)[0]] == ["ant", "bee"]
    assert hybrid.computes
    assert not HybridRetriever([Fixed("ant", computes=False)] * 2).computes


class Waiting(Fixed):
    """Waits for another machine until as many queries as are asked at once have come; a scripted one."""

    batch, at_once = 1, 4

    def __init__(self, *ids):
        super().__init__(*ids, computes=False)
        self.together = threading.Barrier(self.at_once)

    def search(self, queries, k):
        assert not threading.current_thread().name.startswith("cores"), "others compute meanwhile"
        self.together.wait(10)
        return super().search(queries, k)


class Computing(Fixed):
    """Has the cores; a scripted retriever."""

    def search(self, queries, k):
        assert threading.current_thread().name.startswith("cores")
        return super().search(queries, k)


def reading(pairs):
    """A scripted cross-encoder."""
    assert threading.current_thread().name.startswith("cores")
    return [float("BEE" in text) for _, text in pairs]


@pytest.mark.parametrize("kind", ["reranked", "hybrid", "hybrid of a reranked one", "reranked hybrid", "oracle"])
def test_those_that_wait_for_another_machine_are_asked_at_once_beside_those_that_compute(kind):
    waiting = Waiting("ant", "bee", "cat")
    hybrid = HybridRetriever([waiting, Computing("ant", "bee", "cat")])
    retriever = {
        "reranked": RerankedRetriever(waiting, reading, depth=2),
        "hybrid": hybrid,
        "hybrid of a reranked one": HybridRetriever([RerankedRetriever(waiting, reading, 2), Computing("bee", "ant")]),
        "reranked hybrid": RerankedRetriever(hybrid, reading, depth=3),
        "oracle": OracleRetriever({"?": ["dog"]}, CORPUS, hybrid),
    }[kind]

    async def searches():
        return await asyncio.gather(*(retriever.asearch(f"query {n}", 2) for n in range(8)))

    expected = ["ant", "bee"] if kind in ("hybrid", "oracle") else ["bee", "ant"]
    assert [[p.id for p in found] for found in asyncio.run(searches())] == [expected] * 8
    assert [len(queries) for queries, _ in waiting.asked] == [1] * 8


def test_a_config_names_retrievers_with_their_options():
    of = "retriever.of=[bm25, {name: dense, query_prefix: 'query: '}, {name: colbert, url: 'http://u:secret@host/s'}]"
    config = load_config(None, ["data=atlas", "retriever=hybrid", of, "retriever.depth=20", "retriever.k=3"])
    server = RetrieverSettings(url="http://u:secret@host/s")
    members = (RetrieverSettings(name="bm25"), DenseSettings(query_prefix="query: "), server)
    assert config.retriever == HybridSettings(of=members, depth=20, k=3)
    assert config.retriever.urls == ("http://u:secret@host/s",)
    shown = Workbench(config).search_summary(3)
    assert shown == "hybrid of bm25, dense all-minilm-l6-v2, colbert http://host/s k=3 · atlas (1482 passages)"
    assert "secret" not in str(config.public())
    again = load_config(None, [], config.public())
    assert again.digest == config.digest
    assert again.retriever.of[:2] == members[:2]


def test_the_default_is_words_and_late_interaction():
    assert load_config(None, ["data=atlas", "retriever=hybrid"]).retriever.shown == "hybrid of bm25, colbert minilm"


@pytest.mark.parametrize(
    ("of", "said"),
    [
        ("[bm25]", "at least 2"),
        ("[bm25, bm26]", "there is no retriever 'bm26'; did you mean 'bm25'"),
        ("[bm25, {name: dense, poling: cls}]", r"retriever\.of: dense\.poling: unknown key; did you mean 'pooling'"),
        ("[bm25, {name: dense, k: 3}]", r"dense, as a part of another, has k; give one for all, retriever\.k"),
        ("[bm25, 3]", "expected a retriever's name or a mapping with it, got int"),
        ("bm25", "tuple"),
    ],
)
def test_what_can_not_be_fused_is_one_line(of, said):
    with pytest.raises(UserError, match=said) as error:
        load_config(None, ["data=atlas", "retriever=hybrid", f"retriever.of={of}"])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("inner", ["mine:Own", {"name": "mine:Own"}, {"name": "hybrid", "of": ["bm25", "mine:Own"]}])
def test_code_that_a_variant_names_among_others_has_to_be_named_again(inner):
    variant = {"data": "atlas", "retriever": {"name": "hybrid", "of": ["bm25", inner]}}
    with pytest.raises(
        UserError, match=r"mine:Own is code that the variant's config names .* retriever\.of.*=\[\.\.\.\]"
    ):
        Layers(variant=variant).resolved()
    named = Layers({"retriever": {"of": ["bm25", "mine:Own"]}}, variant=variant)
    assert named.resolved()["retriever"]["of"] == ["bm25", "mine:Own"]


def test_it_searches_what_its_retrievers_search_and_tells_of_their_indexes():
    settings = HybridSettings(of=["bm25", "bm25"])
    [found] = build_retriever(settings, CORPUS).search(["cat"], 2)
    assert found[0] == CORPUS["cat"].scored(2 / 61)
    info = index_info(settings, CORPUS)
    assert (info["retriever"], info["index"], info["passages"]) == ("hybrid", "hybrid", 5)
    assert [one["retriever"] for one in info["of"]] == ["bm25", "bm25"]
