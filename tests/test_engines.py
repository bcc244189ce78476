"""Searches in engines that run elsewhere.

Search APIs of the web are a real HTTP server, whose answers have the shapes of SearXNG and Brave Search from memory.
Qdrant is its client's own engine, in a folder: the same API without a server. PostgreSQL is a real server. OpenSearch
is not at hand: a scripted server answers as its documentation shows answers of ``_msearch`` and ``_bulk``. Nor is
NextPlaid: a scripted server answers what its own client (1.8) reads, as its documentation describes it.
"""

import array
import asyncio
import base64
import contextlib
import http.server
import json
import shutil
import socket
import socketserver
import struct
import threading
from collections import ChainMap
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import psycopg
import pytest
import tenacity
from chat_server import ChatServer
from postgres import Postgres, binaries
from qdrant_client import QdrantClient
from qdrant_client.models import Distance, MultiVectorComparator, MultiVectorConfig, PointStruct, VectorParams

from hoptimizer import ServiceError, UserError, load_config
from hoptimizer.common import batching
from hoptimizer.eval import Question
from hoptimizer.eval.runner import evaluate
from hoptimizer.programs import RAG
from hoptimizer.retrieval import (
    ColBERTServer,
    Corpus,
    HybridSettings,
    Passage,
    RetrieverSettings,
    build_retriever,
    push_corpus,
)
from hoptimizer.retrieval.colbert.checkpoint import find_checkpoint
from hoptimizer.retrieval.colbert.retriever import load_encoder
from hoptimizer.retrieval.engines import engine, next_plaid, postgres
from hoptimizer.retrieval.engines.settings import (
    NextPlaidSettings,
    OpenSearchSettings,
    PostgresSettings,
    QdrantSettings,
    WebSettings,
)
from hoptimizer.workbench import Workbench

CORPUS = Corpus(
    [
        Passage("curie", "Marie Curie", "She was born in Warsaw."),
        Passage("oslo", "Oslo", "Oslo is the capital of Norway."),
        Passage("vistula", "Vistula", "A river that flows through Warsaw and Kraków."),
    ]
)
QUERIES = ["Which city is the capital of Norway?", "the birthplace of Marie Curie"]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(engine, "_PAUSES", lambda state: 0)


def ids(rankings):
    return [[passage.id for passage in ranking] for ranking in rankings]


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    """A collection of qdrant-client's, with the token vectors of the corpus' passages."""
    folder = tmp_path_factory.mktemp("qdrant")
    encoder = load_encoder(find_checkpoint("minilm"))
    client = QdrantClient(path=str(folder))
    multi = MultiVectorConfig(comparator=MultiVectorComparator.MAX_SIM)
    client.create_collection(
        "wiki", vectors_config=VectorParams(size=encoder.dim, distance=Distance.DOT, multivector_config=multi)
    )
    for places, vectors in encoder.passages(list(CORPUS.texts)):
        passages = [CORPUS.passages[place] for place in places]
        payloads = [{"id": one.id, "title": one.title, "text": one.text} for one in passages]
        points = zip(places, vectors, payloads, strict=True)
        client.upsert("wiki", [PointStruct(id=place, vector=v.tolist(), payload=p) for place, v, p in points])
    client.close()
    return folder


def test_qdrant_ranks_and_scores_as_the_exact_index_does(collection):
    found = build_retriever(QdrantSettings(path=str(collection), collection="wiki"), CORPUS).search(QUERIES, 3)
    exact = build_retriever(RetrieverSettings(index="exact"), CORPUS).search(QUERIES, 3)
    assert ids(found) == ids(exact)
    for ranking, expected in zip(found, exact, strict=True):
        assert [one.score for one in ranking] == pytest.approx([one.score for one in expected], abs=0.01)


def test_a_collection_that_is_not_there_and_a_server_that_is_not_there_are_one_line(tmp_path):
    with pytest.raises(UserError, match=r"qdrant none at .* refuses: .*not found"):
        build_retriever(QdrantSettings(path=str(tmp_path), collection="none"), CORPUS).search(QUERIES, 2)
    gone = build_retriever(QdrantSettings(url="http://127.0.0.1:9", collection="wiki"), CORPUS)
    with pytest.raises(ServiceError, match=r"no answer from qdrant wiki at http://127.0.0.1:9 \(.*refused.*4 times"):
        gone.search(QUERIES, 2)


