"""What a teacher is asked for when questions about passages are written: alone, and in chains that are joined."""

import dspy

_STANDS_ALONE = "names what it is about, and is understood without the passage"
_COPIED = "a name, a date or a number of a few words, copied from the passage"


class WriteQuestion(dspy.Signature):
    """Write a short question that the passage answers with a name, a date or a number."""

    passage: str = dspy.InputField()
    question: str = dspy.OutputField(desc=_STANDS_ALONE)
    answer: str = dspy.OutputField(desc=_COPIED)


class WriteQuestionFor(dspy.Signature):
    """Write a short question to which the passage gives this answer. Do not use the answer's words in it."""

    passage: str = dspy.InputField()
    answer: str = dspy.InputField()
    question: str = dspy.OutputField(desc=_STANDS_ALONE)


class WriteQuestionAbout(dspy.Signature):
    """Write a short question about the subject, with its name in it, that the passage answers with another name, a date
    or a number."""

    passage: str = dspy.InputField()
    subject: str = dspy.InputField()
    question: str = dspy.OutputField(desc="has the name of the subject")
    answer: str = dspy.OutputField(desc=_COPIED)


class JoinQuestions(dspy.Signature):
    """Write one question out of two: take the second question, and put a description in the place of the name, made of
    the words of the first question, which the name answers."""

    first_question: str = dspy.InputField()
    name: str = dspy.InputField(desc="the answer to the first question; not to be used")
    second_question: str = dspy.InputField()
    question: str = dspy.OutputField(desc="the second question without the name")
