"""Splitting a question up, and putting the answers together."""

from typing import Literal

import dspy

Task = Literal["search", "combine", "end"]
"""Who answers a sub-question: a search, or what is known already; or that there is none."""


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


class AskFollowUp(dspy.Signature):
    """Ask the next follow-up question, a simpler one that must be answered before the question can be."""

    question: str = dspy.InputField()
    answered: list[str] = dspy.InputField(desc="the follow-up questions so far, each with its answer")
    # An empty question is the only sign that no more is needed. Asked to decide that in a field of its own, small
    # models want to know nothing, and larger ones take it to be about the question that they have just written.
    next_question: str = dspy.OutputField(
        desc="the next follow-up question, short and with names; "
        "empty if the answers so far give the answer to the question"
    )


class NextTask(dspy.Signature):
    """Ask the next simpler question on the way to the answer, and say how it is to be answered."""

    question: str = dspy.InputField()
    answered: list[str] = dspy.InputField(desc="the simpler questions so far, each with its answer")
    task_question: str = dspy.OutputField(desc="the next question, short and with names; empty at the end")
    task: Task = dspy.OutputField(
        desc="search if it must be looked up, combine if it follows from the answers so far, "
        "end if the last answer is the answer to the question"
    )


class ReadWithFindings(dspy.Signature):
    """Answer the question from the passages and the answers to earlier questions, in as few words as possible.

    If they do not say, give the likeliest answer.
    """

    context: list[str] = dspy.InputField(desc="passages that may help")
    findings: list[str] = dspy.InputField(desc="earlier questions, each with its answer")
    question: str = dspy.InputField()
    answer: str = dspy.OutputField(desc="a name, a date, a number, or yes or no")


class AnswerWithFindings(dspy.Signature):
    """Answer the question from what you know and from the answers to earlier questions, in as few words as possible."""

    findings: list[str] = dspy.InputField(desc="earlier questions, each with its answer")
    question: str = dspy.InputField()
    answer: str = dspy.OutputField(desc="a name, a date, a number, or yes or no")