def test_qdrant_is_asked_again_when_it_asks_for_it():
    class Busy(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.server.asked += 1
            self.send_response(429)
            self.send_header("Retry-After", "0" if self.server.asked > 1 else "tomorrow")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        server.asked = 0
        threading.Thread(target=server.serve_forever, daemon=True).start()
        retriever = build_retriever(
            QdrantSettings(url=f"http://127.0.0.1:{server.server_port}", collection="wiki"), CORPUS
        )
        with pytest.raises(ServiceError, match=r"no answer from qdrant wiki at .* \(status 429\), asked 4 times"):
            retriever.search(QUERIES, 2)
        assert server.asked == 4
        server.shutdown()


@pytest.mark.parametrize(("after", "seconds"), [(None, 0), (7, 7), (3600, 60)])
def test_an_engine_is_left_alone_for_as_long_as_it_asks(after, seconds):
    state = tenacity.RetryCallState(None, None, (), {})
    state.set_exception((engine.NoAnswer, engine.NoAnswer("busy", after), None))
    assert engine._pause(state) == seconds


needs_postgres = pytest.mark.skipif(
    binaries() is None, reason="PostgreSQL's server is not installed: apt-get install postgresql"
)


@pytest.fixture(scope="module")
def database():
    with Postgres() as server:
        uri = server.create("wiki")
        with psycopg.connect(uri, autocommit=True) as connection:
            connection.execute('CREATE TABLE passages (id text, title text, "Text" text)')
            for one in CORPUS:
                connection.execute("INSERT INTO passages VALUES (%s, %s, %s)", (one.id, one.title, one.text))
        yield server


@pytest.fixture
def settings(database, monkeypatch):
    monkeypatch.setenv("PGUSER", "team")
    monkeypatch.setenv("PGPASSWORD", database.password)
    url = f"postgresql://127.0.0.1:{database.port}/wiki"
    return PostgresSettings(url=url, table="public.passages", text_field="Text")


@needs_postgres
def test_postgres_finds_by_any_of_the_words_and_survives_a_restart(settings, database):
    retriever = build_retriever(settings, Corpus([]))
    assert ids(retriever.search(QUERIES, 2)) == [["oslo"], ["curie"]]
    assert retriever.search(["a river in Warsaw"], 1)[0][0].text == CORPUS["vistula"].text
    assert retriever.search(["the of and", "'; DROP TABLE passages; --\0"], 2)[0] == []
    database.stop()
    database.start()
    assert ids(retriever.search(QUERIES, 2)) == [["oslo"], ["curie"]]


class Silent(socketserver.BaseRequestHandler):
    """A PostgreSQL server that lets anybody in and says nothing from then on."""

    def handle(self):
        self.request.recv(4096)  # who wants in, and to what
        self.request.sendall(struct.pack("!cii", b"R", 8, 0) + struct.pack("!cic", b"Z", 5, b"I"))
        while self.request.recv(4096):
            pass


def test_a_database_that_says_nothing_any_more_is_left(monkeypatch):
    monkeypatch.setattr(postgres, "_GRACE", 0.1)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Silent) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"postgresql://127.0.0.1:{server.server_address[1]}/wiki?sslmode=disable&gssencmode=disable"
        with pytest.raises(ServiceError, match=r"no answer from postgres passages at .*4 times"):
            build_retriever(PostgresSettings(url=url, table="passages", timeout=0.1), CORPUS).search(QUERIES, 2)
        server.shutdown()


@needs_postgres
def test_a_table_or_a_password_that_is_wrong_is_one_line(settings, monkeypatch):
    with pytest.raises(UserError, match=r'postgres nothing at .* refuses: relation "nothing" does not exist'):
        build_retriever(settings.model_copy(update={"table": "nothing"}), CORPUS).search(QUERIES, 2)
    monkeypatch.setenv("PGPASSWORD", "wrong")
    with pytest.raises(UserError, match=r"refuses: .*password authentication failed") as raised:
        build_retriever(settings, CORPUS).search(QUERIES, 2)
    assert "\n" not in str(raised.value)
    gone = PostgresSettings(url="postgresql://127.0.0.1:9/wiki", table="passages")
    with pytest.raises(ServiceError, match=r"no answer from postgres passages at .*4 times"):
        build_retriever(gone, CORPUS).search(QUERIES, 2)


