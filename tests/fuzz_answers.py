"""What a language model's server may answer, and a program that is evaluated on it."""

import contextlib
import gzip
import json
import math
import time
from dataclasses import dataclass

import dspy
import pandas as pd
from chat_server import ChatServer, chat_handler
from fuzz_targets import LM, SMALL, alone
from fuzz_values import as_json, changed, damaged, texts
from hypothesis import strategies as st

from hoptimizer import programs
from hoptimizer.eval import Question, evaluate
from hoptimizer.models import LMSettings, build_adapter, build_lm
from hoptimizer.programs import RAG, RAISF, EfficientRAG, IRCoT
from hoptimizer.retrieval import BM25Retriever

TIMEOUT = 1.0
FIELDS = ("answer", "reasoning", "next_thought", "relevant", "enough", "look_up", "subquestions", "final_answer")
CONTENTS = [
    "".join(f"[[ ## {name} ## ]]\n{value}\n\n" for name, value in zip(FIELDS, ["Lyon"] * len(FIELDS), strict=True)),
    '[[ ## relevant ## ]]\nyes\n\n[[ ## subquestions ## ]]\n["Who?", "Where?"]\n\n[[ ## completed ## ]]',
    '[[ ## subquestions ## ]]\n[1, null, {"a": [2]}]\n\n[[ ## answer ## ]]\n{"a": 1}',
    json.dumps(dict.fromkeys(FIELDS, "yes")),
    json.dumps({name: ["yes", 5, None] for name in FIELDS}),
    "<think>",
    "<think>a</think>[[ ## answer ## ]]\n\ud800",
    "[[ ## answer ## ]]" * 3_000,
    "{" * 20_000,
    '{"answer": ' * 3_000,
    '{"answer": "' + "x" * 300_000,
    '[[ ## subquestions ## ]]\n["' + '", "' * 20_000,
    "",
]
COMPLETION = {
    "id": "1",
    "object": "chat.completion",
    "created": 0,
    "model": "scripted",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": CONTENTS[0]},
            "logprobs": {"content": [{"token": "yes", "logprob": -0.1, "bytes": [1], "top_logprobs": []}]},
        }
    ],
    "usage": {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 3},
    },
}
CALLING = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}
COMPLETIONS = [
    COMPLETION,
    COMPLETION
    | {"choices": [{"index": 0, "message": {"role": "assistant", "content": None, "tool_calls": [CALLING]}}]},
    COMPLETION | {"choices": COMPLETION["choices"] * 2, "usage": None},
    COMPLETION | {"choices": [{"message": {"content": [{"type": "text", "text": "Lyon"}], "reasoning": "hm"}}]},
]
ERRORS = [{"error": {"message": "no", "type": "invalid_request_error", "code": "context_length_exceeded"}}]
STREAM = "data: " + json.dumps({"choices": [{"delta": {"content": "Lyon"}}]}) + "\n\ndata: [DONE]\n\n"
HEADERS = [
    ("Content-Type", "text/event-stream"),
    ("Content-Type", "application/json; charset=utf-16"),
    ("Content-Type", ""),
    ("Content-Encoding", "gzip"),
    ("Content-Encoding", "br"),
    ("Retry-After", "1e400"),
    ("Retry-After", "-5"),
    ("Retry-After", "Wed, 99 Foo 2099"),
    ("Location", "http://127.0.0.1:9/elsewhere"),
    ("Set-Cookie", "\x80"),
    ("X-Long", "x" * 70_000),
    ("x-ratelimit-remaining-tokens", "many"),
    ("", ""),
    ("Content-Length", "-1"),
    ("Content-Length", "many"),
    ("Transfer-Encoding", "chunked"),
]


@dataclass(frozen=True)
class Reply:
    """What a server sends.

    Attributes:
        status: of HTTP, or the whole first line where it is none.
        headers: beside the length's.
        body: bytes.
        way: how the body comes: ``whole``, ``short`` of its length, ``unlimited`` (until the connection ends),
            ``chunked``, ``packed``, ``dripping`` (without an end).
    """

    status: int | str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    way: str


@st.composite
def completions(draw):
    """The JSON of an answer, changed; what the model wrote may be changed alone."""
    if draw(st.booleans()):
        return draw(st.builds(as_json, changed(COMPLETIONS)))
    content = draw(
        st.sampled_from(CONTENTS) | texts() | st.builds(lambda a, b: a + b, st.sampled_from(CONTENTS), texts())
    )
    choice = COMPLETION["choices"][0]
    return json.dumps(COMPLETION | {"choices": [choice | {"message": {"role": "assistant", "content": content}}]})


