"""Programs over HTTP: answers, streams, OpenAI's clients, limits, keys, counts and the end of a real server."""

import asyncio
import gc
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import dspy
import httpx
import openai
import pytest
from chat_server import ChatServer
from dspy.clients import base_lm

from hoptimizer import load_config
from hoptimizer.cli import main
from hoptimizer.common.errors import UserError
from hoptimizer.serving import answering
from hoptimizer.serving.admission import Admission, Limits
from hoptimizer.serving.keys import read_keys
from hoptimizer.serving.program import program_app
from hoptimizer.serving.refusals import Refusal
from hoptimizer.serving.sources import uncompiled
from hoptimizer.serving.work import Work

KEY = "canary-key-51ab"
QUESTION = "Where was Marie Curie born?"
ANSWER = "[[ ## answer ## ]]\nWarsaw\n\n[[ ## completed ## ]]"
USAGE = {"total_tokens": 110, "prompt_tokens": 100, "completion_tokens": 10}


def words(server, *more):
    lm = ["lm.default.model=openai/x", f"lm.default.api_base={server.url}", "lm.default.cache=false"]
    lm += ["lm.default.num_retries=0", "lm.default.api_key=none"]
    return ["data=atlas", "program={name: rag, reader: direct}", "retriever={name: bm25, k: 2}", *lm, *more]


@pytest.fixture
def ask(monkeypatch):
    """Calls ``work(client)`` with a client of an app whose language model is a scripted server's."""
    monkeypatch.setattr(dspy, "cache", dspy.cache)
    monkeypatch.setattr(base_lm, "MAX_HISTORY_SIZE", base_lm.MAX_HISTORY_SIZE)

    def run(work, *, limits=Limits(), keys=(), more=(), **options):  # noqa: B008 - frozen
        async def asked():
            app = program_app(program, "capitals", limits, keys)
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://server", timeout=30) as client:
                return await work(client)

        with ChatServer(**{"answer": lambda _: ANSWER} | options) as server:
            program = uncompiled(load_config(None, words(server, *more)), lambda *_: None)
            return asyncio.run(asked())

    return run


async def together(client, count, **params):
    return await asyncio.gather(
        *(client.get("/answer", params={"question": f"{QUESTION} {n}", **params}) for n in range(count))
    )


def events(text):
    return [(name, json.loads(data)) for name, data in re.findall(r"event: (\w+)\ndata: (.*)\n", text)]


def test_an_answer_has_its_passages_steps_and_counts(ask):
    async def work(client):
        return await client.get("/answer", params={"question": QUESTION}), await client.post(
            "/answer", json={"question": QUESTION}
        )

    got, posted = (reply.json() for reply in ask(work))
    assert got["answer"] == posted["answer"] == "Warsaw"
    assert [step["step"] for step in got["steps"]] == ["retrieve", "reader"]
    assert len(got["passages"]) == 2
    assert got["counts"]["lm_calls"] == 1.0
    assert got["counts"]["prompt_tokens"] == 100.0


def test_a_stream_tells_each_step_and_then_the_answer(ask):
    async def work(client):
        return await client.post("/answer", json={"question": QUESTION, "stream": True})

    reply = ask(work)
    assert reply.headers["content-type"].startswith("text/event-stream")
    told = events(reply.text)
    assert [name for name, _ in told] == ["step", "step", "answer"]
    assert [step for _, step in told[:2]] == told[2][1]["steps"]


def test_a_null_is_as_if_it_were_not_there(ask):
    async def work(client):
        body = {"model": "capitals", "messages": [{"role": "user", "content": QUESTION}], "stream": None}
        return await client.post("/v1/chat/completions", json=body)

    assert ask(work).json()["choices"][0]["message"]["content"] == "Warsaw"


def test_no_more_calls_are_remembered_than_are_of_use(ask, monkeypatch):
    monkeypatch.setattr(answering, "HISTORY", 3)
    gc.collect()  # other tests' language models
    kept, before = [], len(dspy.settings.trace)

    async def work(client):
        for _ in range(5):
            assert (await client.post("/answer", json={"question": QUESTION})).status_code == 200
        kept.extend(lm for lm in gc.get_objects() if isinstance(lm, dspy.LM) and lm.model == "openai/x")

    ask(work)
    assert kept
    assert {len(lm.history) for lm in kept} <= {0, 1, 2, 3}
    assert len(dspy.settings.trace) == before