class Scripted(http.server.BaseHTTPRequestHandler):
    """Answers as the server's list of statuses, headers if there are any, and bodies says, the last one again and
    again."""

    def do_POST(self):
        self.server.asked.append((self.path, dict(self.headers), self.rfile.read(int(self.headers["Content-Length"]))))
        self.answer()

    def answer(self):
        answers = self.server.answers
        status, *headers, body = answers.pop(0) if len(answers) > 1 else answers[0]
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in ChainMap({"Content-Length": str(len(content))}, *headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving(handler):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        served.asked, served.answers = [], []
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield served
        served.shutdown()


@pytest.fixture
def server():
    with serving(Scripted) as served:
        yield served


def searcher(server, **options):
    url = f"http://127.0.0.1:{server.server_address[1]}"
    return build_retriever(OpenSearchSettings(url=url, index="wiki", **options), CORPUS)


def hits(*found):
    each = [{"_index": "wiki", "_id": id, "_score": score, "_source": source} for id, score, source in found]
    return {"took": 2, "timed_out": False, "hits": {"total": {"value": len(each)}, "hits": each}, "status": 200}


def test_opensearch_is_asked_for_all_queries_at_once_and_again_while_it_is_busy(server, monkeypatch):
    monkeypatch.setenv("OPENSEARCH_API_KEY", "canary-key")
    first = hits(("oslo", 3.5, {"title": "Oslo", "text": "Oslo is the capital  of Norway."}))
    second = hits(("x", 1.5, {"title": "New", "text": "A passage."}))
    server.answers = [(429, {}), (200, {"took": 3, "responses": [first, second]})]
    found = searcher(server).search(QUERIES, 2)
    assert found == [[CORPUS["oslo"].scored(3.5)], [Passage("x", "New", "A passage.").scored(1.5)]]
    assert len(server.asked) == 2
    path, headers, body = server.asked[-1]
    assert (path, headers["Authorization"]) == ("/wiki/_msearch", "ApiKey canary-key")
    lines = [json.loads(line) for line in body.decode().splitlines()]
    assert lines[1]["query"]["multi_match"] == {
        "query": QUERIES[0],
        "fields": ["title", "text"],
        "type": "most_fields",
    }
    assert [line.get("size") for line in lines] == [None, 2, None, 2]


def test_a_passage_of_the_engines_that_has_another_text_is_read_as_the_engine_has_it(server, caplog):
    server.answers = [(200, {"responses": [hits(("oslo", 3.5, {"title": "Oslo", "text": "An older passage."}))]})]
    retriever = searcher(server)
    for _ in range(2):
        assert retriever.search(QUERIES[:1], 1) == [[Passage("oslo", "Oslo", "An older passage.").scored(3.5)]]
    [told] = [record.getMessage() for record in caplog.records]
    assert "passage oslo of opensearch wiki at" in told
    assert "has another text" in told


@pytest.mark.parametrize("partly", [{"timed_out": True}, {"_shards": {"total": 3, "failed": 2}}])
def test_what_a_part_of_the_shards_found_is_no_answer(server, partly):
    whole = hits(("oslo", 3.5, {"title": "Oslo", "text": CORPUS["oslo"].text}))
    server.answers = [(200, {"responses": [{**whole, **partly}]}), (200, {"responses": [whole]})]
    assert ids(searcher(server).search(QUERIES[:1], 1)) == [["oslo"]]
    assert len(server.asked) == 2


def test_the_questions_of_a_whole_split_are_asked_in_several_requests(server):
    found = hits(("oslo", 3.5, {"title": "Oslo", "text": CORPUS["oslo"].text}))
    server.answers = [(200, {"responses": [found] * number}) for number in (64, 64, 2)]
    assert ids(searcher(server).search(["Where is Oslo?"] * 130, 1)) == [["oslo"]] * 130
    assert [content.count(b"multi_match") for *_, content in server.asked] == [64, 64, 2]
    assert searcher(server).search([], 1) == []


TOO_MANY = {"error": {"type": "too_many_clauses", "reason": "maxClauseCount is set to 1024"}, "status": 400}


def test_a_query_that_is_refused_is_refused_alone(server, monkeypatch):
    monkeypatch.setattr(batching, "_MOMENT", 0.5)  # they come together on a busy machine, too
    found = {"responses": [hits(("oslo", 3.5, {"title": "Oslo", "text": CORPUS["oslo"].text}))]}
    server.answers = [(200, {"responses": [TOO_MANY] * 3}), (200, {"responses": [TOO_MANY]}), (200, found)]
    retriever = searcher(server)

    async def all_of():
        queries = ("a long one", *QUERIES)
        return await asyncio.gather(*(retriever.asearch(query, 1) for query in queries), return_exceptions=True)

    first, *others = asyncio.run(all_of())
    assert isinstance(first, UserError)
    assert "too_many_clauses" in str(first)
    assert ids(others) == [["oslo"], ["oslo"]]


def test_a_question_whose_query_is_refused_fails_alone_once_others_were_answered(server):
    asked = [Question(id=name, question=f"Where is {name}?", answers=["Norway"], passages=["oslo"]) for name in "abc"]
    found = {"responses": [hits(("oslo", 3.5, {"title": "Oslo", "text": CORPUS["oslo"].text}))]}
    server.answers = [(200, found), (200, {"responses": [TOO_MANY]}), (200, found)]
    rows = evaluate(RAG(searcher(server), k=1, reader="none"), asked, workers=1).rows
    assert [row.scores["recall"] for row in rows] == [1.0, 0.0, 1.0]
    assert [row.failure is not None for row in rows] == [False, True, False]
    assert "too_many_clauses" in rows[1].failure
    server.answers = [(200, {"responses": [TOO_MANY]})]  # nothing says that another query would be answered
    with pytest.raises(UserError, match="too_many_clauses"):
        evaluate(RAG(searcher(server), k=1, reader="none"), asked, workers=1)


@pytest.mark.parametrize("place", [0, 2])
def test_a_query_that_is_refused_fails_alone_wherever_it_stands_among_others(server, monkeypatch, place):
    monkeypatch.setattr(batching, "_MOMENT", 0.5)  # they come together on a busy machine, too
    found = {"responses": [hits(("oslo", 3.5, {"title": "Oslo", "text": CORPUS["oslo"].text}))]}
    alone = [(200, {"responses": [TOO_MANY]}) if number == place else (200, found) for number in range(3)]
    server.answers = [(200, {"responses": [TOO_MANY] * 3}), *alone]
    asked = [Question(id=name, question=f"Where is {name}?", answers=["Norway"], passages=["oslo"]) for name in "abc"]
    rows = evaluate(RAG(searcher(server), k=1, reader="none"), asked).rows
    assert [row.failure is not None for row in rows] == [number == place for number in range(3)]


def test_a_question_whose_search_gets_no_answer_has_no_score_and_many_end_the_run(server):
    asked = [Question(id=name, question=f"Where is {name}?", answers=["Norway"], passages=["oslo"]) for name in "abc"]
    found = {"responses": [hits(("oslo", 3.5, {"title": "Oslo", "text": CORPUS["oslo"].text}))]}
    server.answers = [(200, found), *[(503, {})] * 4, (200, found)]
    program = RAG(searcher(server), k=1, reader="none")
    evaluation = evaluate(program, asked, workers=1, max_unanswered=0.4)
    assert [row.is_answered for row in evaluation.rows] == [True, False, True]
    assert (evaluation.metrics["recall"], evaluation.metrics["unanswered"]) == (1.0, 1)
    server.answers = [(503, {})]
    with pytest.raises(ServiceError, match=r"2 of 3 questions got no answer.*status 503"):
        evaluate(program, asked, workers=1, max_unanswered=0.4)


def test_a_data_set_without_a_corpus_is_searched_in_an_engine(tmp_path, monkeypatch):
    (tmp_path / "test.jsonl").write_text('{"id": "1", "question": "Where?", "answers": ["Oslo"]}\n')
    words = [f"data={tmp_path}", "retriever=opensearch", "retriever.url=http://localhost:9", "retriever.index=wiki"]
    first = Workbench(load_config(None, words)).retriever
    assert first is Workbench(load_config(None, words)).retriever
    monkeypatch.setenv("OPENSEARCH_API_KEY", "the right one")
    assert first is not Workbench(load_config(None, words)).retriever, "a key that was mended is used"


MISSING = {"error": {"type": "index_not_found_exception", "reason": "no such index [wiki]"}, "status": 404}


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (
            (503, {}),
            ServiceError,
            r"no answer from opensearch wiki at .*:\d+ \(status 503\), asked 4 times",
        ),
        ((401, {}), UserError, "status 401; set OPENSEARCH_API_KEY"),
        ((302, {}), UserError, "refuses: status 302"),
        ((200, {"responses": [MISSING]}), UserError, "refuses: status 404 .*no such index"),
        ((200, b"<html>"), UserError, "no answer of its API"),
        ((200, {"responses": []}), UserError, "no answer of its API"),
        ((200, {"responses": [hits(("x", 1.0, {"body": "words"}))]}), UserError, "without 'text' .*fields: body, id"),
    ],
)
def test_what_opensearch_should_not_answer_is_one_line(server, answer, error, said):
    server.answers = [answer]
    with pytest.raises(error, match=said):
        searcher(server).search(QUERIES[:1], 2)


