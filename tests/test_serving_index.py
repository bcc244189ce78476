"""An index over HTTP: the clients of ColBERT servers get what a search in this process gives."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import replace

import dspy
import httpx
import pytest
import uvicorn
from pydantic import ValidationError
from rounding import BATCHES_ROUND

from hoptimizer import Workbench, load_config
from hoptimizer.cli import main
from hoptimizer.retrieval import (
    BM25Retriever,
    ColBERTServer,
    Corpus,
    HybridSettings,
    RetrieverSettings,
    build_retriever,
)
from hoptimizer.serving.admission import Limits
from hoptimizer.serving.app import make_app
from hoptimizer.serving.search_route import search_routes
from hoptimizer.serving.work import Work

WORDS = ["data=atlas", "retriever=bm25"]
QUERIES = [f"Which city lies on the {river}?" for river in ("Vistula", "Rhine", "Danube", "Seine", "Thames", "Tiber")]


@pytest.fixture
def bench():
    return Workbench(load_config(None, WORDS), lambda *_: None)


def test_clients_of_colbert_servers_get_what_a_search_in_this_process_gives(bench, monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    found = {}

    def ask():
        try:
            deadline = time.monotonic() + 100
            while True:
                try:
                    httpx.get(f"http://127.0.0.1:{port}/ready").raise_for_status()
                    break
                except httpx.ConnectError:
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
            url = f"http://127.0.0.1:{port}/api/search"
            found["ours"] = ColBERTServer(url, bench.data.corpus).search(QUERIES, k=4)
            found["strange corpus"] = ColBERTServer(url, Corpus([])).search(QUERIES[:1], k=4)
            for posted in (False, True):
                client = dspy.ColBERTv2(url, post_requests=posted)
                found[posted] = [client(query, k=4) for query in QUERIES]
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(dspy, "cache", dspy.cache)
    monkeypatch.setattr(sys, "argv", ["hop", "index", "serve", *WORDS, "--json", "--port", str(port)])
    thread = threading.Thread(target=ask)
    thread.start()
    with pytest.raises(SystemExit) as end:
        main()
    thread.join()
    assert end.value.code == 130
    out, err = capsys.readouterr()
    told = {"serving": "bm25 index of atlas", "url": f"http://127.0.0.1:{port}", "keys": False}
    assert json.loads(out) == told
    assert f"bm25 index of atlas: http://127.0.0.1:{port}" in err
    expected = bench.retriever.search(QUERIES, k=4)
    assert found["ours"] == expected
    assert [[p.id, p.title, p.text] for p in found["strange corpus"][0]] == [
        [p.id, p.title, p.text] for p in expected[0]
    ]
    for posted in (False, True):
        got = [[(p.pid, p.score, p.rank, p.text) for p in ranking] for ranking in found[posted]]
        assert got == [
            [(p.id, p.score, rank, f"{p.title} | {p.text}") for rank, p in enumerate(ranking, 1)]
            for ranking in expected
        ]


class SlowRetriever(BM25Retriever):
    """BM25 that takes its time, and says how many queries it got at once."""

    def __init__(self, corpus):
        super().__init__(corpus)
        self.batches = []

    def search(self, queries, k):
        self.batches.append(len(queries))
        time.sleep(0.1)
        return super().search(queries, k)


def searched(retriever, limits, *params):
    async def run():
        work = Work("search", limits)
        app = make_app("index", work, (), search_routes(retriever, work))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            return await asyncio.gather(*(client.get("/api/search", params=one) for one in params))

    return asyncio.run(run())


def test_searches_that_come_together_share_batches(bench):
    retriever = SlowRetriever(bench.data.corpus)
    asked = [{"query": f"{query} {n}", "k": 3} for query in QUERIES for n in range(5)]
    replies = searched(retriever, Limits(), *asked)
    assert [len(reply.json()["topk"]) for reply in replies] == [3] * 30
    assert len(retriever.batches) <= 4
    assert sum(retriever.batches) == 30


def test_searches_beyond_the_queue_are_told_when_to_come_again(bench):
    asked = [{"query": query} for query in QUERIES]
    replies = searched(SlowRetriever(bench.data.corpus), Limits(in_flight=2, queue=2), *asked)
    refused = [reply for reply in replies if reply.status_code == 503]
    assert len(refused) == 2
    assert all(int(reply.headers["retry-after"]) >= 1 for reply in refused)
    assert sum(reply.status_code == 200 for reply in replies) == 4


class Unscored(BM25Retriever):
    def search(self, queries, k):
        return [[replace(passage, score=None) for passage in found] for found in super().search(queries, k)]


def test_passages_without_scores_are_served_as_such(bench):
    [reply] = searched(Unscored(bench.data.corpus), Limits(), {"query": QUERIES[0], "k": 2})
    assert [found["score"] for found in reply.json()["topk"]] == [None, None]


class Broken(BM25Retriever):
    def search(self, queries, k):
        raise KeyError("mistake in a retriever")


def test_a_mistake_in_a_part_of_the_users_is_told_as_any_other_error(bench, caplog):
    [reply] = searched(Broken(bench.data.corpus), Limits(), {"query": QUERIES[0]})
    assert (reply.status_code, reply.json()["error"]["type"]) == (500, "error")
    assert "KeyError in this server" in reply.json()["error"]["message"]
    assert "mistake in a retriever" in caplog.text


@pytest.mark.parametrize(
    ("params", "status", "says"),
    [
        ({}, 422, "query: Field required"),
        ({"query": " "}, 422, "query: expected some words"),
        ({"query": "x", "k": 0}, 422, "k: "),
        ({"query": "x", "k": 5000}, 422, "k: "),
        ({"query": "long " * 20}, 413, "at most 50 characters"),
    ],
)
def test_a_search_that_can_t_be_made_is_refused_in_one_line(bench, params, status, says):
    [reply] = searched(bench.retriever, Limits(longest=50), params)
    assert reply.status_code == status
    assert says in reply.json()["error"]["message"]


@contextlib.contextmanager
def served(retriever):
    """The URL of an index server with a retriever, at a port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as place:
        work = Work("search", Limits())
        app = make_app("index", work, (), search_routes(retriever, work))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, args=([place],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{place.getsockname()[1]}/api/search"
        finally:
            server.should_exit = True
            thread.join()


def test_the_best_of_all_parts_of_a_corpus_are_the_best_of_the_whole(bench):
    passages = list(bench.data.corpus)[:90]
    settings = RetrieverSettings(index="exact")
    parts = [build_retriever(settings, Corpus(passages[start::3])) for start in range(3)]
    one = build_retriever(settings, Corpus(passages))
    whole = one.search(QUERIES, k=5)
    every = [{passage.text: passage.score for passage in ranking} for ranking in one.search(QUERIES, k=90)]
    with contextlib.ExitStack() as servers:
        of = [{"name": "colbert", "url": servers.enter_context(served(part))} for part in parts]
        for corpus in (Corpus(passages), Corpus([])):
            hybrid = build_retriever(HybridSettings(of=of, fusion="parts"), corpus)
            found = asyncio.run(gathered(hybrid.asearch(query, 5) for query in QUERIES))
            ids = [passage.id for ranking in found for passage in ranking]
            texts = [passage.text for ranking in found for passage in ranking]
            assert [known and known.text for known in map(hybrid.passage, ids)] == texts
            if not len(corpus):
                assert {id.partition("/")[0] for id in ids} == {"0", "1", "2"}
            if BATCHES_ROUND:  # parts are encoded in other batches: near ties may change places
                for ranking, scores in zip(found, every, strict=True):
                    best = pytest.approx(sorted(scores.values(), reverse=True)[:5], abs=0.05)
                    assert [scores[passage.text] for passage in ranking] == best
                continue
            assert [[p.text for p in ranking] for ranking in found] == [[p.text for p in ranking] for ranking in whole]
            if len(corpus):
                assert ids == [passage.id for ranking in whole for passage in ranking]


async def gathered(searches):
    return await asyncio.gather(*searches)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"of": ["bm25", "colbert"]}, "give each of retriever.of the url of its own"),
        ({"of": [{"name": "colbert", "url": "http://a:1"}] * 2, "depth": 5}, "depth and weights have no meaning"),
    ],
)
def test_parts_are_searched_by_servers_alone(options, said):
    with pytest.raises(ValidationError, match=said):
        HybridSettings(fusion="parts", **options)