def test_a_stream_tells_the_depth_of_sub_questions(ask):
    def answer(body):
        asked = str(body["messages"])
        fields = re.findall(r"\[\[ ## (\w+) ## \]\]", body["messages"][0]["content"])
        values = dict.fromkeys(fields, "no")
        if "subquestions" in fields and "Where" in asked:
            values["subquestions"] = json.dumps(["Who was Marie Curie?", "Which city was it?"])
        return "\n\n".join(f"[[ ## {field} ## ]]\n{value}" for field, value in values.items())

    async def work(client):
        return await client.get("/answer", params={"question": QUESTION, "stream": True})

    more = ["program={name: ra_isf, max_depth: 1}"]
    *steps, (name, last) = events(ask(work, more=more, answer=answer).text)
    assert name == "answer", last
    told = sorted((step["step"], step["depth"]) for _, step in steps)
    assert told == sorted((step["step"], step["depth"]) for step in last["steps"])
    assert max(depth for _, depth in told) >= 1


@pytest.mark.parametrize(
    ("asked", "status", "says"),
    [
        ({}, 422, "question: Field required"),
        ({"question": "  "}, 422, "question: expected some words"),
        ({"question": 5}, 422, "question: Input should be a valid string"),
        ({"question": "long " * 20}, 413, "expected at most 80 characters, got 99"),
        ({"question": QUESTION, "k": 3}, 422, "k: Extra inputs"),
        ({"question": "x" * 3000}, 413, "expected a request of at most 2000 bytes"),
    ],
)
def test_what_is_asked_wrongly_is_refused_in_one_line(ask, asked, status, says):
    async def work(client):
        return await client.post("/answer", json=asked)

    reply = ask(work, limits=Limits(longest=80, body=2000))
    assert reply.status_code == status
    message = reply.json()["error"]["message"]
    assert says in message
    assert "\n" not in message


def test_a_body_in_pieces_is_limited_too(ask):
    async def pieces():
        for _ in range(30):
            yield b" " * 100

    async def work(client):
        return await client.post("/answer", content=pieces(), headers={"Content-Type": "application/json"})

    reply = ask(work, limits=Limits(body=2000))
    assert (reply.status_code, reply.json()["error"]["type"]) == (413, "too_large")


def test_questions_beyond_the_queue_are_told_when_to_come_again(ask):
    async def work(client):
        asked = asyncio.create_task(together(client, 8))
        while (ready := await client.get("/ready")).status_code == 200:
            await asyncio.sleep(0)
        return ready, await asked

    ready, replies = ask(work, limits=Limits(in_flight=2, queue=3), seconds=0.2)
    refused = [reply for reply in replies if reply.status_code == 503]
    assert (len(replies), len(refused)) == (8, 3)
    assert ready.status_code == 503
    for reply in [ready, *refused]:
        assert int(reply.headers["retry-after"]) >= 1
        assert reply.json()["error"]["type"] == "overloaded"


def test_no_more_questions_are_in_flight_than_allowed_and_all_are_answered(ask):
    most = 0

    async def work(client):
        nonlocal most
        asked = asyncio.create_task(together(client, 12))
        while not asked.done():
            found = (await client.get("/metrics")).text
            most = max(most, int(float(re.search(r"^hop_in_flight (\S+)", found, re.MULTILINE)[1])))
            await asyncio.sleep(0.01)
        return await asked

    replies = ask(work, limits=Limits(in_flight=4), seconds=0.1)
    assert most == 4
    assert [reply.status_code for reply in replies] == [200] * 12


def test_questions_in_flight_are_asked_of_the_model_at_the_same_time(ask):
    async def work(client):
        return await together(client, 8)

    replies = ask(work, together=8)
    assert [reply.json()["answer"] for reply in replies] == ["Warsaw"] * 8


@pytest.mark.parametrize("stream", [False, True])
def test_a_question_that_takes_too_long_is_ended(ask, stream):
    async def work(client):
        [reply] = await together(client, 1, stream=stream)
        return reply, (await client.get("/metrics")).text, (await client.get("/ready")).json()

    reply, counted, ready = ask(work, limits=Limits(timeout=0.1), seconds=0.5)
    error = events(reply.text)[-1][1] if stream else reply.json()
    assert error["error"]["message"] == "no answer within 0.1 seconds"
    assert reply.status_code == (200 if stream else 504)
    assert 'hop_failures_total{reason="timeout"} 1.0' in counted
    assert ready["working"] == 0