def plaid_searcher(server):
    url = f"http://127.0.0.1:{server.server_address[1]}"
    return build_retriever(NextPlaidSettings(url=url, index="wiki"), CORPUS)


def plaid_answer(*rankings):
    results = [
        {
            "query_id": number,
            "document_ids": list(range(len(found))),
            "scores": [score for _, score in found],
            "metadata": [fields for fields, _ in found],
        }
        for number, found in enumerate(rankings)
    ]
    return {"results": results, "num_queries": len(rankings)}


def test_next_plaid_is_asked_with_the_vectors_of_all_queries_and_again_while_it_is_busy(server, monkeypatch):
    monkeypatch.setenv("NEXT_PLAID_API_KEY", "canary-key")
    known = {"_subset_": 1, "id": "oslo", "title": "Oslo", "text": CORPUS["oslo"].text}
    new = {"_subset_": 7, "id": "x", "title": "New", "text": "A passage."}
    server.answers = [
        (503, {"code": "INTERNAL", "message": "busy"}),
        (200, plaid_answer([(known, 17.5), (new, 3.0)], [(new, 9.25)])),
    ]
    found = plaid_searcher(server).search(QUERIES, 2)
    unknown = Passage("x", "New", "A passage.")
    assert found == [[CORPUS["oslo"].scored(17.5), unknown.scored(3.0)], [unknown.scored(9.25)]]
    assert len(server.asked) == 2
    path, headers, body = server.asked[-1]
    assert (path, headers["Authorization"]) == ("/indices/wiki/search", "Bearer canary-key")
    sent = json.loads(body)
    assert sent["params"]["top_k"] == 2
    encoder = load_encoder(find_checkpoint("minilm"))
    for query, vectors in zip(sent["queries"], encoder.queries(QUERIES), strict=True):
        raw = base64.b64decode(query["embeddings_b64"])
        assert query["shape"] == list(vectors.shape)
        assert array.array("f", raw).tolist() == vectors.flatten().tolist()


def test_a_server_of_vectors_is_waited_for_while_others_have_the_cores(server, monkeypatch):
    retriever = plaid_searcher(server)
    encoding, waiting = [], []
    queries, ask = retriever._encoder.queries, retriever.ask
    monkeypatch.setattr(
        retriever._encoder, "queries", lambda texts: encoding.append(threading.current_thread().name) or queries(texts)
    )
    monkeypatch.setattr(retriever, "ask", lambda *asked: waiting.append(threading.current_thread().name) or ask(*asked))
    monkeypatch.setattr(batching, "_MOMENT", 0.5)  # they come together on a busy machine, too
    known = {"id": "oslo", "title": "Oslo", "text": CORPUS["oslo"].text}
    server.answers = [(200, plaid_answer([(known, 17.5)], [(known, 3.0)]))]

    async def both():
        return await asyncio.gather(*(retriever.asearch(query, 1) for query in QUERIES))

    assert ids(asyncio.run(both())) == [["oslo"], ["oslo"]]
    assert len(encoding) == len(waiting) == 1
    assert encoding[0].startswith("cores")
    assert not waiting[0].startswith("cores")


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        ((429, {}), ServiceError, r"no answer from next_plaid wiki at .*:\d+ \(.*\), asked 4 times"),
        ((404, {"code": "INDEX_NOT_FOUND", "message": "no index wiki"}), UserError, "refuses: no index wiki"),
        ((200, b"<html>"), UserError, "refuses: no answer of its API"),
        ((200, {"results": {}}), UserError, "refuses: "),
        ((200, plaid_answer()), UserError, "refuses: 0 rankings for 1 queries"),
        ((200, plaid_answer([(None, 2.0)])), UserError, "without 'id' or without 'text' .*fields: none"),
    ],
)
def test_what_next_plaid_should_not_answer_is_one_line(server, answer, error, said):
    server.answers = [answer]
    with pytest.raises(error, match=said) as raised:
        plaid_searcher(server).search(QUERIES[:1], 2)
    assert "\n" not in str(raised.value)


class SearchAPI(Scripted):
    def do_GET(self):
        self.server.asked.append((urlsplit(self.path).path, dict(parse_qsl(urlsplit(self.path).query)), self.headers))
        self.answer()


@pytest.fixture
def web():
    with serving(SearchAPI) as served:
        served.address = f"http://127.0.0.1:{served.server_port}/search"
        yield served


def web_searcher(web, **options):
    return build_retriever(WebSettings(url=web.address, **{"text_field": "content"} | options), CORPUS)


def page(number, **fields):
    return {"url": f"http://x/{number}", "title": f"Page {number}", "content": f"What page {number} says."} | fields


