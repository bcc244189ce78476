"""``/v1/chat/completions`` and ``/v1/models``, so that clients of OpenAI can ask a program.

The fields are those of OpenAI's API reference (Chat Completions, and its streaming). What only a language model
understands, such as ``temperature``, is taken and not followed: a variant has its own settings.
"""

import json
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any, Literal

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from pydantic import BaseModel, Field

from hoptimizer.programs.record import StepRecord
from hoptimizer.serving.answering import Answer, Answering
from hoptimizer.serving.refusals import Refusal, invalid


class Part(BaseModel):
    """A part of a message; text alone is understood."""

    type: str
    text: str = ""


class Message(BaseModel):
    """A message of a conversation."""

    role: str
    content: str | list[Part] | None = None

    @property
    def text(self) -> str:
        """Its words.

        Raises:
            Refusal: a part is no text.
        """
        if isinstance(self.content, list):
            if strange := [part.type for part in self.content if part.type != "text"]:
                raise invalid(f"messages: expected text, got a part of type {strange[0]!r:.40}")
            return "\n".join(part.text for part in self.content)
        return self.content or ""


class StreamOptions(BaseModel):
    """What a stream brings besides."""

    include_usage: bool = False


class Completion(BaseModel):
    """A request of OpenAI's chat API, as far as it is followed."""

    model: str
    messages: list[Message]
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: Literal[1] | None = Field(default=None)


def openai_routes(answering: Answering, name: str) -> APIRouter:
    """The routes of a program.

    Args:
        answering: the program.
        name: what it is called as a model.
    """
    router = APIRouter(prefix="/v1")
    model = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "hoptimizer"}

    @router.get("/models")
    async def models() -> dict[str, Any]:
        """The one model."""
        return {"object": "list", "data": [model]}

    @router.get("/models/{asked:path}")
    async def one(asked: str) -> dict[str, Any]:
        """The model by its name."""
        _check_model(asked, name)
        return model

    @router.post("/chat/completions")
    async def complete(asked: Completion) -> Response:
        """Answer the last message of the user."""
        _check_model(asked.model, name)
        users = [message for message in asked.messages if message.role == "user"]
        if not users:
            raise invalid("messages: expected one of the role 'user', which is the question")
        question = answering.work.checked("messages", users[-1].text)
        head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": name}
        if asked.stream:
            answering.work.admission.check()  # while a status can still tell
            usage = bool(asked.stream_options and asked.stream_options.include_usage)
            return EventSourceResponse(_chunks(answering, question, head, usage), headers={"Cache-Control": "no-cache"})
        answer = await answering.answer(question)
        message = {"role": "assistant", "content": answer.values["answer"], "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        return JSONResponse({**head, "object": "chat.completion", "choices": [choice], "usage": _usage(answer)})

    return router


def _check_model(asked: str, name: str) -> None:
    if asked != name:
        raise Refusal(404, "model_not_found", f"model: there is no {asked!r:.80}; this server has {name!r}")


async def _chunks(answering: Answering, question: str, head: dict[str, Any], usage: bool) -> AsyncIterator[bytes]:
    """An answer as OpenAI streams one; it comes in one piece, for only the last step writes it."""

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _data({**head, "object": "chat.completion.chunk", "choices": [choice]})

    try:
        yield chunk({"role": "assistant", "content": ""})
        async for news in answering.stream(question):
            if isinstance(news, Answer):
                yield chunk({"content": news.values["answer"]})
                yield chunk({}, "stop")
                if usage:
                    yield _data({**head, "object": "chat.completion.chunk", "choices": [], "usage": _usage(news)})
            elif not isinstance(news, StepRecord):
                yield KEEPALIVE_COMMENT
        yield format_sse_event(data_str="[DONE]")
    except Refusal as refusal:
        yield _data(refusal.as_dict())


def _usage(answer: Answer) -> dict[str, int]:
    """Tokens of all calls that led to an answer; 0 where they are not known."""
    prompt, completion = (int(answer.counts.get(f"{kind}_tokens", 0)) for kind in ("prompt", "completion"))
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _data(values: dict[str, Any]) -> bytes:
    return format_sse_event(data_str=json.dumps(values, ensure_ascii=False))