def test_a_time_limit_of_the_programs_own_is_not_that_of_the_server(caplog):
    work = Work("question", Limits())

    async def question():
        async with work.place():
            with socket.create_server(("127.0.0.1", 0)) as silent:
                socket.create_connection(silent.getsockname(), timeout=0.05).recv(1)

    with pytest.raises(Refusal, match="TimeoutError in this server, whose log says more") as caught:
        asyncio.run(question())
    assert caught.value.status == 500
    assert "timed out" in caplog.text


@pytest.mark.parametrize(("status", "says", "kind"), [(503, 503, "service"), (401, 500, "configuration")])
def test_a_language_model_that_gives_no_answer_is_told_in_one_line(ask, status, says, kind):
    async def work(client):
        return await client.get("/answer", params={"question": QUESTION})

    reply = ask(work, failing=99, status=status)
    assert (reply.status_code, reply.json()["error"]["type"]) == (says, kind)
    assert "overloaded" in reply.json()["error"]["message"]
    assert ("retry-after" in reply.headers) == (status == 503)


def test_keys_are_asked_for_everywhere_but_for_health(ask):
    tried = [{}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {KEY}"}, {"X-API-Key": f"{KEY}x"}]
    right = [{"Authorization": f"Bearer {KEY}"}, {"X-API-Key": KEY}]

    async def work(client):
        asked = ["/answer?question=Where", "/metrics", "/v1/models", "/openapi.json"]
        refused = [await client.get(path, headers=headers) for path in asked for headers in tried]
        passed = [await client.get(path, headers=headers) for path in asked for headers in right]
        return refused, passed, [await client.get(path) for path in ("/health", "/ready")]

    refused, passed, free = ask(work, keys=["another-key-77", KEY])
    assert {reply.status_code for reply in refused} == {401}
    assert {reply.json()["error"]["type"] for reply in refused} == {"invalid_api_key"}
    assert {reply.status_code for reply in [*passed, *free]} == {200}


def asked_by(client, key, count, **params):
    headers = {"X-API-Key": key}
    asked = [{"question": f"{QUESTION} {key} {n}", **params} for n in range(count)]
    return [asyncio.create_task(client.get("/answer", params=one, headers=headers)) for one in asked]


async def waiting(client, count):
    while (ready := (await client.get("/ready")).json()).get("waiting", count) < count:
        await asyncio.sleep(0.01)
    return ready


@pytest.mark.parametrize("stream", [False, True])
def test_who_asks_a_lot_does_not_keep_others_waiting(ask, stream):
    async def work(client):
        many = asked_by(client, KEY, 8, stream=stream)
        await waiting(client, 7)
        few = asked_by(client, "another-key-77", 2, stream=stream)
        replies = await asyncio.gather(*few)
        return replies, sum(one.done() for one in many), await asyncio.gather(*many)

    replies, before, others = ask(work, keys=["another-key-77", KEY], limits=Limits(in_flight=1), seconds=0.2)
    assert before <= 4  # in turns: the one that was worked on, and one before each of the few
    assert {reply.status_code for reply in [*replies, *others]} == {200}
    assert all("Warsaw" in reply.text for reply in [*replies, *others])


def test_in_a_full_queue_who_has_most_of_it_makes_room(ask):
    async def work(client):
        many = asked_by(client, KEY, 5)
        full = await waiting(client, 4)
        few = asked_by(client, "another-key-77", 4)
        return full, [[reply.status_code for reply in await asyncio.gather(*asked)] for asked in (many, few)]

    full, (many, few) = ask(work, keys=["another-key-77", KEY], limits=Limits(in_flight=1, queue=4), seconds=0.2)
    assert "error" in full
    assert many == [200, 200, 200, 503, 503]
    assert few == [200, 200, 503, 503]


def test_requests_that_are_given_up_leave_their_places_to_others():
    async def requests():
        admission = Admission(Limits(in_flight=1, queue=10))

        async def request(seconds):
            async with admission:
                await asyncio.sleep(seconds)

        for _ in range(50):
            tasks = [asyncio.create_task(request(0.001)) for _ in range(8)]
            await asyncio.sleep(0.0005)
            for task in tasks[::2]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert (admission.working, admission.waiting) == (0, 0)

    asyncio.run(requests())


def test_a_page_that_is_not_there_is_what_was_asked_wrongly(ask):
    async def work(client):
        asked = [{"question": QUESTION, "main": main} for main in ("no such page", " ", "long " * 20)]
        return [await client.post("/answer", json=one) for one in asked]

    replies = ask(work, more=["program={name: rag, pages: 2}"], limits=Limits(longest=80))
    assert [reply.status_code for reply in replies] == [422, 422, 413]
    assert "neither a passage's id nor a page's title" in replies[0].json()["error"]["message"]


def test_keys_come_from_the_environment_or_a_file_and_are_never_shown(tmp_path, monkeypatch):
    file = tmp_path / "keys.txt"
    file.write_text(f"# of the team\n{KEY}\n\nanother-key-77\n")
    assert read_keys(file) == [KEY, "another-key-77"]
    assert read_keys(None) == []
    monkeypatch.setenv("HOP_SERVE_KEYS", " , ")
    with pytest.raises(UserError, match="HOP_SERVE_KEYS: no key in it; unset it"):
        read_keys(None)
    monkeypatch.setenv("HOP_SERVE_KEYS", f"{KEY}, another-key-77")
    assert read_keys(None) == [KEY, "another-key-77"]
    for text, says in (("", "no key in it"), ("# none\n", "no key in it"), ("secret", "key 1 needs 8")):
        file.write_text(text)
        with pytest.raises(UserError, match=says) as caught:
            read_keys(file)
        assert "secret" not in str(caught.value)
    with pytest.raises(UserError, match="can't be read"):
        read_keys(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"model": "gpt-4o"}, 404, "there is no 'gpt-4o'; this server has 'capitals'"),
        ({"messages": []}, 422, "role 'user'"),
        ({"messages": [{"role": "user", "content": " "}]}, 422, "expected some words"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 422, "part of type 'image_url'"),
        ({"n": 2}, 422, "n: "),
        ({"stream": "often"}, 422, "stream: "),
    ],
)
def test_a_chat_that_can_t_be_answered_is_refused_in_one_line(ask, body, status, says):
    given = {"model": "capitals", "messages": [{"role": "user", "content": QUESTION}], **body}

    async def work(client):
        return await client.post("/v1/chat/completions", json=given)

    reply = ask(work)
    assert reply.status_code == status
    assert says in reply.json()["error"]["message"]


