"""What a teacher is asked for when questions about passages are written: alone, and in chains that are joined."""

import dspy

_STANDS_ALONE = "names what it is about, and is understood without the passage"


class FindAnswers(dspy.Signature):
    """List names, dates, places and numbers in the passage that a question can ask for."""

    passage: str = dspy.InputField()
    answers: list[str] = dspy.OutputField(desc="up to five, each a few words copied from the passage")


class WriteQuestionFor(dspy.Signature):
    """Write a short question to which the passage gives this answer. Do not use the answer's words in it."""

    passage: str = dspy.InputField()
    answer: str = dspy.InputField()
    question: str = dspy.OutputField(desc=_STANDS_ALONE)


class WriteQuestionAbout(dspy.Signature):
    """Write a short question about the subject, with its name in it, to which the passage gives this answer. Do not use
    the answer's words in it."""

    passage: str = dspy.InputField()
    subject: str = dspy.InputField()
    answer: str = dspy.InputField()
    question: str = dspy.OutputField(desc="has the name of the subject")


class DescribeAnswer(dspy.Signature):
    """Turn a question into a phrase that stands for its answer, such as "Who directed Gaslight?" into "the director of
    Gaslight"."""

    question: str = dspy.InputField()
    phrase: str = dspy.OutputField(desc="begins with the; does not name the answer")