def test_searxng_is_asked_and_its_pages_are_passages_in_its_order(web):
    known = page(2, url="oslo", title="Oslo", content=CORPUS["oslo"].text)
    found = [page(1), known, page(3, content=""), page(1), page(4, title=None, content="Half a face: \ud83d")]
    web.answers = [(200, {}, {"query": "…", "number_of_results": 0, "results": found})]
    passages = web_searcher(web, params={"format": "json"}).search(["Where is Kraków?"], 5)[0]
    assert passages == [
        Passage("http://x/1", "Page 1", "What page 1 says.", 1.0),
        CORPUS["oslo"].scored(1 / 2),
        Passage("http://x/4", "", "Half a face: ?", 1 / 3),
    ]
    [(path, params, _)] = web.asked
    assert (path, params) == ("/search", {"format": "json", "q": "Where is Kraków?"})


BRAVE = {
    "count_param": "count",
    "pages": 3,
    "key_header": "X-Subscription-Token",
    "key_env": "BRAVE_API_KEY",
    "results": "web.results",
    "text_field": "description",
}


def test_brave_search_is_asked_with_the_environments_key_and_again_when_it_says(web, monkeypatch):
    monkeypatch.setenv("BRAVE_API_KEY", "canary-key")
    waits = []
    monkeypatch.setattr(engine, "_pause", lambda state: waits.append(state.outcome.exception().after) or 0)
    found = {"type": "search", "web": {"type": "search", "results": [page(1, description="A page.")]}}
    web.answers = [(429, {"Retry-After": "2"}, {}), (503, {"Retry-After": "tomorrow"}, {}), (200, {}, found)]
    retriever = web_searcher(web, **BRAVE)
    assert retriever.search(QUERIES[:1], 2)[0] == [Passage("http://x/1", "Page 1", "A page.", 1.0)]
    assert waits == [2.0, None]
    _, params, headers = web.asked[-1]
    assert (params, headers["X-Subscription-Token"]) == ({"count": "3", "q": QUERIES[0]}, "canary-key")
    web.answers = [(200, {}, {"type": "search"})]
    assert retriever.search(QUERIES[:1], 2) == [[]], "the API has answered with a list before: it found nothing"


def test_long_pages_are_divided_and_what_fits_the_query_comes_first(web):
    long = " ".join(["filler"] * 25 + ["Heron", "island", "was", "settled", "in", "1843"])
    found = [page(1, content=long), page(2, content="A short page on owls.")]
    web.answers = [(200, {}, {"results": found})]
    first, *others = web_searcher(web, words=10).search(["When was Heron island settled?"], 9)[0]
    assert (first.id, first.title) == ("http://x/1#3", "Page 1")
    assert first.text.endswith("Heron island was settled in")
    assert first.score > others[0].score
    assert sorted(one.id for one in others) == ["http://x/1#1", "http://x/1#2", "http://x/1#4", "http://x/2"]
    web.answers = [(200, {}, {"results": [page(1, content="the of and " * 9)]})]
    assert len(web_searcher(web, words=10).search(["of the"], 9)[0]) == 3, "without any word that counts"


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        ((429, {}, {}), ServiceError, r"no answer from web http://127.*/search \(status 429\), asked 4 times"),
        ((302, {"Location": "http://127.0.0.1:9/"}, {}), UserError, "refuses: status 302"),
        ((403, {}, b"no such key: canary-key"), UserError, r"status 403; key_header and .* no such key: \*\*\*$"),
        ((422, {}, {"error": "count is too large"}), UserError, "status 422 .*count is too large"),
        ((200, {}, b"<html>"), UserError, "no JSON .*give the address of its search API"),
        ((200, {}, b'{"web": {"results": [NaN]}}'), UserError, "no JSON .*finite number"),
        ((200, {}, b"[" * 100_000), UserError, "no JSON"),
        ((200, {}, []), UserError, r"no list of pages at 'web.results' in its answer \(keys: none\)"),
        (
            (200, {}, {"web": {"results": {}}, "query": 1}),
            UserError,
            r"no list of pages .*\(keys: query, web\); results",
        ),
        ((200, {}, {"web": {"results": ["a"]}}), UserError, "no list of pages"),
        ((200, {}, {"web": {"results": [page(1)]}}), UserError, "without 'description' as text .*content, title, url"),
        ((200, {}, {"web": {"results": [page(1, description=["a"])]}}), UserError, "without 'description' as text"),
        ((200, {}, {"web": {"results": [{"description": "a " * 999}]}}), UserError, "without 'url' or"),
    ],
)
def test_what_a_search_api_should_not_answer_is_one_line_without_the_key(web, answer, error, said, monkeypatch):
    monkeypatch.setenv("BRAVE_API_KEY", "canary-key")
    web.answers = [answer]
    with pytest.raises(error, match=said) as raised:
        web_searcher(web, **BRAVE).search(QUERIES[:1], 2)
    assert "\n" not in str(raised.value)
    assert "canary" not in str(raised.value)


def test_a_search_api_that_is_late_is_asked_again():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        retriever = build_retriever(
            WebSettings(url=f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.1, text_field="content"), CORPUS
        )
        with pytest.raises(ServiceError, match=r"no answer from web .*Timeout\), asked 4 times"):
            retriever.search(QUERIES[:1], 2)


