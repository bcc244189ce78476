"""Asking whether the model knows an answer without passages, as several programs do."""

from typing import Any

from hoptimizer.models.small.confidence import ANSWER_PROBABILITY
from hoptimizer.programs.program import Program
from hoptimizer.programs.reader import given_answer


async def known_answer(program: Program, question: str) -> str | None:
    """Take the program's steps ``self_knowledge`` and, where the answer is known, ``closed_book``.

    A small model that judges by how likely the model's own answer is has that answer asked for first, and once.

    Args:
        program: a program whose attributes ``self_knowledge`` and ``closed_book`` are predictors.
        question: the question.

    Returns:
        The answer without passages; ``None`` where it is not known, or where the model says instead of an answer that
        it does not know. An output that can't be understood counts as no: what was looked up for nothing does little
        harm.
    """
    asked: dict[str, Any] = {"question": question}
    own = None
    if ANSWER_PROBABILITY in program.extra_inputs("self_knowledge"):
        own = await program.step("closed_book", measured=True, question=question)
        asked[ANSWER_PROBABILITY] = own.probability
    if (await program.step("self_knowledge", **asked)).knows != "yes":
        return None
    own = own or await program.step("closed_book", question=question)
    return given_answer(own.answer)
