"""Retrievers over a small corpus: what they find, and what they do at the edges."""

import asyncio
import json
import threading
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from urllib.parse import parse_qs, urlparse

import pytest
from pydantic import ValidationError

from hoptimizer.common.errors import UserError
from hoptimizer.retrieval import (
    ColBERTServer,
    Corpus,
    DenseSettings,
    HybridRetriever,
    OpenSearchSettings,
    Passage,
    Retriever,
    RetrieverSettings,
    build_retriever,
    index_info,
)
from hoptimizer.retrieval.kept_rankings import KeptRankings, one_command

FACTS = [
    ("Marie Curie", "Marie Curie was a physicist and chemist who discovered polonium and radium in Paris."),
    ("Mount Kenya", "Mount Kenya is the highest mountain in Kenya and the second highest in Africa."),
    ("Ada Lovelace", "Ada Lovelace wrote notes on the Analytical Engine, a machine that Charles Babbage designed."),
    ("Danube", "The Danube flows through ten countries and ends in the Black Sea."),
    ("Radium", "Radium is a chemical element that glows in the dark; watch dials were once painted with it."),
    ("Reykjavik", "Reykjavik is the capital of Iceland, the northernmost capital of a sovereign state."),
    ("Sushi", "Sushi is vinegared rice served with raw fish or vegetables."),
    ("Chess", "Chess is a board game for two players; the queen is its strongest piece."),
]
QUESTIONS = {
    "Who designed the Analytical Engine?": "Ada Lovelace",
    "Which woman found two new elements?": "Marie Curie",
    "What is the most northern capital of the world?": "Reykjavik",
    "Which sea does the Danube flow into?": "Danube",
    "What is the highest peak of Kenya?": "Mount Kenya",
}


@pytest.fixture(scope="module")
def corpus():
    return Corpus([Passage(f"p{i}", title, text) for i, (title, text) in enumerate(FACTS)], "facts")


KINDS = {
    "bm25": RetrieverSettings(name="bm25"),
    "colbert": RetrieverSettings(),
    "dense": DenseSettings(),
    "dense, ivf": DenseSettings(index="ivf"),
}


@pytest.fixture(scope="module", params=KINDS)
def retriever(request, corpus):
    return build_retriever(KINDS[request.param], corpus)


def test_finds_the_passage_that_answers(retriever):
    found = retriever.search(list(QUESTIONS), 2)
    hits = sum(title in {p.title for p in ranking} for ranking, title in zip(found, QUESTIONS.values(), strict=True))
    assert hits >= (3 if retriever.name == "bm25" else 5)  # "two new elements" shares no word with her passage


def test_gives_the_corpus_own_passages_best_first(retriever, corpus):
    [ranking] = retriever.search(["radium"], 4)
    scores = [p.score for p in ranking]
    assert scores == sorted(scores, reverse=True)
    assert all(corpus[p.id] == Passage(p.id, p.title, p.text) for p in ranking)


def test_k_beyond_the_corpus_gives_every_passage_once(retriever, corpus):
    [ranking] = retriever.search(["mountains"], 50)
    assert sorted(p.id for p in ranking) == sorted(p.id for p in corpus)


def test_no_queries_give_no_rankings(retriever):
    assert retriever.search([], 3) == []


@pytest.mark.parametrize("query", ["", "   ", "?!", "radium " * 20_000, "日本のすし 🍣"])
def test_takes_any_query(retriever, query):
    [ranking] = retriever.search([query], 3)
    assert len(ranking) == 3


def test_searches_that_are_under_way_together_share_batches(retriever, monkeypatch):
    sizes = []
    search = retriever.search

    def counted(queries, k):
        sizes.append(len(queries))
        return search(queries, k)

    monkeypatch.setattr(retriever, "search", counted)

    async def many():
        return await asyncio.gather(*(retriever.asearch(question, 1 + i % 3) for i, question in enumerate(QUESTIONS)))

    found = asyncio.run(many())
    assert [len(ranking) for ranking in found] == [1, 2, 3, 1, 2]
    assert sum(sizes) == len(QUESTIONS)
    assert len(sizes) < len(QUESTIONS)


def test_what_an_index_elsewhere_has_found_is_not_kept():
    class Changing(Retriever):
        elsewhere = True

        def __init__(self):
            self.asked = 0

        def search(self, queries, k):
            both_wait.wait(60)
            self.asked += 1
            return [[Passage(str(self.asked), "", "text")] for _ in queries]

    async def twice(retriever):
        # The search goes on once both wait for it; one that asks after its end rightly has a search of its own.
        both_wait.clear()
        both = [asyncio.create_task(retriever.asearch("q", 1)) for _ in range(2)]
        await asyncio.sleep(0)
        both_wait.set()
        found = [*await asyncio.gather(*both), await retriever.asearch("q", 1)]
        return [ranking[0].id for ranking in found]

    both_wait = threading.Event()
    assert asyncio.run(twice(Changing())) == ["1", "1", "2"]
    assert asyncio.run(twice(HybridRetriever([Changing(), Changing()]))) == ["1", "1", "2"]


def test_what_an_index_elsewhere_has_found_is_kept_within_a_command():
    class Counting(Retriever):
        elsewhere = True
        asked = 0

        def search(self, queries, k):
            self.asked += len(queries)
            return [[Passage(str(self.asked), "", "text")] for _ in queries]

    def found(retriever):
        return asyncio.run(retriever.asearch("q", 1))[0].id

    for retriever in (Counting(), HybridRetriever([Counting(), Counting()])):
        assert found(retriever) == "1"
        with one_command():
            with one_command():  # a cell of a study
                assert (found(retriever), found(retriever)) == ("2", "2")
            assert found(retriever) == "2"
            retriever.forget()
            assert found(retriever) == "3"
        assert found(retriever) == "4"
        with one_command():
            assert found(retriever) == "5"