class Served:
    """A real ``hop`` process that serves; ``with`` gives its URL.

    Args:
        command: after ``hop``.
        folder: where it runs.
        environment: of the process, besides this one's.
    """

    def __init__(self, command, folder, **environment):
        self.log = folder / "stderr.txt"
        with self.log.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "hoptimizer.cli", *command, "--port", "0"],
                cwd=folder,
                env=os.environ | environment,
                stderr=err,
                stdout=subprocess.PIPE,
            )

    def __enter__(self):
        deadline = time.monotonic() + 120
        while not (found := re.search(r"http://127.0.0.1:\d+", self.log.read_text())):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        self.url = found[0]
        while True:
            try:
                httpx.get(f"{self.url}/ready").raise_for_status()
                return self
            except httpx.ConnectError:
                time.sleep(0.05)

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def shown(url):
    """What the example of the page on serving gets for a client of OpenAI's."""
    page = Path(__file__).parents[1] / "docs" / "serving.md"
    [code] = re.findall(r"^```py\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    for before, now in (("http://127.0.0.1:8000", url), ('"none"', repr(KEY)), ('"rag"', '"capitals"')):
        assert before in code
        code = code.replace(before, now)
    names = {}
    exec(code, names)
    return names["chat"].choices[0].message.content


def test_a_real_server_answers_openai_s_clients_and_ends_when_all_is_answered(tmp_path, monkeypatch):
    monkeypatch.setattr(dspy, "cache", dspy.cache)
    slow = threading.Event()
    with ChatServer(lambda _: ANSWER, seconds=lambda _: 1.0 if slow.is_set() else 0.0) as server:
        command = ["serve", *words(server), "--name", "capitals"]
        with Served(command, tmp_path, HOP_SERVE_KEYS=KEY) as served:
            client = openai.OpenAI(base_url=f"{served.url}/v1", api_key=KEY, max_retries=0)
            assert [model.id for model in client.models.list()] == ["capitals"]
            chat = {"model": "capitals", "messages": [{"role": "user", "content": QUESTION}]}
            said = client.chat.completions.create(**chat, temperature=0.5)
            assert said.choices[0].message.content == "Warsaw"
            assert said.usage.model_dump(include=set(USAGE)) == USAGE
            *chunks, last = client.chat.completions.create(**chat, stream=True, stream_options={"include_usage": True})
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Warsaw"
            assert last.usage.model_dump(include=set(USAGE)) == USAGE
            with pytest.raises(openai.NotFoundError, match="there is no 'gpt-4o'"):
                client.chat.completions.create(**{**chat, "model": "gpt-4o"})
            with pytest.raises(openai.AuthenticationError):
                openai.OpenAI(base_url=f"{served.url}/v1", api_key="wrong").models.list()
            lm = dspy.LM("openai/capitals", api_base=f"{served.url}/v1", api_key=KEY, cache=False)
            assert lm(QUESTION) == ["Warsaw"]

            assert shown(served.url) == "Warsaw"

            headers = {"Authorization": f"Bearer {KEY}"}
            counted = httpx.get(f"{served.url}/metrics", headers=headers).text
            assert "hop_question_seconds_count 4.0" in counted
            assert "hop_lm_calls_total 4.0" in counted
            assert 'hop_lm_tokens_total{kind="prompt"} 400.0' in counted
            assert 'hop_requests_total{route="/v1/chat/completions",status="404"} 1.0' in counted

            slow.set()
            replies = []
            ask = lambda n: replies.append(  # noqa: E731
                httpx.get(f"{served.url}/answer", params={"question": f"{QUESTION} {n}"}, headers=headers, timeout=30)
            )
            threads = [threading.Thread(target=ask, args=(n,)) for n in range(3)]
            before = len(server.bodies)
            for thread in threads:
                thread.start()
            while len(server.bodies) < before + 3:
                time.sleep(0.01)
            served.process.send_signal(signal.SIGTERM)
            for thread in threads:
                thread.join()
            assert [reply.json()["answer"] for reply in replies] == ["Warsaw"] * 3
            assert served.process.wait(20) == 0
    log = served.log.read_text()
    assert log.splitlines() == [f"capitals of atlas: {served.url}"]
    assert KEY not in log


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["nowhere"], ["nowhere", "hop compare"]),
        (["runs:/nowhere"], ["runs:/nowhere"]),
        (["models:/capitals/1"], ["models:/capitals/1"]),
        (["models:/capitals"], ["names no model"]),
        (["."], ["no config.yaml in it"]),
        (["nowhere.yaml"], ["nowhere.yaml", "no such config file"]),
        (["1f2e3d", "my.yaml"], ["my.yaml", "key=value alone"]),
        (["data=nowhere"], ["nowhere"]),
        (["data=atlas", "--keys", "nowhere.txt"], ["nowhere.txt", "can't be read"]),
        (["data=atlas", "--host", "203.0.113.7"], ["--host 203.0.113.7", "address of this machine"]),
        (["data=atlas", "--port", "TAKEN"], ["--port", "Address already in use", "--port 0"]),
    ],
)
def test_a_mistake_ends_in_one_line_and_exit_code_2(command, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ports = [] if "--port" in command else ["--port", "0"]
        given = [port if word == "TAKEN" else word for word in command]
        monkeypatch.setattr(sys, "argv", ["hop", "serve", *given, *ports])
        with pytest.raises(SystemExit) as end:
            main()
    out, err = capsys.readouterr()
    [line] = [line for line in err.splitlines() if line.startswith("hop: ")]
    assert (end.value.code, out) == (2, "")
    for part in says:
        assert part in line


def test_what_is_not_installed_is_told_with_the_extra_that_has_it(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "prometheus_client" else name)
    monkeypatch.setattr(sys, "argv", ["hop", "serve", "data=atlas"])
    with pytest.raises(SystemExit):
        main()
    assert "hop serve needs prometheus-client: pip install 'hoptimizer[server]'" in capsys.readouterr().err
