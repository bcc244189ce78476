"""Splitting a question up, as several programs do."""

from hoptimizer.programs.program import Program
from hoptimizer.programs.question_tree import SubQuestion, subquestions


async def split(program: Program, question: str, most: int) -> list[SubQuestion]:
    """Take the program's step ``decompose``, and give the different sub-questions that it says.

    Args:
        program: a program whose attribute ``decompose`` is a predictor of ``Decompose``, whose sub-questions are
            complete in themselves, or of ``DecomposeInOrder``, whose sub-questions may refer to earlier answers.
        question: the question.
        most: the most sub-questions; further ones are left out.

    Returns:
        The sub-questions, without the question itself; empty if there are none.
    """
    said = await program.step("decompose", question=question)
    (field,) = program.decompose.signature.output_fields
    return subquestions(said[field] or [], question, most, references=field == "ordered_subquestions")