BODIES = damaged(completions() | st.builds(as_json, changed(ERRORS)) | st.sampled_from([STREAM, "<html>", "null", "7"]))
REPLIES = st.builds(
    Reply,
    st.sampled_from(
        [200] * 8 + [201, 204, 301, 400, 401, 404, 413, 422, 429, 500, 503, 599, 99, 1000, "HTTP/9 ?", "", "OK"]
    ),
    st.lists(st.sampled_from(HEADERS), max_size=1).map(tuple) | st.just(()),
    BODIES,
    st.sampled_from(["whole"] * 8 + ["short", "unlimited", "chunked", "packed"] * 2 + ["dripping"]),
)
# DSPy has one client for calls with headers, and another for all others; the price of a call is known of one model.
CLIENTS = [{}, {"model": "openai/gpt-4o-mini"}, {"extra_headers": {"X-Team": "a"}}]
PROGRAMS = {"rag": RAG, "ircot": IRCoT, "ra_isf": RAISF, "efficient_rag": EfficientRAG} | {
    name: program for name, program in programs.PROGRAMS.items() if name in ("react", "self_rag", "decomp", "self_ask")
}
ANSWERS = st.tuples(
    st.sampled_from(list(PROGRAMS)),
    st.sampled_from(["chat", "json"]),
    st.sampled_from(CLIENTS),
    st.lists(REPLIES, min_size=1, max_size=2),
    st.sampled_from([0.0, 0.5, 1.0]),
)
QUESTIONS = [Question(id=str(n), question=f"Where does the Rhône flow, {n}?", answers=["Lyon"]) for n in range(2)]


class ReplyingServer(ChatServer):
    """Sends what it is given, one after the other, to whoever asks."""

    replies: tuple[Reply, ...] = ()

    def handler(self):
        """The handler of one connection."""
        server = self

        class Handler(chat_handler(self)):
            def answer(self, body):
                number, *_ = server.complete(body)
                self.close_connection = True
                with contextlib.suppress(OSError):  # the client waits no longer
                    self.send(server.replies[number % len(server.replies)])

            def send(self, reply):
                first = f"HTTP/1.1 {reply.status} X" if isinstance(reply.status, int) else reply.status
                body = gzip.compress(reply.body) if reply.way == "packed" else reply.body
                headers = [*reply.headers, *([("Content-Encoding", "gzip")] if reply.way == "packed" else [])]
                if reply.way == "chunked":
                    headers.append(("Transfer-Encoding", "chunked"))
                    body = b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"
                elif reply.way not in ("unlimited", "dripping"):
                    headers.append(("Content-Length", str(len(body) + 9 * (reply.way == "short"))))
                head = "\r\n".join([first, *(f"{name}: {value}" for name, value in headers), "", ""])
                self.wfile.write(head.encode("latin-1", "replace"))
                if reply.way == "dripping":
                    # Never silent for as long as the timeout, and never at an end.
                    while True:
                        self.wfile.write(b" ")
                        time.sleep(TIMEOUT / 4)
                self.wfile.write(body)

        return Handler


@contextlib.contextmanager
def answers(folder):
    """Takes a program, a prompt format, settings of the client, what the server answers, and the share that may be
    unanswered."""
    retriever = BM25Retriever(SMALL)

    def attempt(one):
        name, prompt_format, client, replies, share = one
        server.replies = tuple(replies)
        settings = LM | {"api_base": server.url, "prompt_format": prompt_format, "cache": False, "timeout": TIMEOUT}
        settings |= client
        with dspy.context(lm=build_lm(LMSettings(**settings)), adapter=build_adapter()):
            evaluation = evaluate(PROGRAMS[name](retriever, k=1), QUESTIONS, max_unanswered=share)
        check(evaluation)

    with alone(folder), ReplyingServer() as server:
        yield attempt


def check(evaluation):
    """Every question ended in one way or another, and what is kept of it can be written."""
    rows = evaluation.rows
    if [row.question.id for row in rows] != [question.id for question in QUESTIONS]:
        raise AssertionError(f"questions were lost: {rows}")
    kept = [
        {
            "answer": row.answer,
            "failure": row.failure,
            "collected": row.passages,
            **row.scores,
            "steps": [step.as_dict() for step in row.steps],
        }
        for row in rows
    ]
    json.dumps(kept, ensure_ascii=False, allow_nan=False).encode()
    pd.DataFrame(kept).to_json(orient="split").encode()
    for row in rows:
        if not isinstance(row.answer, str) or not (row.failure is None or isinstance(row.failure, str)):
            raise AssertionError(f"an answer that is no text: {row.answer!r}, {row.failure!r}")
    for figure, value in evaluation.metrics.items():
        if not math.isfinite(value):
            raise AssertionError(f"{figure} is {value}")
