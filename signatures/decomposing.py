"""Splitting a question up, and putting the answers together."""

import dspy


class Decompose(dspy.Signature):
    """Split the question into simpler questions whose answers together answer it."""

    question: str = dspy.InputField()
    subquestions: list[str] = dspy.OutputField(desc="two to five short questions, each complete in itself")


class Combine(dspy.Signature):
    """Answer the question from the answers to its sub-questions, in as few words as possible."""

    findings: list[str] = dspy.InputField(desc="sub-questions, each with its answer or unknown")
    question: str = dspy.InputField()
    answer: str = dspy.OutputField(desc="a name, a date, a number, or yes or no")
