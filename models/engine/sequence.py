"""Texts that are being written: how the next token is chosen, after one prompt or several, and when a text ends.

A pass that decodes one token reads all weights for it, and takes hardly longer for a few more. Answers and thoughts
repeat names, passages and the form of the demonstrations: where the last tokens stood before, what followed them then
is drafted to follow now, and the same pass tells up to where the model would have written it (speculative decoding,
Leviathan et al. 2023, https://arxiv.org/abs/2211.17192, section 2, with a lookup in place of the smaller model). What
is written does not depend on drafts: each token is chosen by the logits that it would be chosen by without them.
"""

from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase, TopKLogitsWarper, TopPLogitsWarper
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from hoptimizer.models.engine.constrained_decoding import Constraint
from hoptimizer.models.engine.request import Completion, GenerationRequest

# The last tokens of a text that stop texts are looked for in, after each token.
_STOP_TOKENS = 32
# The longest draft, and how many last tokens are looked up at most.
_LONGEST_DRAFT = 7
_LOOKED_UP = 3


class Text:
    """What is being written for one request.

    Args:
        request: what is to be written.
        constraint: holds the text to the request's grammar, where there is one.
        device: where the model is.

    Attributes:
        future: resolves with the completion.
        rows: the sequences that it ends, one for each of its prompts.
        written: its tokens so far.
        logprobs: of these tokens, where the request asks for them.
        finished: whether it is complete.
    """

    def __init__(self, request: GenerationRequest, constraint: Constraint | None, device: torch.device) -> None:
        self.request, self.constraint = request, constraint
        self.future: Future[Completion] = Future()
        self.rows = [SequenceState(self, prompt, list(prompt)) for prompt in request.prompts]
        self.written: list[int] = []
        self.logprobs: list[float] = []
        self.finished = False
        # Draws the tokens.
        self._random = torch.Generator(device).manual_seed(request.seed) if request.temperature > 0 else None
        if constraint is not None:
            self._append(constraint.opening)

    def write(
        self,
        row: "SequenceState",
        logits: Tensor,
        likeliest: int,
        ends: list[int],
        tokenizer: PreTrainedTokenizerBase,
    ) -> None:
        """Choose the next token, and append it with what follows it without a choice.

        After several prompts, it is chosen once the logits after each are known: their first ones may come in different
        passes.

        Args:
            row: the sequence that was computed.
            logits: the model's for it, of shape ``(vocabulary,)``.
            likeliest: the token whose logit is the largest.
            ends: the tokens that end a text.
            tokenizer: decodes what is written, to look for stop texts.
        """
        if len(self.rows) > 1:
            row.logits = logits
            if any(one.logits is None for one in self.rows):
                return
            logits = self._mixture()
            likeliest = int(logits.argmax())
        token = self._choose(logits, likeliest)
        if self.constraint is not None:
            self._append(self.constraint.take(token), logits)
            return
        if token in ends and not self.request.ignore_end:
            self.finished = True
            return
        self._append([token], logits)
        stop = self.request.stop
        text_ends = stop and any(text in _text(tokenizer, self.written[-_STOP_TOKENS:]) for text in stop)
        if text_ends or len(self.written) >= self.request.max_tokens:
            self.finished = True

    def _mixture(self) -> Tensor:
        """The mixture of the distributions after all prompts (REPLUG, section 3.2), as logarithms of probabilities."""
        each = torch.stack([row.logits for row in self.rows if row.logits is not None]).float().log_softmax(-1)
        for row in self.rows:
            row.logits = None
        weights = torch.tensor(self.request.weights, device=each.device)
        return torch.logsumexp(each + weights.log()[:, None], 0)

    def _choose(self, logits: Tensor, likeliest: int) -> int:
        # Masks are made only where they are needed: mostly the grammar allows the likeliest token.
        if self._random is None and (self.constraint is None or self.constraint.allows(likeliest)):
            return likeliest
        logits = logits.float()
        if self.constraint is not None:
            allowed = torch.from_numpy(self.constraint.mask()).to(logits.device)
            logits = logits.masked_fill(~allowed, float("-inf"))
        if self._random is None:
            return int(logits.argmax())
        scores = (logits / self.request.temperature)[None]
        if self.request.top_k is not None:
            scores = TopKLogitsWarper(self.request.top_k)(None, scores)
        if self.request.top_p is not None and self.request.top_p < 1:
            scores = TopPLogitsWarper(self.request.top_p)(None, scores)
        return int(torch.multinomial(torch.softmax(scores[0], -1), 1, generator=self._random))

    def _append(self, tokens: list[int], logits: Tensor | None = None) -> None:
        """Append tokens, of which the first was chosen by ``logits`` if there are any, and the others were not."""
        self.written += tokens
        for row in self.rows:
            row.tokens += tokens
        if self.request.logprobs:
            chosen = [] if logits is None else [float(logits.float().log_softmax(-1)[tokens[0]])]
            self.logprobs += chosen + [0.0] * (len(tokens) - len(chosen))
        self.finished = self.constraint is not None and self.constraint.done

    def draft(self, length: int) -> list[int]:
        """What may be written next: up to ``length`` tokens, and no more than one less than the text may have yet, for
        after the last one nothing is computed."""
        if len(self.rows) > 1:  # drafts would have to be checked after every prompt
            return []
        return look_up(self.rows[0].tokens, min(length, self.request.max_tokens - len(self.written) - 1))

    def answer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Answer the request, once the text is finished; what goes wrong with one text is its caller's alone."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self._completion(tokenizer))
        except Exception as error:  # noqa: BLE001 - handed to the caller, who raises it
            self.future.set_exception(error)

    def _completion(self, tokenizer: PreTrainedTokenizerBase) -> Completion:
        text = _text(tokenizer, self.written)
        if self.constraint is not None:
            text = self.constraint.without_cut_items(text)
        ended = self.constraint is not None or len(self.written) < self.request.max_tokens
        for stop in self.request.stop:
            if self.constraint is None and stop in text:
                text, ended = text[: text.index(stop)], True
        logprobs = None
        if self.request.logprobs:
            words = (tokenizer.decode([token]) for token in self.written)
            logprobs = tuple(zip(words, self.logprobs, strict=True))
        return Completion(
            text=text,
            finished=ended,
            cut=self.constraint is not None and self.constraint.cut,
            prompt_tokens=sum(len(row.prompt) for row in self.rows),
            cached_tokens=sum(row.reused for row in self.rows),
            tokens=len(self.written),
            logprobs=logprobs,
        )


