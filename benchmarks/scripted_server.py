"""An OpenAI-compatible server whose answers are scripted and whose every call takes the same time.

    python benchmarks/scripted_server.py QUESTIONS.jsonl [--seconds 0.1] [--right 0.25] [--seed 7]

Prints its URL and serves until it is stopped; any number of calls at once. It speaks DSPy's chat prompt format, and
does what a model would on the questions of the file: it thinks the sentences of a question's rationale, one per call,
and a share of the questions, drawn by a hash, ends in the gold answer, the others in "unknown". ``GET /calls`` gives
the number of calls so far, ``GET /spans`` when each came and ended, and forgets them. ``PUT /behaviour`` changes how it
serves from then on: a JSON object with any of :class:`Behaviour`'s fields.
"""

import argparse
import asyncio
import hashlib
import json
import math
import random
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from simulation import Routing, routed

_OUTPUT = re.compile(r"(?:the field|then) `\[\[ ## (\w+) ## ]]`(?! and then ending)")
_INPUT = re.compile(r"\[\[ ## (\w+) ## ]]\n(.*?)\n\n(?=\[\[ ## |Respond with)", re.DOTALL)
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_UNLIMITED = 2**31
_FOLLOW_UP = "Is it right: "


@dataclass(frozen=True)
class Behaviour:
    """How a server serves.

    Attributes:
        seconds: a call takes on average.
        spread: the deviation of the logarithm of that time, which is normal; 0 where every call takes the same time.
        failures: the share of the calls that end with status 503, after the same time.
        slots: the calls that a replica serves at once, in the order in which they came; 0 for any number.
        replicas: among which a router divides the calls.
        routing: which of them it takes: that with the fewest calls, or one that is drawn.
    """

    seconds: float
    spread: float = 0.0
    failures: float = 0.0
    slots: int = 0
    replicas: int = 1
    routing: Routing = "fewest"

    def draw(self, source: random.Random) -> float:
        """The seconds that one call takes."""
        return self.seconds * math.exp(source.gauss(-(self.spread**2) / 2, self.spread))


class _Replica:
    """One of the servers behind a router.

    Args:
        slots: the calls that it serves at once.

    Attributes:
        slots: as a semaphore.
        calls: that are there, waiting or served.
    """

    def __init__(self, slots: int) -> None:
        self.slots = asyncio.Semaphore(slots)
        self.calls = 0