@pytest.mark.parametrize("key", [None, "", "line\nbreak", "kräftig"])
def test_a_key_that_is_not_there_is_said_before_anything_is_asked(web, key, monkeypatch):
    monkeypatch.delenv("BRAVE_API_KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("BRAVE_API_KEY", key)
    with pytest.raises(UserError, match="key_env: the environment's BRAVE_API_KEY holds no key; set it"):
        web_searcher(web, **BRAVE)


def test_the_config_of_interaug_answers_over_a_search_and_keeps_no_key(web, monkeypatch):
    monkeypatch.setenv("BRAVE_API_KEY", "canary-key")
    config = load_config(
        Path(__file__).parents[1] / "configs" / "interaug.yaml",
        [f"retriever.url={web.address}", "retriever.key_header=X-API-Key", "retriever.key_env=BRAVE_API_KEY"],
    )
    web.answers = [(200, {}, {"results": [page(1), page(2)]})]
    assert ids([asyncio.run(Workbench(config).retriever.asearch("Where?", config.k))]) == [["http://x/1", "http://x/2"]]
    shown = config.public()
    assert "canary" not in json.dumps(shown)
    assert load_config(None, [], shown).retriever == config.retriever.model_copy(update={"k": config.k})


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("{name: web, url: 'http://x?api_key=hunter2'}", "come from the environment"),
        (
            "{name: web, url: 'http://x', params: {api_key: hunter2}}",
            "params.api_key: a key comes from",
        ),
        ("{name: web, url: 'http://x', key_env: A_KEY}", "key_header and key_env belong together"),
        ("{name: web, url: 'http://x', key_header: X-Key, key_env: hunter2}", "expected the name of a variable"),
        ("{name: web, url: 'http://x', key_header: 'X Key', key_env: A_KEY}", "retriever.key_header"),
        ("{name: web, url: 'http://x', results: 'web..results'}", "retriever.results"),
        ("{name: web, url: 'http://x', params: {safe: false}}", "retriever.params.safe"),
        ("{name: qdrant, collection: wiki}", "give either url, of a server, or path"),
        ("{name: qdrant, collection: wiki, url: 'ftp://x'}", "expected a URL such as"),
        ("{name: next_plaid, index: wiki}", "url is missing"),
        ("{name: opensearch, index: 'a/b', url: 'http://x'}", "retriever.index"),
        ("{name: opensearch, index: wiki, url: 'http://me:hunter2@x'}", "come from the environment"),
        ("{name: postgres, table: t, url: 'http://x'}", "expected a URL such as postgresql"),
    ],
)
def test_a_section_that_says_nothing_useful_is_one_line(section, said):
    with pytest.raises(UserError, match=said) as raised:
        load_config(None, ["data=atlas", f"retriever={section}"])
    assert "hunter2" not in str(raised.value)


MORE = Corpus([*CORPUS, *(Passage(f"town {n}", f"Town {n}", f"It lies in county {n % 7}.") for n in range(70))])
CHANGED = Corpus([Passage("oslo", "Oslo", "Oslo has a harbour."), *MORE.passages[:1]])


def counted(settings, corpus):
    """How many passages were sent, and what the progress bar was told."""
    told = []
    return push_corpus(settings, corpus, progress=lambda *steps: told.append(steps)), told


@pytest.mark.parametrize("vector", [None, "tokens"])
def test_qdrant_is_filled_once_and_then_finds_what_the_exact_index_finds(tmp_path, vector):
    settings = QdrantSettings(path=str(tmp_path / "qdrant"), collection="wiki", vector=vector)
    assert counted(settings, MORE) == (73, [(64, 73), (73, 73)])
    assert counted(settings, MORE)[0] == 0
    queries = [*QUERIES, "Where is Town 5?"]
    found = build_retriever(settings, MORE).search(queries, 3)
    assert ids(found) == ids(build_retriever(RetrieverSettings(index="exact"), MORE).search(queries, 3))
    assert counted(settings, CHANGED)[0] == 1
    [[best, *_]] = build_retriever(settings, CHANGED).search(["the harbour of Oslo"], 80)
    assert best.text == "Oslo has a harbour."
    client = QdrantClient(path=str(tmp_path / "qdrant"))
    assert client.count("wiki").count == 73
    client.close()


