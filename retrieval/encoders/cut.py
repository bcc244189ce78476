"""Texts that are longer than an encoder reads: what comes after is in no index and never found, or not searched for."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import BatchEncoding


def cut_rows(encoded: "BatchEncoding", most: int) -> list[int]:
    """The rows of the texts that a tokenizer has cut.

    Args:
        encoded: what it made of them.
        most: the tokens that it was to leave of each.
    """
    if encoded.encodings is None:  # one in Python does not tell: a text that just fits counts, too
        return [row for row, mask in enumerate(encoded["attention_mask"]) if sum(mask) >= most]
    return [row for row, one in enumerate(encoded.encodings) if one.overflowing]


def cut_warning(passages: str, most: int, examples: str = "") -> str:
    """The line that says what was cut, and what to do.

    Args:
        passages: how many of which.
        most: the tokens that are read of one.
        examples: some of them.

    Example:
        >>> from hoptimizer.retrieval.encoders.cut import cut_warning
        >>> print(cut_warning("2 of 9 passages", 256))  # doctest: +NORMALIZE_WHITESPACE
        2 of 9 passages are longer than the 256 tokens that the retriever reads of one; what comes after is never
        found: divide them with hop data import --chunk 200, or take a model that reads more
    """
    chunk = max(10, most * 4 // 5 // 10 * 10)  # leaves room for a title
    shown = f" ({examples})" if examples else ""
    return (
        f"{passages} are longer than the {most} tokens that the retriever reads of one{shown}; what comes after is "
        f"never found: divide them with hop data import --chunk {chunk}, or take a model that reads more"
    )


def cut_query_warning(query: str, most: int) -> str:
    """The line that says that a query was cut.

    Args:
        query: the query.
        most: the tokens that are read of one.

    Example:
        >>> from hoptimizer.retrieval.encoders.cut import cut_query_warning
        >>> print(cut_query_warning("Who was it? " * 40, 32))  # doctest: +NORMALIZE_WHITESPACE
        a query ('Who was it? Who was it? Who was it? Who...) is longer than the 32 tokens that the retriever reads of
        one; what comes after, as in others like it, is not searched for: take a model that reads more
    """
    return (
        f"a query ({query!r:.40}...) is longer than the {most} tokens that the retriever reads of one; what comes "
        "after, as in others like it, is not searched for: take a model that reads more"
    )
