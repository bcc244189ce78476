"""What a generator is asked for, and what it gives back."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hoptimizer.models.engine.constrained_decoding import Grammar


@dataclass(frozen=True)
class GenerationRequest:
    """One text to write.

    Attributes:
        tokens: the prompt, as token ids.
        max_tokens: the most tokens to write.
        grammar: what may be written; ``None`` for free text.
        temperature: 0 takes the likeliest token.
        top_p: sample among the likeliest tokens that have this probability together.
        top_k: sample among so many of the likeliest tokens.
        seed: seed of the sampling.
        stop: texts at which free text ends, which are left out.
        ignore_end: write ``max_tokens`` whatever the model says, for benchmarks.
        logprobs: whether to tell how likely each token was.
        others: further prompts of the same text: each token is chosen from the mixture of the distributions that the
            model gives after each of the prompts.
        weights: of the prompts in the mixture, that of ``tokens`` first; they sum to 1.
    """

    tokens: list[int]
    max_tokens: int
    grammar: "Grammar | None" = None
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    seed: int = 0
    stop: tuple[str, ...] = ()
    ignore_end: bool = False
    logprobs: bool = False
    others: tuple[list[int], ...] = ()
    weights: tuple[float, ...] = (1.0,)

    @property
    def prompts(self) -> list[list[int]]:
        """All of its prompts."""
        return [self.tokens, *self.others]


@dataclass(frozen=True)
class Completion:
    """A written text.

    Attributes:
        text: the text; of a JSON object, without list items that the budget cut.
        finished: whether the model ended it; else ``max_tokens`` did.
        cut: whether a field of a JSON object was closed by the budget (the object is whole all the same).
        prompt_tokens: tokens of the prompt, or of all prompts.
        cached_tokens: how many of them had been computed for an earlier prompt.
        tokens: tokens written.
        logprobs: each token's text and the logarithm of the probability that the model itself gives it, or the mixture,
            before the grammar forbids anything; 0 where there was no choice. ``None`` where the request did not ask for
            it.
    """

    text: str
    finished: bool
    cut: bool
    prompt_tokens: int
    cached_tokens: int
    tokens: int
    logprobs: tuple[tuple[str, float], ...] | None = None


@dataclass
class GenerationCounts:
    """What a generator has done so far.

    Attributes:
        passes: forward passes.
        prompt_tokens: tokens of prompts that were computed.
        cached_tokens: tokens of prompts that were found in the prefix cache.
        completion_tokens: tokens that were written.
    """

    passes: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
