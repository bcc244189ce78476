"""An OpenAI-compatible server that fails as servers do: real connections that answer otherwise than asked."""

import json
import random
import socket
import struct
import time

from chat_server import ChatServer, chat_handler

FAULTS = (
    "429",
    "429 with Retry-After",
    "500",
    "502",
    "503",
    "hang",
    "drop",
    "truncated",
    "truncated JSON",
    "no JSON",
    "another shape",
)
"""What a call can end with instead of an answer. A ``hang`` lasts longer than any client waits."""


class FaultyServer(ChatServer):
    """A chat server that fails on a share of its calls, drawn at random.

    Args:
        faults: of :data:`FAULTS`, or ``number, body -> fault or None`` by the number of the call, from 1.
        share: of the calls that fail.
        seed: of the draw.
        hang: seconds that a ``hang`` lasts.
        options: of :class:`ChatServer`.

    Attributes:
        failed: how many calls failed, by fault.
    """

    def __init__(self, faults=FAULTS, share=0.3, seed=7, hang=30.0, **options):
        super().__init__(**options)
        self.faults, self.share, self.hang = faults, share, hang
        self._random = random.Random(seed)
        self.failed = {}

    def fault(self, number, body):
        """What a call ends with, or ``None`` for an answer."""
        if callable(self.faults):
            fault = self.faults(number, body)
        else:
            with self._lock:
                fails, fault = self._random.random() < self.share, self._random.choice(self.faults)
            fault = fault if fails else None
        if fault:
            with self._lock:
                self.failed[fault] = self.failed.get(fault, 0) + 1
        return fault

    def handler(self):
        """The handler of one connection."""
        server = self

        class Handler(chat_handler(self)):
            def answer(self, body):
                number, status, reply = server.complete(body)
                fault = server.fault(number, body) if number else None  # the check of a model is no call
                if fault is None:
                    self.reply(status, reply)
                elif fault[:3].isdigit():
                    error = {"error": {"message": "not now", "type": "error", "code": None}}
                    self.reply(int(fault[:3]), error, {"Retry-After": "1"} if "Retry-After" in fault else {})
                else:
                    self.close_connection = True
                    self.misbehave(fault, json.dumps(reply).encode())

            def misbehave(self, fault, content):
                if fault == "hang":
                    time.sleep(server.hang)
                elif fault == "drop":
                    # Closed with a reset, as by a balancer whose server died.
                    linger = struct.pack("ii", 1, 0)
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    self.connection.close()
                elif fault == "truncated":
                    self.start(200, len(content))
                    self.wfile.write(content[: len(content) // 2])
                else:
                    half = content[: len(content) // 2]
                    content = {"truncated JSON": half, "no JSON": b"<html>busy</html>", "another shape": b"[1, 2]"}[
                        fault
                    ]
                    self.start(200, len(content))
                    self.wfile.write(content)

        return Handler