def test_filling_goes_on_where_it_was_broken_off_without_encoding_anything_again(tmp_path, monkeypatch):
    settings = QdrantSettings(path=str(tmp_path), collection="wiki")
    encoded = []
    in_order = type(load_encoder(find_checkpoint("minilm"))).in_order
    monkeypatch.setattr(
        type(load_encoder(find_checkpoint("minilm"))),
        "in_order",
        lambda self, texts: (encoded.append(len(texts)), in_order(self, texts))[1],
    )

    def stopped(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        push_corpus(settings, MORE, progress=stopped)
    assert counted(settings, MORE)[0] == 9
    assert encoded[0] == 64
    assert encoded[-1] == 9


@pytest.fixture
def other_checkpoint(tmp_path):
    """The embedded checkpoint with another setting, and so with another digest."""
    shutil.copytree(find_checkpoint("minilm").folder, tmp_path / "other")
    about = json.loads((tmp_path / "other" / "artifact.metadata").read_text())
    (tmp_path / "other" / "artifact.metadata").write_text(json.dumps(about | {"doc_maxlen": 200}))
    return str(tmp_path / "other")


def test_vectors_of_another_checkpoint_are_not_searched_and_are_replaced(tmp_path, other_checkpoint):
    settings = QdrantSettings(path=str(tmp_path / "qdrant"), collection="wiki")
    other = settings.model_copy(update={"checkpoint": other_checkpoint})
    assert push_corpus(settings, CORPUS) == len(CORPUS)
    with pytest.raises(
        UserError, match=r"retriever.checkpoint: passages of qdrant wiki at .* of another checkpoint than"
    ):
        build_retriever(other, CORPUS).search(QUERIES, 2)
    assert push_corpus(other, CORPUS) == len(CORPUS)
    assert push_corpus(other, CORPUS) == 0
    assert ids(build_retriever(other, CORPUS).search(QUERIES, 1))


def test_retrievers_of_a_process_share_a_folder(tmp_path):
    settings = QdrantSettings(path=str(tmp_path), collection="wiki")
    push_corpus(settings, CORPUS)
    alone = build_retriever(settings, CORPUS)
    among_others = build_retriever(HybridSettings(of=["bm25", settings]), CORPUS)
    assert ids(among_others.search(QUERIES, 1))
    assert ids(alone.search(QUERIES, 1))


def test_how_many_passages_were_sent_cut_is_said_once(tmp_path, caplog):
    long = Corpus([*MORE, *(Passage(f"long{i}", "", f"Town {i} lies there. " * 100) for i in range(2))], "long")
    assert counted(QdrantSettings(path=str(tmp_path), collection="wiki"), long)[0] == 75
    [line] = [record.getMessage() for record in caplog.records if record.name.startswith("hoptimizer")]
    assert line.startswith("retriever: 2 of the passages that were sent are longer than the 256 tokens that")


def test_a_collection_of_other_vectors_is_one_line(tmp_path):
    client = QdrantClient(path=str(tmp_path))
    client.create_collection("wiki", vectors_config=VectorParams(size=3, distance=Distance.DOT))
    client.close()
    with pytest.raises(UserError, match=r"qdrant wiki at .* refuses: .*") as raised:
        push_corpus(QdrantSettings(path=str(tmp_path), collection="wiki"), CORPUS)
    assert "\n" not in str(raised.value)


@needs_postgres
def test_postgres_is_filled_once_in_a_table_of_its_own(settings):
    other = settings.model_copy(update={"table": "public.Towns", "title_field": "Name of it"})
    assert counted(other, MORE) == (73, [(64, 73), (73, 73)])
    assert counted(other, MORE)[0] == 0
    assert ids(build_retriever(other, MORE).search(QUERIES, 1)) == [["oslo"], ["curie"]]
    assert counted(other, CHANGED)[0] == 1
    [[best]] = build_retriever(other, CHANGED).search(["harbour"], 5)
    assert best.text == "Oslo has a harbour."
    with psycopg.connect(settings.url) as connection:
        assert connection.execute('SELECT count(*), count(DISTINCT id) FROM "Towns"').fetchone() == (73, 73)


@needs_postgres
@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("CREATE TABLE loose (id text, title text, text text)", "no unique or exclusion constraint"),
        ("CREATE TABLE loose (id text PRIMARY KEY, name text)", 'column "title" of relation "loose" does not exist'),
    ],
)
def test_a_table_that_can_not_be_filled_is_one_line_and_stays_as_it_is(settings, statement, said):
    loose = settings.model_copy(update={"table": "loose", "text_field": "text"})
    with psycopg.connect(settings.url, autocommit=True) as connection:
        connection.execute(f"DROP TABLE IF EXISTS loose; {statement}")
    with pytest.raises(UserError, match=f"postgres loose at .* refuses: .*{said}") as raised:
        push_corpus(loose, CORPUS)
    assert "\n" not in str(raised.value)
    with pytest.raises(UserError, match=r"refuses: .*NUL"):
        push_corpus(loose, Corpus([Passage("x", "", "a\0b")]))


@needs_postgres
def test_a_search_in_postgres_can_still_write_nothing(settings):
    retriever = build_retriever(settings, CORPUS)
    push_corpus(settings.model_copy(update={"table": "fresh"}), CORPUS)
    retriever.search(QUERIES, 1)
    with retriever._answering() as connection, pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        connection.execute("DELETE FROM fresh")


def bulk(*results):
    items = [{"update": {"_index": "wiki", "_id": str(n), **one}} for n, one in enumerate(results)]
    return {"took": 5, "errors": any("error" in one for one in results), "items": items}


CREATED, SAME = {"result": "created", "status": 201}, {"result": "noop", "status": 200}
FULL = {"status": 429, "error": {"type": "es_rejected_execution_exception", "reason": "queue capacity"}}
BLOCKED = {"status": 403, "error": {"type": "cluster_block_exception", "reason": "index [wiki] blocked"}}


def test_opensearch_is_sent_each_passage_under_its_id_and_again_while_it_is_busy(server, monkeypatch):
    monkeypatch.setenv("OPENSEARCH_API_KEY", "canary-key")
    server.answers = [(503, {}), (200, bulk(CREATED, FULL, CREATED)), (200, bulk(SAME, CREATED, SAME))]
    url = f"http://127.0.0.1:{server.server_address[1]}/"
    assert counted(OpenSearchSettings(url=url, index="wiki", text_field="body"), CORPUS) == (1, [(3, 3)])
    path, headers, body = server.asked[-1]
    assert len(server.asked) == 3
    assert (path, headers["Authorization"]) == ("/wiki/_bulk", "ApiKey canary-key")
    lines = [json.loads(line) for line in body.decode().splitlines()]
    assert lines[:2] == [
        {"update": {"_id": "curie"}},
        {"doc": {"id": "curie", "title": "Marie Curie", "body": CORPUS["curie"].text}, "doc_as_upsert": True},
    ]
    assert [line["update"]["_id"] for line in lines[::2]] == ["curie", "oslo", "vistula"]


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        ((200, bulk(CREATED, BLOCKED, CREATED)), UserError, r"refuses: status 403 .*index \[wiki\] blocked"),
        ((200, bulk(CREATED)), UserError, "no answer of its API"),
        ((200, b"<html>"), UserError, "no answer of its API"),
        ((401, {}), UserError, "status 401; set OPENSEARCH_API_KEY"),
        ((200, bulk(FULL, FULL, FULL)), ServiceError, r"\(status 429\), asked 4 times"),
    ],
)
def test_what_opensearch_should_not_answer_to_passages_is_one_line(server, answer, error, said):
    server.answers = [answer]
    url = f"http://127.0.0.1:{server.server_address[1]}"
    with pytest.raises(error, match=said) as raised:
        push_corpus(OpenSearchSettings(url=url, index="wiki"), CORPUS)
    assert "\n" not in str(raised.value)


