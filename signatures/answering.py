"""Answering a question, from memory or from passages; at once or with a chain of thought."""

import dspy

_ANSWER = "a name, a date, a number, or yes or no"


class Answer(dspy.Signature):
    """Answer the question from what you know, in as few words as possible."""

    question: str = dspy.InputField()
    answer: str = dspy.OutputField(desc=_ANSWER)


class AnswerWithReasoning(dspy.Signature):
    """Think about the question in short sentences, one fact each, then answer it in as few words as possible."""

    question: str = dspy.InputField()
    reasoning: str = dspy.OutputField(desc="short sentences that lead to the answer")
    answer: str = dspy.OutputField(desc=_ANSWER)


class AnswerWithChain(dspy.Signature):
    """Answer the question from what you know: think in short sentences, one fact each, and end with the answer."""

    question: str = dspy.InputField()
    chain: str = dspy.OutputField(desc='short sentences; the last one is "So the answer is: ..."')


# The context comes first: prompts that share them then share a prefix, which an engine computes once.
# A model that may decline to answer does so often, and declines questions that it could answer.


class Read(dspy.Signature):
    """Answer the question from the passages, in as few words as possible.

    If they do not say, give the likeliest answer.
    """

    context: list[str] = dspy.InputField(desc="passages that may help")
    question: str = dspy.InputField()
    answer: str = dspy.OutputField(desc=_ANSWER)


class ReadWithReasoning(dspy.Signature):
    """Think about the question in short sentences, one fact from the passages each, then answer it in as few words as
    possible.

    If the passages do not say, give the likeliest answer.
    """

    context: list[str] = dspy.InputField(desc="passages that may help")
    question: str = dspy.InputField()
    reasoning: str = dspy.OutputField(desc="short sentences that lead to the answer")
    answer: str = dspy.OutputField(desc=_ANSWER)


class ReadWithChain(dspy.Signature):
    """Answer the question from the passages: think in short sentences, one fact each, and end with the answer.

    If the passages do not say, end with the likeliest answer.
    """

    context: list[str] = dspy.InputField(desc="passages that may help")
    question: str = dspy.InputField()
    chain: str = dspy.OutputField(desc='short sentences; the last one is "So the answer is: ..."')


class Recite(dspy.Signature):
    """Recite what an encyclopedia says that helps to answer the question, in whole sentences. Do not answer it yet."""

    question: str = dspy.InputField()
    recited: list[str] = dspy.OutputField(desc="one to three passages of whole sentences with names and dates")


class AnswerFromRecitation(dspy.Signature):
    """Answer the question from the recited passages, in as few words as possible.

    If they do not say, give the likeliest answer.
    """

    recited: list[str] = dspy.InputField(desc="passages recited from memory")
    question: str = dspy.InputField()
    answer: str = dspy.OutputField(desc=_ANSWER)
