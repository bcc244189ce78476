"""A compiled variant in an application of one's own, over HTTP: VARIANT=runs:/ID uvicorn serve_variant:app, on the
language model that it was compiled for, or on another one with LM=MODEL.

`hop serve runs:/ID` serves a variant as it is, without code, with limits, keys and counts (docs/serving.md).
"""

import os
from collections.abc import AsyncIterator
from typing import Any

import dspy
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from hoptimizer import load_variant


class Support(dspy.Module):
    """Answers with a variant on the language model of one's choice, and names the titles that the answer is from."""

    def __init__(self, source: str, lm: str | None) -> None:
        super().__init__()
        self.variant = load_variant(source, [f"lm.default={lm}"] if lm else [])

    async def aforward(self, question: str) -> dspy.Prediction:
        found = await self.variant.acall(question=question)
        return dspy.Prediction(answer=found.answer, titles=[passage.title for passage in found.passages])


class Steps(dspy.streaming.StatusMessageProvider):
    """Tells of each call of a language model."""

    def lm_start_status_message(self, instance: Any, inputs: dict[str, Any]) -> str:  # noqa: ANN401 - DSPy's
        return f"asking {instance.model}"


app = FastAPI()
support = Support(os.environ["VARIANT"], os.environ.get("LM"))
streaming = dspy.streamify(support, Steps(), is_async_program=True)


@app.get("/answer")
async def answer(question: str) -> dict[str, Any]:
    """The answer, and the titles that it is from."""
    return (await support.acall(question=question)).toDict()


@app.get("/stream")
async def stream(question: str) -> StreamingResponse:
    """What is being done, line by line, and the answer as the last line."""

    async def lines() -> AsyncIterator[str]:
        async for value in streaming(question=question):
            if isinstance(value, dspy.streaming.StatusMessage):
                yield f"{value.message}\n"
            elif isinstance(value, dspy.Prediction):
                yield f"{value.answer}\n"

    return StreamingResponse(lines(), media_type="text/plain")
