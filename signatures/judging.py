"""Judgements: whether the model knows, whether passages hold the answer, and whether an answer is right."""

from typing import Literal

import dspy

# Words rather than booleans: asked for true or false, a model of some hundred million parameters says true to
# everything, and follows the last demonstration after that.
Judgement = Literal["yes", "no"]

Useful = Literal["completely", "mostly", "partly", "hardly", "not at all"]
"""How useful an answer is, from 5 to 1 in Self-RAG's paper."""

Supporting = Literal["fully", "partially", "no"]
"""How far a passage supports an answer."""


class SelfKnowledge(dspy.Signature):
    """Judge whether you can answer the question correctly from what you know, without looking anything up."""

    question: str = dspy.InputField()
    knows: Judgement = dspy.OutputField(desc="yes if you know the answer, no if you would have to look it up")


class Relevance(dspy.Signature):
    """Judge whether the passage holds the answer to the question."""

    passage: str = dspy.InputField()
    question: str = dspy.InputField()
    relevant: Judgement = dspy.OutputField(desc="yes if the passage holds the answer, else no")


class Sufficiency(dspy.Signature):
    """Judge whether the passages together suffice to answer the question."""

    retrieved: list[str] = dspy.InputField(desc="passages")
    question: str = dspy.InputField()
    sufficient: Judgement = dspy.OutputField(desc="yes if the passages suffice, no if something is missing")


class Support(dspy.Signature):
    """Judge whether what the passage says supports the answer to the question."""

    passage: str = dspy.InputField()
    question: str = dspy.InputField()
    candidate: str = dspy.InputField(desc="what was answered, to be judged")
    supported: Supporting = dspy.OutputField(
        desc="fully if the passage says so, partially if it says a part of it, no if it does not"
    )


class Usefulness(dspy.Signature):
    """Judge how useful the answer to the question is."""

    question: str = dspy.InputField()
    candidate: str = dspy.InputField(desc="what was answered, to be judged")
    # Words again: asked for a number from 1 to 5, a small model repeats the year that was answered.
    useful: Useful = dspy.OutputField(desc="how far it answers what was asked")


class Correctness(dspy.Signature):
    """Judge whether the answer to the question means the same as one of the right answers."""

    question: str = dspy.InputField()
    right_answers: list[str] = dspy.InputField()
    answer: str = dspy.InputField(desc="what was answered, to be judged")
    # A boolean, unlike the others: no small model is asked to judge answers.
    correct: bool = dspy.OutputField(desc="true if the answer is right, however it is worded")
