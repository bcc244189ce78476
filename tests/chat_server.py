"""An OpenAI-compatible server on this machine whose answers are scripted: real connections, headers and bodies."""

import contextlib
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CHECK = "Say: yes"
"""What a language model is asked before a long run."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 256  # calls that come at once wait, and are not reset


class ChatServer:
    """Answers chat completions; it is used with ``with``.

    Args:
        answer: ``body -> text``, or the message as a mapping; word by word where the body asks for a stream.
        seconds: a call takes, or ``body -> seconds``.
        failing: the first so many calls are refused with ``status`` and the text of ``error``.
        error_body: of a refusal, where it is not OpenAI's with the text of ``error``.
        usage: what each answer reports, or ``body -> usage``.
        together: no call ends before so many have been under way at once, or ten seconds have passed.
        checked: the status of what is asked to find out whether the model answers.

    Attributes:
        url: for ``api_base``.
        bodies: of the calls so far.
        checks: of the calls by which it was found out whether the model answers.
        headers: of all requests so far, names in lower case.
        most: the most calls that were under way at once.
    """

    def __init__(
        self,
        answer=lambda body: "words",
        seconds=0.0,
        failing=0,
        status=500,
        error="overloaded",
        error_body=None,
        usage=None,
        together=1,
        checked=200,
    ):
        self.answer, self.seconds, self.failing, self.status, self.error = answer, seconds, failing, status, error
        self.refusal = error_body
        self.usage = usage or {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        self.bodies, self.headers = [], []
        self.checks, self.checked = [], checked
        self.together, self._reached = together, threading.Event()
        self.running = self.most = 0
        self._lock = threading.Lock()

    def __enter__(self):
        server = self._server = _Server(("127.0.0.1", 0), self.handler())
        self.url = f"http://127.0.0.1:{server.server_port}/v1"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def get(self):
        """The status and the body of what a GET gives: the list of models."""
        return 200, {"object": "list", "data": []}

    def handler(self):
        """The handler of one connection."""
        return chat_handler(self)

    def complete(self, body):
        """The number of a call, from 1, and the status and the body of its answer."""
        if body["messages"][-1]["content"] == CHECK:  # whether it answers at all: none of the calls that tests count
            self.checks.append(body)
            return 0, self.checked, self.error_body() if self.checked != 200 else self.reply(0, body, "yes")
        with self._lock:
            self.bodies.append(body)
            number = len(self.bodies)
            self.running += 1
            self.most = max(self.most, self.running)
            if self.most >= self.together:
                self._reached.set()
        self._reached.wait(10)
        time.sleep(self.seconds(body) if callable(self.seconds) else self.seconds)
        with self._lock:
            self.running -= 1
        if number <= self.failing:
            return number, self.status, self.error_body()
        return number, 200, self.reply(number, body, self.answer(body))

    def error_body(self):
        """The body of a refusal."""
        return self.refusal or {"error": {"message": self.error, "type": "error", "code": None}}

    def reply(self, number, body, said):
        """The body of an answer."""
        message = {"role": "assistant", **(said if isinstance(said, dict) else {"content": said})}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        reply = {"id": f"call-{number}", "object": "chat.completion", "created": 0, "model": body["model"]}
        usage = self.usage(body) if callable(self.usage) else self.usage
        return {**reply, "choices": [choice], **({"usage": usage} if usage else {})}


def chat_handler(chat):
    """The handler of a connection to a chat server."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            chat.headers.append(self._names())
            self.reply(*chat.get())

        def do_POST(self):
            chat.headers.append(self._names())
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.answer(body)

        def answer(self, body):
            _, status, reply = chat.complete(body)
            if body.get("stream") and status == 200:
                self.stream(reply)
            else:
                self.reply(status, reply)

        def stream(self, reply):
            """An answer as server-sent events, word by word."""
            [choice] = reply["choices"]
            words = re.findall(r"\s*\S+\s*?", choice["message"]["content"])
            choices = [{"index": 0, "delta": {"content": word}, "finish_reason": None} for word in words]
            choices.append({"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]})
            events = [reply | {"object": "chat.completion.chunk", "choices": [choice]} for choice in choices]
            sent = [*map(json.dumps, events), "[DONE]"]
            content = "".join(f"data: {event}\n\n" for event in sent).encode()
            self.start(200, len(content), {"Content-Type": "text/event-stream"})
            self.wfile.write(content)

        def _names(self):
            return {name.lower(): value for name, value in self.headers.items()}

        def start(self, status, length, headers=()):
            self.send_response(status)
            for name, value in {
                "Content-Type": "application/json",
                "Content-Length": str(length),
                **dict(headers),
            }.items():
                self.send_header(name, value)
            self.end_headers()

        def reply(self, status, reply, headers=()):
            content = json.dumps(reply).encode()
            self.start(status, len(content), headers)
            with contextlib.suppress(BrokenPipeError):  # the client waits no longer
                self.wfile.write(content)

        def log_message(self, *args):
            pass

    return Handler
