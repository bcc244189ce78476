"""Looking a sub-question up, as several programs do."""

from hoptimizer.programs.collection import each_once
from hoptimizer.programs.program import Program
from hoptimizer.programs.reader import read
from hoptimizer.retrieval import Passage


async def look_up(program: Program, question: str, passages: list[Passage], most: int) -> tuple[str, list[Passage]]:
    """Retrieve for a sub-question, and take the program's step ``reader`` on what that finds.

    Args:
        program: a program whose attribute ``reader`` is a predictor.
        question: the sub-question.
        passages: what was found so far, fewer than ``most``.
        most: the most passages that are found in all.

    Returns:
        The answer, and the passages that were found so far with those that this finds.
    """
    found = await program.retrieve(question, k=min(program.k, most - len(passages)))
    return await read(program, question, found), each_once([*passages, *found])