def test_rankings_are_kept_up_to_a_number_of_passages():
    asked = []

    def search(wanted):
        asked.append(wanted)
        found = Future()
        found.set_result([Passage(str(place), "", "text") for place in range(wanted[1])])
        return found

    kept = KeptRankings(search, limit=10)
    for query, k in (("a", 4), ("b", 4), ("a", 2), ("b", 5), ("c", 2), ("b", 5), ("a", 1)):
        assert len(kept.find(query, k).result()) >= k
    assert asked == [("a", 4), ("b", 4), ("b", 5), ("c", 2), ("a", 1)]


def test_takes_passages_of_any_length():
    long = "Granite is an igneous rock. " + "It cools slowly below the surface of the earth. " * 2_000  # 100 kB
    corpus = Corpus([Passage("long", "Granite", long), Passage("short", "", "?"), Passage("empty", "", "")], "odd")
    for settings in KINDS.values():
        [ranking] = build_retriever(settings, corpus).search(["What is granite?"], 3)
        assert ranking[0].id == "long"
        assert len(ranking) == 3


def test_an_empty_corpus_is_refused():
    with pytest.raises(UserError, match="nothing holds no passages"):
        build_retriever(RetrieverSettings(), Corpus([], "nothing"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "bm25", "index": "plaid"},
        {"name": "bm25", "checkpoint": "mine"},
        {"url": "http://here/search", "checkpoint": "mine"},
        {"url": "http://here/search", "bits": 4},
        {"name": "tfidf"},
        {"k": 0},
        {"checkpoint": ""},
        {"index": "faiss"},
        {"url": "ftp://here"},
        {"top_k": 3},
    ],
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValidationError):
        RetrieverSettings(**wrong)


def test_a_server_is_colberts_only():
    with pytest.raises(ValidationError, match="url is a ColBERT server's"):
        RetrieverSettings(name="bm25", url="http://localhost/api/search")


def test_info_of_what_is_not_on_disk(corpus):
    assert index_info(RetrieverSettings(url="http://localhost:1/api/search"), corpus)["index"] == "server"
    engine = OpenSearchSettings(url="http://localhost:1", index="wiki")
    assert index_info(engine, corpus)["index"] == "elsewhere"


@pytest.fixture
def server(corpus):
    """A ColBERT server: the common JSON protocol over our own index."""
    retriever = build_retriever(RetrieverSettings(), corpus)
    numbers = {p.id: number for number, p in enumerate(corpus)}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked = urlparse(self.path)
            query = parse_qs(asked.query)
            if asked.path == "/api/search":
                [found] = retriever.search(query["query"], int(query["k"][0]))
                topk = [
                    {"text": f"{p.title} | {p.text}", "pid": numbers[p.id], "rank": rank, "score": p.score}
                    for rank, p in enumerate(found, 1)
                ]
                body = json.dumps({"query": query["query"][0], "topk": topk})
            elif asked.path == "/api/broken":
                body = json.dumps({"error": True, "message": "no index"})
            else:
                body = "<html>hello</html>"
            self.send_response(404 if asked.path == "/missing" else 200)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *args):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


def test_a_server_finds_what_its_index_finds(server, corpus):
    remote = build_retriever(RetrieverSettings(url=f"{server}/api/search"), corpus)
    local = build_retriever(RetrieverSettings(), corpus)
    queries = [*QUESTIONS, 'quotes " and & ampersands']
    assert remote.search(queries, 3) == local.search(queries, 3)


def test_of_passages_that_are_alike_a_server_gives_each_once(monkeypatch):
    twins = Corpus([Passage("x", "Owl", "It eats."), Passage("z", "", "Other."), Passage("y", "Owl", "It eats.")])
    answer = {"topk": [{"text": "Owl | It eats.", "pid": number} for number in (7, 8, 9)]}
    monkeypatch.setattr(ColBERTServer, "_answer", lambda *_: SimpleNamespace(content=json.dumps(answer).encode()))
    [found] = ColBERTServer("http://localhost:1/api/search", twins).search(["owl"], 3)
    assert [passage.id for passage in found] == ["x", "y"]


def test_a_servers_passage_that_the_corpus_lacks_keeps_its_title_text_and_pid(server):
    remote = build_retriever(RetrieverSettings(url=f"{server}/api/search"), Corpus([], "none"))
    [[found]] = remote.search(["Which sea does the Danube flow into?"], 1)
    assert (found.id, found.title, found.text) == ("3", *FACTS[3])


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/missing", r"refuses \(404\): <html>hello"),
        ("/page", "answered no JSON"),
        ("/api/broken", "answered without 'topk'"),
    ],
)
def test_a_server_that_answers_otherwise_is_named_in_one_line(server, corpus, path, said):
    remote = build_retriever(RetrieverSettings(url=server + path), corpus)
    with pytest.raises(UserError, match=said) as error:
        remote.search(["anything"], 3)
    assert "\n" not in str(error.value)


def test_a_server_that_is_not_there_is_named_in_one_line(corpus):
    remote = build_retriever(RetrieverSettings(url="http://127.0.0.1:9/api/search"), corpus)
    with pytest.raises(UserError, match=r"no answer from http://127\.0\.0\.1:9/api/search"):
        remote.search(["anything"], 3)
