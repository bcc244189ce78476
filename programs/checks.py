"""What a program of the user's has and gives, made sure of."""

import inspect
from typing import TYPE_CHECKING

import dspy

from hoptimizer.common.errors import part_error
from hoptimizer.retrieval import Passage

if TYPE_CHECKING:
    from hoptimizer.programs.program import Program


async def solved(program: "Program", question: str) -> tuple[str, list[Passage]]:
    """The answer of a program and the passages that it was read from.

    Args:
        program: the program.
        question: what it is asked.

    Raises:
        PartError: its ``solve`` is not async, or gives something else.
    """
    solving: object = program.solve(question)
    if not inspect.isawaitable(solving):
        raise part_error(program, "solve", "expected an async method; write async def solve")
    match await solving:
        case (answer, list() | tuple() as passages) if all(isinstance(passage, Passage) for passage in passages):
            return answer, list(passages)
        case other:
            wanted = "expected the answer and a list of the passages that it was read from, as in return answer, []"
            raise part_error(program, "solve", f"{wanted}; got {other!r:.60}")


def predictor_of(program: "Program", step: str) -> dspy.Predict:
    """The predictor of a step.

    Args:
        program: the program.
        step: the attribute that holds it.

    Raises:
        PartError: there is none.
    """
    predictor = getattr(program, step, None)
    if isinstance(predictor, dspy.Predict):
        return predictor
    found = f"{predictor!r:.60}" if hasattr(program, step) else "no such attribute"
    raise part_error(program, step, f"expected a dspy.Predict in the attribute of a step, got {found}")
