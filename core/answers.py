"""Answers to many questions at once, as plain data."""

import asyncio
from collections.abc import Sequence
from typing import Any

import dspy
from dspy.utils.exceptions import DSPyError

from hoptimizer.common.concurrency import run_async
from hoptimizer.common.errors import UserError
from hoptimizer.common.progress import Report, in_notebook
from hoptimizer.common.strict import checked
from hoptimizer.models.failures import explained


def answer_all(program: dspy.Module, questions: Sequence[str], report: Report = in_notebook) -> list[dict[str, Any]]:
    """Answer questions concurrently.

    Args:
        program: what :func:`hoptimizer.load_variant` gave, or a program within DSPy's settings.
        questions: what to ask it.
        report: told about progress.

    Returns:
        for each question its ``answer``, the ``passages`` it came from and the ``steps`` that led to it, as plain
        data.

    Raises:
        UserError: a language model can't be used, or gave no answer to one of them; or a question is no valid Unicode.

    Example:
        >>> from hoptimizer import answer_all
        >>> from hoptimizer.programs import RAG
        >>> from hoptimizer.retrieval import BM25Retriever, Corpus, Passage
        >>> corpus = Corpus([Passage("curie", "Marie Curie", "She was born in Warsaw.")])
        >>> [answer] = answer_all(RAG(BM25Retriever(corpus), k=1, reader="none"), ["Where was Marie Curie born?"])
        >>> answer["passages"]
        [{'id': 'curie', 'title': 'Marie Curie', 'text': 'She was born in Warsaw.'}]
    """

    for question in questions:
        try:
            checked(question)
        except ValueError as error:
            raise UserError(f"question: {error}") from None

    answered = 0

    async def answer(question: str) -> dspy.Prediction:
        nonlocal answered
        prediction = await program.acall(question=question)
        answered += 1
        report("answering", answered, len(questions), "")
        return prediction

    async def run() -> list[dspy.Prediction]:
        try:
            return await asyncio.gather(*map(answer, questions))
        except DSPyError as error:
            raise explained(error) from error

    return [plain_answer(prediction) for prediction in run_async(run())]


def plain_answer(prediction: dspy.Prediction) -> dict[str, Any]:
    """A program's prediction as plain data: ``answer``, ``passages`` and ``steps``."""
    return {
        "answer": prediction.answer,
        "passages": [{"id": x.id, "title": x.title, "text": x.text} for x in prediction.passages],
        "steps": [record.as_dict() for record in prediction.steps],
    }