class FixedLatencyServer(ABC):
    """Answers chat completions, any number at once, each of which takes the same time unless told otherwise.

    Args:
        seconds: a call takes.

    Attributes:
        behaviour: how it serves now.
        spans: when each call so far came and ended, in seconds of this process's clock.
    """

    def __init__(self, seconds: float) -> None:
        self.behaviour = Behaviour(seconds)
        self.spans: list[tuple[float, float]] = []
        self._replicas = [_Replica(_UNLIMITED)]
        self._random = random.Random(7)

    @abstractmethod
    async def text(self, request: dict[str, Any]) -> str:
        """What the model says."""

    async def serve(self) -> None:
        """Serve on a free port of this machine."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=2**20)
        port = server.sockets[0].getsockname()[1]
        print(f"http://127.0.0.1:{port}", flush=True)
        async with server:
            await server.serve_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        now = asyncio.get_running_loop().time
        while head := await _head(reader):
            start = now()
            length = _LENGTH.search(head)
            body = await reader.readexactly(int(length[1]) if length else 0)
            status, reply = "200 OK", dict[str, Any]()
            if head.startswith(b"POST"):
                text = await self.text(json.loads(body))
                if await self._fails(start):
                    status, reply = "503 Service Unavailable", {"error": {"message": "busy", "type": "server_error"}}
                else:
                    reply = self._completion(json.loads(body), text)
                self.spans.append((start, now()))
            elif head.startswith(b"PUT /behaviour"):
                self.behaviour = replace(self.behaviour, **json.loads(body))
                kind = self.behaviour
                self._replicas = [_Replica(kind.slots or _UNLIMITED) for _ in range(kind.replicas)]
            elif head.startswith(b"GET /spans"):
                reply = {"spans": self.spans}
                self.spans = []
            else:
                reply = {"calls": len(self.spans)}
            content = json.dumps(reply).encode()
            header = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
            writer.write(header.encode() + content)
            await writer.drain()
        writer.close()

    async def _fails(self, start: float) -> bool:
        """Whether a call fails, once its time is over."""
        now, kind = asyncio.get_running_loop().time, self.behaviour
        replica = routed(self._replicas, kind.routing, self._random)
        replica.calls += 1
        async with replica.slots:
            begun = now() if kind.slots else start
            await asyncio.sleep(begun + kind.draw(self._random) - now())
        replica.calls -= 1
        return self._random.random() < kind.failures

    def tokens(self, text: str) -> int:
        """How many tokens a text has; 0 where nobody counts them."""
        return 0

    def _completion(self, request: dict[str, Any], text: str) -> dict[str, Any]:
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        asked, said = sum(self.tokens(one["content"]) for one in request["messages"]), self.tokens(text)
        usage = {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}
        return {
            "id": "fixed-latency",
            "object": "chat.completion",
            "created": 0,
            "model": request["model"],
            "choices": [choice],
            "usage": usage,
        }


class ScriptedServer(FixedLatencyServer):
    """Answers by script.

    Args:
        questions: as a data set's ``*.jsonl`` has them, by the question's text.
        seconds: a call takes.
        right: the share of questions that end in the gold answer.
        seed: decides which.
        tokenizer: the file that tokens are counted with, or ``None``.
    """

    def __init__(
        self,
        questions: dict[str, dict[str, Any]],
        seconds: float,
        right: float,
        seed: int,
        tokenizer: Path | None = None,
    ) -> None:
        super().__init__(seconds)
        self._tokenizer = Tokenizer.from_file(str(tokenizer)) if tokenizer else None
        self.questions = questions
        self.right = right
        self.seed = seed

    def tokens(self, text: str) -> int:
        """How many tokens a text has."""
        return len(self._tokenizer.encode(text).ids) if self._tokenizer else 0

    async def text(self, request: dict[str, Any]) -> str:
        """Every field that the prompt asks for."""
        prompt = request["messages"][-1]["content"]
        inputs = dict(_INPUT.findall(prompt))
        parts = [f"[[ ## {field} ## ]]\n{self.answer(field, inputs)}" for field in _OUTPUT.findall(prompt)]
        return "\n\n".join([*parts, "[[ ## completed ## ]]"])

    def answer(self, field: str, inputs: dict[str, str]) -> str:
        """The value of an output field of a reader, or of IRCoT and self-ask, which know enough with the last fact."""
        if inputs["question"].startswith(_FOLLOW_UP):
            return inputs["question"].removeprefix(_FOLLOW_UP).rstrip("?")
        question = self.questions[inputs["question"]]
        answer = question["answers"][0] if self._is_right(inputs["question"]) else "unknown"
        if field == "answer":
            return answer
        facts = question["rationale"].partition(" So the answer is:")[0]
        if field == "reasoning":
            return facts
        if field == "next_question":
            unknown = [fact for fact in facts.strip(" .").split(". ") if fact not in inputs["answered"]]
            return f"{_FOLLOW_UP}{unknown[0]}?" if unknown else ""
        if field == "next_thought":
            first, period, _ = facts.removeprefix(inputs["known"]).strip().partition(". ")
            return first + period.strip()  # the chain is then how the facts begin
        later = facts.removeprefix(inputs["facts"]).strip(" .")
        return {"look_up": later, "enough": "no" if later else "yes", "final_answer": "" if later else answer}[field]

    def _is_right(self, question: str) -> bool:
        digest = hashlib.sha256(f"{self.seed} {question}".encode()).digest()
        return int.from_bytes(digest[:4], "big") < self.right * 2**32


async def _head(reader: asyncio.StreamReader) -> bytes:
    """The head of a connection's next request; empty where there is none."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return b""


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--seconds", type=float, default=0.1, help="a call takes (default: 0.1)")
    parser.add_argument("--right", type=float, default=0.25, help="share of right answers (default: 0.25)")
    parser.add_argument("--seed", type=int, default=7, help="which questions are answered right (default: 7)")
    parser.add_argument("--tokenizer", type=Path, metavar="FILE", help="a tokenizer.json that counts usage")
    options = parser.parse_args()
    lines = options.questions.read_text(encoding="utf-8").splitlines()
    questions = {question["question"]: question for question in map(json.loads, lines)}
    server = ScriptedServer(questions, options.seconds, options.right, options.seed, options.tokenizer)
    asyncio.run(server.serve())


if __name__ == "__main__":
    main()
