"""Where the tokens of passages are among those of all passages."""

import torch


def token_rows(starts: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The rows of all tokens of some passages, passage by passage.

    Args:
        starts: the row of each passage's first token, int64.
        lengths: each one's number of tokens, int64; there is at least one passage.

    Example:
        >>> import torch
        >>> from hoptimizer.retrieval.colbert.token_rows import token_rows
        >>> token_rows(torch.tensor([7, 0]), torch.tensor([3, 2])).tolist()
        [7, 8, 9, 0, 1]
    """
    ends = lengths.cumsum(0)
    return torch.arange(int(ends[-1])) + (starts - ends + lengths).repeat_interleave(lengths)
