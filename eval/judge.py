"""Accuracy by the verdict of a language model, which can see that two different wordings say the same."""

from dataclasses import dataclass

import dspy
from dspy.utils.exceptions import DSPyError

from hoptimizer.eval.failures import failure_of
from hoptimizer.eval.metrics import Gold, exact_match
from hoptimizer.models.failures import is_outage
from hoptimizer.signatures.judging import Correctness

ACCURACY = "accuracy"
"""The metric's name."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judge's verdict on an answer.

    Attributes:
        accuracy: 1 where the answer is right, 0 where it is wrong, ``None`` where the judge failed.
        failure: why it failed, in one line, or ``None``.
    """

    accuracy: float | None
    failure: str | None = None


async def judge(lm: dspy.LM, question: Gold, answer: str | None) -> Verdict:
    """Ask whether an answer is right. Exact matches are, and empty answers are not, without a call.

    Args:
        lm: the language model that judges.
        question: the question with its right answers.
        answer: the answer to judge.

    Raises:
        UserError: the judge can't be used at all: it refuses its key, for instance.
        DSPyError: its call got no answer, so that the question is one without a result.
    """
    if not str(answer or "").strip():
        return Verdict(0.0)
    if exact_match(answer, question.answers):
        return Verdict(1.0)
    asked = {"question": question.question, "right_answers": list(question.answers), "answer": str(answer)}
    # The judge's call is not a part of the program that may be traced here.
    with dspy.context(trace=None):
        try:
            said = await dspy.Predict(Correctness).acall(lm=lm, **asked)
        except DSPyError as error:
            if is_outage(error):
                raise
            return Verdict(None, failure_of(error, "the judge", "lm.judge"))
    return Verdict(float(said.correct))
