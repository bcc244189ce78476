"""Answering a question, from memory or from passages; at once or with a chain of thought."""

import dspy


class Answer(dspy.Signature):
    """Answer the question from what you know, in as few words as possible."""

    question: str = dspy.InputField()
    answer: str = dspy.OutputField(desc="a name, a date, a number, or yes or no")


class AnswerWithChain(dspy.Signature):
    """Answer the question from what you know: think in short sentences, one fact each, and end with the answer."""

    question: str = dspy.InputField()
    chain: str = dspy.OutputField(desc='short sentences; the last one is "So the answer is: ..."')


# The context comes first: prompts that share them then share a prefix, which an engine computes once.


class Read(dspy.Signature):
    """Answer the question from the passages, in as few words as possible."""

    context: list[str] = dspy.InputField(desc="passages that may help")
    question: str = dspy.InputField()
    answer: str = dspy.OutputField(desc="a name, a date, a number, or yes or no")


class ReadWithChain(dspy.Signature):
    """Answer the question from the passages: think in short sentences, one fact each, and end with the answer."""

    context: list[str] = dspy.InputField(desc="passages that may help")
    question: str = dspy.InputField()
    chain: str = dspy.OutputField(desc='short sentences; the last one is "So the answer is: ..."')
