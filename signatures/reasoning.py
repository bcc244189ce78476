"""Chain-of-thought steps."""

import dspy

from hoptimizer.signatures.judging import Judgement


class NextThought(dspy.Signature):
    """Say in one sentence, with names, which fact from the passages is the next one towards the answer.

    Do not repeat the facts so far.
    """

    context: list[str] = dspy.InputField(desc="passages that may help")
    question: str = dspy.InputField()
    known: str = dspy.InputField(desc="the facts so far")
    next_thought: str = dspy.OutputField(desc="one sentence with names")


# Asked without the passages: with them in sight, small models find that everything is there (docs/log.md).
class FollowUp(dspy.Signature):
    """Does the answer follow from the facts alone? If not, say what has to be looked up next."""

    question: str = dspy.InputField()
    facts: str = dspy.InputField()
    look_up: str = dspy.OutputField(
        desc="what has to be looked up next, as a question with names; empty if the answer follows"
    )
    enough: Judgement = dspy.OutputField(desc="yes if the facts give the answer to the question, else no")
    final_answer: str = dspy.OutputField(desc="the answer in as few words as possible; empty if it does not follow")


class NextSentence(dspy.Signature):
    """Continue the reasoning towards the answer with one sentence that states the next fact from the passages.

    Once the facts suffice, the sentence is "So the answer is: ..."
    """

    context: list[str] = dspy.InputField(desc="passages that may help")
    question: str = dspy.InputField()
    thoughts: str = dspy.InputField(desc="the reasoning so far")
    thought: str = dspy.OutputField(desc="the next sentence")
