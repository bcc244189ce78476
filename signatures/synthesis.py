"""What a teacher is asked for when EfficientRAG's training data is synthesized (Zhuang et al., 2024, section 3.2)."""

import dspy


class SplitByPassages(dspy.Signature):
    """Split the question into one simpler question for each passage, which that passage alone answers."""

    passages: list[str] = dspy.InputField()
    question: str = dspy.InputField()
    answer: str = dspy.InputField(desc="the answer to the whole question")
    subquestions: list[str] = dspy.OutputField(
        desc="one for each passage, in the passages' order; names found in another passage may be used"
    )
    answers: list[str] = dspy.OutputField(desc="of each subquestion, a few words copied from its passage")


class FindDependencies(dspy.Signature):
    """Say which of the other questions must be answered before this one can be asked."""

    subquestions: list[str] = dspy.InputField(desc="numbered questions")
    subquestion: str = dspy.InputField()
    after: list[int] = dspy.OutputField(desc="numbers of those questions; empty if it can be asked at once")


class LabelWords(dspy.Signature):
    """Copy the words of the passage that answer the question, and no others."""

    passage: str = dspy.InputField()
    question: str = dspy.InputField()
    answer: str = dspy.InputField()
    useful: list[str] = dspy.OutputField(desc="names, dates or phrases as the passage has them, in its order")
