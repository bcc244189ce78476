"""Readers, which answer a question from passages or from memory (IRCoT, section 3.2)."""

import re
from typing import Any, Literal

import dspy

from hoptimizer.programs.program import Program
from hoptimizer.retrieval import Passage
from hoptimizer.signatures import Answer, AnswerWithChain, Read, ReadWithChain

ReaderKind = Literal["direct", "cot", "none"]

_ANSWER = re.compile(r"answer is:?\s*(.*)", re.IGNORECASE | re.DOTALL)


def states_answer(sentence: str) -> bool:
    """Whether a sentence of a chain of thought states the answer ("… answer is: …")."""
    return _ANSWER.search(sentence) is not None


def answer_of(chain: str) -> str:
    """The answer that a chain of thought ends in.

    It is what follows "answer is:", or the whole text where that is missing, without a full stop at its end (IRCoT,
    section 3.2).
    """
    found = _ANSWER.search(chain)
    return (found.group(1) if found else chain).strip().removesuffix(".").strip()


def make_reader(kind: ReaderKind, *, passages: bool) -> dspy.Predict | None:
    """The predictor of a reader: ``direct``, ``cot`` (chain of thought), or ``None`` for ``none``."""
    signatures = {"direct": Read if passages else Answer, "cot": ReadWithChain if passages else AnswerWithChain}
    return None if kind == "none" else dspy.Predict(signatures[kind])


async def read(program: Program, question: str, passages: list[Passage] | None = None) -> str:
    """Take the program's ``reader`` step, and give its answer; empty if there is no reader or if it failed.

    Args:
        program: a program whose attribute ``reader`` is a predictor or ``None``.
        question: the question.
        passages: what to read, or ``None`` to answer from memory.
    """
    if program.reader is None:
        return ""
    inputs: dict[str, Any] = {"question": question}
    if passages is not None:
        inputs["context"] = passages
    prediction = await program.step("reader", **inputs)
    if "chain" in prediction:
        return answer_of(prediction.chain or "")
    return (prediction.answer or "").strip()
