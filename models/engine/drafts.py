"""Drafts of how texts go on, looked up in what was read and written before.

A pass that decodes one token reads all weights for it, and takes hardly longer for a few more. Answers and thoughts
repeat names, passages and the form of the demonstrations: where the last tokens stood before, what followed them then
is drafted to follow now, and the same pass tells up to where the model would have written it (speculative decoding,
Leviathan et al. 2023, https://arxiv.org/abs/2211.17192, section 2, with a lookup in place of the smaller model). What
is written does not depend on drafts: each token is chosen by the logits that it would be chosen by without them.
"""

import torch
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

# The longest draft, and how many last tokens are looked up at most.
LONGEST = 7
_LOOKED_UP = 3


def draft_length(sequences: int, most: int) -> int:
    """How many tokens are drafted for each of the sequences that are being written.

    Args:
        sequences: how many there are.
        most: the most tokens of a pass, written and drafted, that it takes hardly longer for.

    Example:
        >>> from hoptimizer.models.engine.drafts import draft_length
        >>> [draft_length(sequences, 16) for sequences in (1, 4, 8, 9)]
        [7, 3, 1, 0]
    """
    return max(0, min(LONGEST, most // sequences - 1)) if sequences else 0


def draft(tokens: list[int], length: int) -> list[int]:
    """What may follow ``tokens``: up to ``length`` tokens, none where the last one is new.

    Example:
        >>> from hoptimizer.models.engine.drafts import draft
        >>> draft([5, 8, 9, 7, 5, 8], length=2)
        [9, 7]
    """
    if length < 1:
        return []
    lookup = PromptLookupCandidateGenerator(
        num_output_tokens=length, max_matching_ngram_size=_LOOKED_UP, max_length=len(tokens) + length + 1
    )
    found, _ = lookup.get_candidates(torch.tensor([tokens]))
    return [int(token) for token in found[0, len(tokens) :]]
