"""One text that is being written: how its next token is chosen, and when it ends."""

from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase, TopKLogitsWarper, TopPLogitsWarper

from hoptimizer.models.engine.constrained_decoding import Constraint
from hoptimizer.models.engine.request import Completion, GenerationRequest

# The last tokens of a text that stop texts are looked for in, after each token.
_STOP_TOKENS = 32


@dataclass(eq=False)
class SequenceState:
    """A sequence that waits for a slot of the batch or has one.

    Attributes:
        request: what is to be written.
        future: resolves with the completion.
        constraint: holds the text to the request's grammar, where there is one.
        slot: the sequence's place in the batch; -1 while it waits.
        tokens: the prompt and what is written.
        computed: how many of the tokens have their keys and values in the slot.
        reused: how many of the tokens had been computed for an earlier prompt.
        logprobs: of the tokens that are written, where the request asks for them.
        random: draws the tokens, where the request's temperature is above 0.
        decoding: whether its prompt is computed.
        finished: whether the text is complete.
    """

    request: GenerationRequest
    future: "Future[Completion]"
    constraint: Constraint | None
    slot: int = -1
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    reused: int = 0
    logprobs: list[float] = field(default_factory=list)
    random: torch.Generator | None = None
    decoding: bool = False
    finished: bool = False

    @property
    def written(self) -> list[int]:
        """The tokens after the prompt."""
        return self.tokens[len(self.request.tokens) :]

    def start(self, device: torch.device) -> None:
        """Begin the text with the prompt, and with what a grammar leaves no choice about."""
        self.tokens = list(self.request.tokens)
        if self.request.temperature > 0:
            self.random = torch.Generator(device).manual_seed(self.request.seed)
        if self.constraint is not None:
            self._append(self.constraint.opening)

    def write(self, logits: Tensor, likeliest: int, ends: list[int], tokenizer: PreTrainedTokenizerBase) -> None:
        """Choose the next token, and append it with what follows it without a choice.

        Args:
            logits: the model's, of shape ``(vocabulary,)``.
            likeliest: the token whose logit is the largest.
            ends: the tokens that end a text.
            tokenizer: decodes what is written, to look for stop texts.
        """
        if self.request.reply:
            self._append([self.request.reply[len(self.written)]], logits)
            self.finished = len(self.written) == len(self.request.reply)
            return
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

    def _choose(self, logits: Tensor, likeliest: int) -> int:
        # Masks are made only where they are needed: mostly the grammar allows the likeliest token.
        if self.random is None and (self.constraint is None or self.constraint.allows(likeliest)):
            return likeliest
        logits = logits.float()
        if self.constraint is not None:
            allowed = torch.from_numpy(self.constraint.mask()).to(logits.device)
            logits = logits.masked_fill(~allowed, float("-inf"))
        if self.random is None:
            return int(logits.argmax())
        scores = (logits / self.request.temperature)[None]
        if self.request.top_k is not None:
            scores = TopKLogitsWarper(self.request.top_k)(None, scores)
        if self.request.top_p is not None and self.request.top_p < 1:
            scores = TopPLogitsWarper(self.request.top_p)(None, scores)
        return int(torch.multinomial(torch.softmax(scores[0], -1), 1, generator=self.random))

    def _append(self, tokens: list[int], logits: Tensor | None = None) -> None:
        """Append tokens, of which the first was chosen by ``logits`` if there are any, and the others were not."""
        self.tokens += tokens
        if self.request.logprobs:
            chosen = [] if logits is None else [float(logits.float().log_softmax(-1)[tokens[0]])]
            self.logprobs += chosen + [0.0] * (len(tokens) - len(chosen))
        self.finished = self.constraint is not None and self.constraint.done

    def answer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Answer the request, once the text is finished; what goes wrong with one text is its caller's alone."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self._completion(tokenizer))
        except Exception as error:  # noqa: BLE001 - handed to the caller, who raises it
            self.future.set_exception(error)

    def _completion(self, tokenizer: PreTrainedTokenizerBase) -> Completion:
        written = self.written
        text = _text(tokenizer, written)
        if self.constraint is not None:
            text = self.constraint.without_cut_items(text)
        ended = self.constraint is not None or len(written) < self.request.max_tokens
        for stop in self.request.stop:
            if self.constraint is None and stop in text:
                text, ended = text[: text.index(stop)], True
        logprobs = None
        if self.request.logprobs:
            logprobs = tuple(zip(tokenizer.batch_decode([[token] for token in written]), self.logprobs, strict=True))
        return Completion(
            text=text,
            finished=ended,
            cut=self.constraint is not None and self.constraint.cut,
            prompt_tokens=len(self.request.tokens),
            cached_tokens=self.reused,
            tokens=len(written),
            logprobs=logprobs,
        )


def _text(tokenizer: PreTrainedTokenizerBase, tokens: list[int]) -> str:
    return tokenizer.decode(tokens, skip_special_tokens=True)