@dataclass(eq=False)
class SequenceState:
    """A prompt and what is written after it, which waits for a slot of the batch or has one.

    Attributes:
        text: what is written, after this prompt alone or after several ones.
        prompt: its tokens.
        tokens: the prompt and what is written.
        slot: the sequence's place in the batch; -1 while it waits for one.
        begun: whether it is being computed; else it waits for a prefix that is computed for another one.
        computed: how many of the tokens have their keys and values in the slot.
        reused: how many of the tokens had been computed for an earlier prompt.
        decoding: whether its prompt is computed.
        draft: what may follow the tokens, in the pass that computes the last of them.
        logits: of the next token, while those after the text's other prompts are not known.
    """

    text: Text
    prompt: list[int]
    tokens: list[int]
    slot: int = -1
    begun: bool = False
    computed: int = 0
    reused: int = 0
    decoding: bool = False
    draft: list[int] = field(default_factory=list)
    logits: Tensor | None = None

    @property
    def reading(self) -> bool:
        """Whether its prompt is being computed."""
        return self.begun and not self.decoding

    def write(self, logits: Tensor, likeliest: np.ndarray, ends: list[int], tokenizer: PreTrainedTokenizerBase) -> None:
        """Go on with the text: by one token, and by one more for each token of the draft that was chosen.

        Args:
            logits: the model's after the last token and after each of the draft, of shape ``(1 + draft, vocabulary)``.
            likeliest: the token whose logit is the largest, of each.
            ends: the tokens that end a text.
            tokenizer: decodes what is written.
        """
        drafted, self.draft = self.draft, []
        for scores, best, guess in zip(logits, likeliest, [*drafted, None], strict=True):
            before = len(self.tokens)
            self.text.write(self, scores, int(best), ends, tokenizer)
            # Tokens that follow without a choice are computed together, as they are without drafts.
            if self.text.finished or self.tokens[before:] != [guess]:
                return
            self.computed += 1


def _text(tokenizer: PreTrainedTokenizerBase, tokens: list[int]) -> str:
    return tokenizer.decode(tokens, skip_special_tokens=True)


def draft_length(sequences: int, most: int) -> int:
    """How many tokens are drafted for each of the sequences that are being written.

    Args:
        sequences: how many there are.
        most: the most tokens of a pass, written and drafted, that it takes hardly longer for.

    Example:
        >>> from hoptimizer.models.engine.sequence import draft_length
        >>> [draft_length(sequences, 16) for sequences in (1, 4, 8, 9)]
        [7, 3, 1, 0]
    """
    return max(0, min(_LONGEST_DRAFT, most // sequences - 1)) if sequences else 0


def look_up(tokens: list[int], length: int) -> list[int]:
    """What may follow ``tokens``: up to ``length`` tokens, none where the last one is new.

    Example:
        >>> from hoptimizer.models.engine.sequence import look_up
        >>> look_up([5, 8, 9, 7, 5, 8], length=2)
        [9, 7]
    """
    if length < 1:
        return []
    lookup = PromptLookupCandidateGenerator(
        num_output_tokens=length, max_matching_ngram_size=_LOOKED_UP, max_length=len(tokens) + length + 1
    )
    found, _ = lookup.get_candidates(torch.tensor([tokens]))
    return [int(token) for token in found[0, len(tokens) :]]
