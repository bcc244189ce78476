"""Chain-of-thought steps."""

import dspy


class NextThought(dspy.Signature):
    """Continue the reasoning towards the answer with one sentence that states the next fact from the passages.

    Once the facts suffice, the sentence is "So the answer is: ..."
    """

    context: list[str] = dspy.InputField(desc="passages that may help")
    question: str = dspy.InputField()
    thoughts: str = dspy.InputField(desc="the reasoning so far")
    thought: str = dspy.OutputField(desc="the next sentence")
