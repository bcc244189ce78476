"""Splitting a question up, and putting the answers together."""

import dspy


class Decompose(dspy.Signature):
    """Split the question into simpler questions whose answers together answer it."""

    question: str = dspy.InputField()
    subquestions: list[str] = dspy.OutputField(desc="two to five short questions, each complete in itself")


class DecomposeInOrder(dspy.Signature):
    """Split the question into simpler questions whose answers together answer it, in the order of asking them."""

    question: str = dspy.InputField()
    # A field of its own: data sets annotate these sub-questions otherwise than those that are complete in themselves.
    ordered_subquestions: list[str] = dspy.OutputField(
        desc="two to five short questions; #1 stands for the answer to the first, #2 for that to the second"
    )


class Combine(dspy.Signature):
    """Answer the question from the answers to its sub-questions, in as few words as possible."""

    findings: list[str] = dspy.InputField(desc="sub-questions, each with its answer or unknown")
    question: str = dspy.InputField()
    answer: str = dspy.OutputField(desc="a name, a date, a number, or yes or no")
