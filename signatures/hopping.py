"""EfficientRAG's steps: which words of a passage help, whether the search goes on there, and what it asks next."""

from typing import Literal

import dspy

Tag = Literal["continue", "finish", "terminate"]
"""What becomes of a passage: kept and searched on from, kept as an end, or left out."""


class LabelPassage(dspy.Signature):
    """Copy the words of the passage that answer the query or a part of it, and say whether more must be looked up."""

    passage: str = dspy.InputField()
    query: str = dspy.InputField()
    useful: list[str] = dspy.OutputField(desc="names, dates or phrases exactly as the passage has them; may be empty")
    tag: Tag = dspy.OutputField(
        desc="terminate if the passage does not help; continue if it helps and what it says must be looked up "
        "further; finish if it helps and nothing is left to look up"
    )


class NextQuery(dspy.Signature):
    """Write the next search query: first the words of the query that are still open, then what is known.

    Leave out the words that what is known stands for: "Who is the mother of the builder of the mill?" and "Ada" make
    "Who is the mother of Ada".
    """

    query: str = dspy.InputField()
    known: str = dspy.InputField(desc="words found so far")
    next_query: str = dspy.OutputField(desc="words of the query, in their order, then words of what is known")
