"""``/answer``: the answer of a program with its passages and steps, at once or step by step."""

import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from pydantic import BaseModel, ConfigDict

from hoptimizer.programs.record import StepRecord
from hoptimizer.serving.answering import Answer, Answering
from hoptimizer.serving.refusals import Refusal


class Asked(BaseModel):
    """A question.

    Attributes:
        question: the question.
        main: the page that it is asked about, for programs with the option ``pages``.
        stream: whether each step is told as it ends.
    """

    model_config = ConfigDict(extra="forbid")

    question: str
    main: str | None = None
    stream: bool = False


def answer_routes(answering: Answering) -> APIRouter:
    """``GET`` and ``POST /answer``."""
    router = APIRouter()

    async def answer(asked: Asked) -> Response:
        question = answering.work.checked("question", asked.question)
        main = None if asked.main is None else answering.work.checked("main", asked.main)
        if not asked.stream:
            return JSONResponse(_body(await answering.answer(question, main)))
        answering.work.admission.check()  # while a status can still tell
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        return EventSourceResponse(_events(answering, question, main), headers=headers)

    @router.post("/answer")
    async def post(asked: Asked) -> Response:
        """Answer a question."""
        return await answer(asked)

    @router.get("/answer")
    async def get(asked: Annotated[Asked, Query()]) -> Response:
        """Answer a question."""
        return await answer(asked)

    return router


async def _events(answering: Answering, question: str, main: str | None) -> AsyncIterator[bytes]:
    """Events ``step``, and last an ``answer`` or an ``error``."""
    try:
        async for news in answering.stream(question, main):
            if isinstance(news, StepRecord):
                yield _event("step", news.as_dict())
            elif isinstance(news, Answer):
                yield _event("answer", _body(news))
            else:
                yield KEEPALIVE_COMMENT
    except Refusal as refusal:
        yield _event("error", refusal.as_dict())


def _body(answer: Answer) -> dict[str, Any]:
    return {**answer.values, "seconds": answer.seconds, "counts": answer.counts}


def _event(name: str, values: dict[str, Any]) -> bytes:
    return format_sse_event(event=name, data_str=json.dumps(values, ensure_ascii=False))
