"""A variant in an application of one's own, by HTTP: VARIANT=runs:/ID uvicorn serve_variant:app, with LM=MODEL on
another language model. Without code, `hop serve runs:/ID` serves it, with limits, keys and counts (docs/serving.md)."""

import os
from collections.abc import AsyncIterator

import dspy
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from hoptimizer import load_variant


class Support(dspy.Module):  # answers with the variant, and names the titles that the answer is from
    def __init__(self) -> None:
        super().__init__()
        changes = [f"lm.default={lm}"] if (lm := os.environ.get("LM")) else []
        self.variant = load_variant(os.environ["VARIANT"], changes)

    async def aforward(self, question: str) -> dspy.Prediction:
        found = await self.variant.acall(question=question)
        return dspy.Prediction(answer=found.answer, titles=[passage.title for passage in found.passages])


class Steps(dspy.streaming.StatusMessageProvider):  # tells of each call of a language model
    def lm_start_status_message(self, instance: dspy.LM, inputs: dict[str, object]) -> str:
        return f"asking {instance.model}"


app, support = FastAPI(), Support()
streaming = dspy.streamify(support, Steps(), is_async_program=True)


@app.get("/answer")
async def answer(question: str) -> dict[str, object]:
    return (await support.acall(question=question)).toDict()


@app.get("/stream")
async def stream(question: str) -> StreamingResponse:  # what is being done, line by line; the answer is the last line
    async def lines() -> AsyncIterator[str]:
        async for value in streaming(question=question):
            if isinstance(value, dspy.streaming.StatusMessage | dspy.Prediction):
                yield f"{value.answer if isinstance(value, dspy.Prediction) else value.message}\n"

    return StreamingResponse(lines(), media_type="text/plain")