class Plaid(http.server.BaseHTTPRequestHandler):
    """Keeps documents as NextPlaid's documentation says: numbered, and there some time after it accepted them."""

    def _do(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        documents, queue = self.server.documents, self.server.queue
        match self.command, self.path:
            case "POST", "/indices":
                self.server.names.append(asked["name"])
                self._tell(200, {"name": asked["name"]})
            case "POST", "/indices/wiki/metadata/get":
                if self.server.glances.pop(0) if self.server.glances else True:
                    while queue:
                        queue.pop(0)()
                assert asked["condition"] == f"id IN ({', '.join('?' * len(asked['parameters']))})"
                found = [one["metadata"] for one in documents if one["metadata"]["id"] in asked["parameters"]]
                if self.server.names:
                    self._tell(200, {"metadata": found, "count": len(found)})
                else:
                    self._tell(404, {"code": "INDEX_NOT_FOUND", "message": "Index not found: wiki"})
            case "POST", "/indices/wiki/update":
                each = zip(asked["documents"], asked["metadata"], strict=True)
                new = [{"vectors": vectors, "metadata": fields} for vectors, fields in each]
                queue.append(lambda: documents.extend(new))
                self._tell(202, f"Update queued for {len(new)} documents")
            case "DELETE", "/indices/wiki/documents":
                kept = [one for one in documents if one["metadata"]["id"] not in asked["parameters"]]
                queue.append(lambda: documents.__setitem__(slice(None), kept))
                self._tell(202, "Delete queued")

    do_POST = do_DELETE = _do

    def _tell(self, status, body):
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def plaid(monkeypatch):
    monkeypatch.setattr(next_plaid, "_GLANCE", 0.01)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Plaid) as served:
        served.names, served.documents, served.queue, served.glances = [], [], [], []
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield served
        served.shutdown()


def test_next_plaid_is_sent_each_passage_with_its_vectors_and_none_twice(plaid):
    settings = NextPlaidSettings(url=f"http://127.0.0.1:{plaid.server_address[1]}", index="wiki")
    plaid.glances = [True, False, False]  # what was accepted is not there at once
    assert counted(settings, CORPUS) == (3, [(3, 3)])
    assert plaid.names == ["wiki"]
    assert counted(settings, CORPUS)[0] == 0
    assert counted(settings, CHANGED)[0] == 1
    assert sorted(one["metadata"]["id"] for one in plaid.documents) == ["curie", "oslo", "vistula"]
    encoder = load_encoder(find_checkpoint("minilm"))
    for one in plaid.documents:
        fields = one["metadata"]
        [(_, [vectors])] = encoder.passages([str(Passage(fields["id"], fields["title"], fields["text"]))])
        assert one["vectors"]["shape"] == list(vectors.shape)
        sent = array.array("f", base64.b64decode(one["vectors"]["embeddings_b64"]))
        assert sent.tolist() == pytest.approx(vectors.flatten().tolist(), abs=0.02)


def test_next_plaid_with_vectors_of_another_checkpoint(plaid, server, other_checkpoint):
    settings = NextPlaidSettings(url=f"http://127.0.0.1:{plaid.server_address[1]}", index="wiki")
    other = settings.model_copy(update={"checkpoint": other_checkpoint})
    assert [push_corpus(each, CORPUS) for each in (settings, other, other)] == [3, 3, 0]
    assert len(plaid.documents) == 3
    server.answers = [(200, plaid_answer([(plaid.documents[0]["metadata"], 1.0)]))]
    with pytest.raises(
        UserError, match=r"retriever.checkpoint: passages of next_plaid wiki at .* of another checkpoint"
    ):
        plaid_searcher(server).search(QUERIES[:1], 1)


def test_next_plaid_that_never_does_what_it_accepted_is_one_line(plaid):
    url = f"http://127.0.0.1:{plaid.server_address[1]}"
    plaid.glances = [True, *[False] * 1000]
    with pytest.raises(UserError, match=r"refuses: what it accepted is not done after 0\.1 s; see its log"):
        push_corpus(NextPlaidSettings(url=url, index="wiki", timeout=0.1), CORPUS)


@pytest.mark.parametrize("name", ["bm25", "colbert"])
def test_only_engines_are_sent_passages(name):
    with pytest.raises(UserError, match=f"retriever: {name} is no engine .* hop index build"):
        push_corpus(RetrieverSettings(name=name), CORPUS)
    with pytest.raises(UserError, match="corpus holds no passages to send"):
        push_corpus(OpenSearchSettings(url="http://localhost:9", index="wiki"), Corpus([]))


def test_passages_that_no_corpus_here_has_are_remembered_up_to_a_bound(monkeypatch):
    monkeypatch.setattr("hoptimizer.retrieval.elsewhere.KEPT", 2)
    with ChatServer() as server:
        found = [{"text": f"Town {n} | It is old.", "pid": n} for n in range(3)]
        server.get = lambda: (200, {"topk": found})
        retriever = ColBERTServer(server.url, CORPUS)
        retriever.search(["Where?"], 3)
    assert [getattr(retriever.passage(str(n)), "title", None) for n in range(3)] == [None, "Town 1", "Town 2"]
    assert retriever.passage("oslo") == CORPUS["oslo"]
