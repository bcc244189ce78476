"""What to search with."""

import dspy


class FirstQuery(dspy.Signature):
    """Write the first search query: what has to be looked up first to answer the question."""

    question: str = dspy.InputField()
    # A field of its own: data sets annotate it otherwise than a query that follows passages.
    first_query: str = dspy.OutputField(desc="a short question about one fact, with names")


class SearchQuery(dspy.Signature):
    """Write the next search query: what the question needs and the passages do not say yet."""

    found: list[str] = dspy.InputField(desc="passages found so far")
    question: str = dspy.InputField()
    search_query: str = dspy.OutputField(desc="what has to be looked up next, as a short question with names")


class ProposeTitles(dspy.Signature):
    """Name the pages of an encyclopedia, other than this one, that help to answer the question."""

    page: str = dspy.InputField(desc="the passage that the question is asked about")
    question: str = dspy.InputField()
    number: int = dspy.InputField(desc="how many titles to name")
    titles: list[str] = dspy.OutputField(desc="titles of pages, the most helpful first")


class AnswerBySearching(dspy.Signature):
    """Answer the question from what searching shows, in as few words as possible.

    If it does not show the answer, give the likeliest one.
    """

    question: str = dspy.InputField()
    answer: str = dspy.OutputField(desc="a name, a date, a number, or yes or no")
