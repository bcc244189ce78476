"""Chain-of-thought steps."""

import dspy

from hoptimizer.signatures.judging import Judgement


class NextThought(dspy.Signature):
    """Take one step towards the answer: state the next fact that is needed, in one sentence with names.

    Take it from the passages, and do not repeat the reasoning so far. If the passages do not hold it, say which fact is
    missing.
    """

    context: list[str] = dspy.InputField(desc="passages that may help")
    question: str = dspy.InputField()
    thoughts: str = dspy.InputField(desc="the reasoning so far")
    next_thought: str = dspy.OutputField(desc="the next fact, or the fact to look up next")
    enough: Judgement = dspy.OutputField(desc="yes if the question can be answered now, else no")
    final_answer: str = dspy.OutputField(desc="the answer in as few words as possible; empty if it is not known yet")


class NextSentence(dspy.Signature):
    """Continue the reasoning towards the answer with one sentence that states the next fact from the passages.

    Once the facts suffice, the sentence is "So the answer is: ..."
    """

    context: list[str] = dspy.InputField(desc="passages that may help")
    question: str = dspy.InputField()
    thoughts: str = dspy.InputField(desc="the reasoning so far")
    thought: str = dspy.OutputField(desc="the next sentence")
