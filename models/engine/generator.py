"""Batched text generation in one process: requests join and leave the batch between two forward passes."""

import atexit
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import AutoTokenizer, TopKLogitsWarper, TopPLogitsWarper

from hoptimizer.models.engine import attention
from hoptimizer.models.engine.constrained_decoding import Constraint, GrammarCompiler
from hoptimizer.models.engine.loading import device_and_dtype, end_tokens, load, memory_share
from hoptimizer.models.engine.prefix_cache import PAGE, PrefixCache
from hoptimizer.models.engine.request import Completion, GenerationCounts, GenerationRequest

# Sequences in one batch.
SLOTS = 32
# Tokens of one forward pass: enough to keep the matrix products at full speed, few enough to fit the caches.
STEP_TOKENS = 1024
# Tokens of a sequence, for the reckoning of how many fit the memory.
TYPICAL_TOKENS = 2048
PREFIX_BYTES = 2 << 30

Chunk = attention.PrefillChunk | attention.DecodeToken


@dataclass(eq=False)
class _Sequence:
    """A sequence that waits for a slot or has one."""

    request: GenerationRequest
    future: "Future[Completion]"
    constraint: Constraint | None
    slot: int = -1
    tokens: list[int] = field(default_factory=list)  # the prompt and what is written
    computed: int = 0  # how many of them have their keys and values in the slot
    reused: int = 0
    logprobs: list[float] = field(default_factory=list)  # of what is written
    random: torch.Generator | None = None
    decoding: bool = False  # past its prompt
    finished: bool = False

    @property
    def written(self) -> list[int]:
        return self.tokens[len(self.request.tokens) :]


def _released() -> RuntimeError:
    return RuntimeError("the model was taken out of memory while it was asked")


class Generator:
    """A causal language model that writes texts for many callers at once.

    Greedy texts do not depend on what else is in the batch, nor on how much of a prompt was reused: every operation
    gives a token the same bits either way (on CPU; GPU kernels promise no such thing).

    Args:
        model: folder or hub id.
        dtype: the precision of weights and states; by default bf16 where the hardware multiplies it, else fp32.
        slots: sequences in one batch; by default as many as a share of the memory holds, up to 32.
        prefix_bytes: memory for the states of earlier prompts; 0 reuses nothing.

    Raises:
        UserError: the model can't be loaded, or is of an architecture that does not use transformers' attention
            interface.
    """

    def __init__(
        self,
        model: str,
        dtype: torch.dtype | None = None,
        slots: int | None = None,
        prefix_bytes: int | None = None,
    ) -> None:
        self.device, best = device_and_dtype()
        self._model = load(model, self.device, dtype or best)
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        config = self._model.config.get_text_config()
        self.context_length: int = config.max_position_embeddings
        self._ends = end_tokens(self._model, self.tokenizer)
        self.compiler = GrammarCompiler(self.tokenizer, config.vocab_size, self._ends)
        heads = config.num_key_value_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        dtype = self._model.dtype
        if slots is None:
            each = config.num_hidden_layers * 2 * heads * dim * dtype.itemsize * TYPICAL_TOKENS
            slots = max(1, min(SLOTS, memory_share(self.device) // each))
        self._states = attention.KeyValues(config.num_hidden_layers, heads, dim, slots, dtype, self.device)
        most = min(PREFIX_BYTES, memory_share(self.device)) if prefix_bytes is None else prefix_bytes
        self._prefixes = PrefixCache(most)
        self.counts = GenerationCounts()
        self._free = list(range(slots))
        self._rows: list[_Sequence] = []
        self._shared: tuple[list[_Sequence], int] = ([], 0)
        self._waiting: deque[_Sequence] = deque()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, request: GenerationRequest) -> "Future[Completion]":
        """Hand in a request; cancelling the future takes it out of the batch. After :meth:`close`, the future fails.

        Raises:
            hoptimizer.models.engine.constrained_decoding.GrammarError: no answer of the grammar is short enough.
        """
        # Here and not between two passes: the caller hears of a schema that can't be written, and waits for nobody.
        constraint = Constraint(self.compiler, request.grammar, request.max_tokens) if request.grammar else None
        future: Future[Completion] = Future()
        with self._wake:
            if self._closed:
                future.set_exception(_released())
                return future
            self._waiting.append(_Sequence(request, future, constraint))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="generator", daemon=True)
                self._thread.start()
                atexit.register(self.close)
            self._wake.notify()
        return future

    def close(self) -> None:
        """Stop after the pass that is under way; requests that are not done fail. At exit, a thread inside torch would
        bring the process down."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
        atexit.unregister(self.close)  # or the weights would stay in memory until then
        for row in [*self._rows, *self._waiting]:
            if row.future.set_running_or_notify_cancel():
                row.future.set_exception(_released())

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (self._waiting or self._rows or self._closed):
                    self._wake.wait()
                if self._closed:
                    return
            try:
                with torch.inference_mode():
                    self._step()
            except BaseException as error:  # noqa: BLE001 - handed to the callers, who raise it
                for row in list(self._rows):
                    self._leave(row)
                    if row.future.set_running_or_notify_cancel():
                        row.future.set_exception(error)

    def _step(self) -> None:
        for row in [row for row in self._rows if row.future.cancelled()]:
            self._leave(row)
        self._admit()
        self._retire()  # a budget too small for any choice
        self._compact()
        chunks, rows = self._schedule()
        if not rows:
            return
        self._states.reserve(max(row.computed + chunk.count for row, chunk in zip(rows, chunks, strict=True)))
        logits, ready = self._forward(rows, chunks)
        # numpy finds the largest of 50,000 in a tenth of torch's time.
        likeliest = logits.float().cpu().numpy().argmax(-1)
        for row, scores, best in zip(ready, logits, likeliest, strict=True):
            self._write(row, scores, int(best))
        self._retire()

    def _retire(self) -> None:
        for row in [row for row in self._rows if row.finished]:
            self._leave(row)
            self._deliver(row)
        if not self._rows:
            self._states.release()

    def _admit(self) -> None:
        """Give the free slots to those who wait, in their order."""
        held: list[_Sequence] = []
        try:
            while self._free:
                with self._wake:
                    if not self._waiting:
                        break
                    row = self._waiting.popleft()
                if not row.future.cancelled() and not self._enter(row):
                    held.append(row)
        finally:
            with self._wake:
                self._waiting.extendleft(reversed(held))

    def _enter(self, row: _Sequence) -> bool:
        """Take a sequence into the batch; ``False`` if it had better wait for a prefix that is being computed."""
        prompt = row.request.tokens
        # The last token is computed in any case: its output is where the decoding starts.
        known = self._prefixes.match(prompt[:-1])
        row.reused = row.computed = len(known) * PAGE
        more = prompt[: row.computed + PAGE]
        whole = self._prefixes.capacity and len(more) == row.computed + PAGE
        if whole and any(not other.decoding and other.request.tokens[: len(more)] == more for other in self._rows):
            return False
        row.slot = self._free.pop(0)
        self._rows.append(row)
        self._states.reserve(row.computed)
        for place, page in enumerate(known):
            self._states.load(row.slot, place * PAGE, page)
        self.counts.cached_tokens += row.reused
        row.tokens = list(prompt)
        if row.request.temperature > 0:
            row.random = torch.Generator(self.device).manual_seed(row.request.seed)
        if row.constraint is not None:
            self._append(row, row.constraint.opening)
        return True

    def _leave(self, row: _Sequence) -> None:
        self._rows.remove(row)
        self._free.append(row.slot)
        self._free.sort()

    def _compact(self) -> None:
        """Move the last sequences into free slots before them, since a pass computes all slots up to the last."""
        while self._rows and self._free and self._free[0] < max(row.slot for row in self._rows):
            last = max(self._rows, key=lambda row: row.slot)
            target = self._free.pop(0)
            self._states.move(last.slot, target, last.computed)
            self._free.append(last.slot)
            self._free.sort()
            last.slot = target

    def _schedule(self) -> tuple[list[Chunk], list[_Sequence]]:
        """What the next pass computes: the last token of all that are being written, and prompts up to the limit."""
        chunks, rows = [], []
        budget = STEP_TOKENS
        for row in sorted(self._rows, key=lambda row: not row.decoding):
            count = len(row.tokens) - row.computed
            if not row.decoding:
                count = min(count, budget)
            if count > 0:
                budget -= count
                is_decoded = row.decoding and count == 1
                chunks.append(
                    attention.DecodeToken(row.slot, row.computed)
                    if is_decoded
                    else attention.PrefillChunk(row.slot, row.computed, count)
                )
                rows.append(row)
        return chunks, rows

    def _forward(self, rows: list[_Sequence], chunks: list[Chunk]) -> tuple[Tensor, list[_Sequence]]:
        """Compute the chunks; the logits after each sequence that is complete so far, and these sequences."""
        tokens: list[int] = []
        positions: list[int] = []
        last: list[int] = []
        ready: list[_Sequence] = []
        for row, chunk in zip(rows, chunks, strict=True):
            stop = chunk.start + chunk.count
            tokens += row.tokens[chunk.start : stop]
            positions += range(chunk.start, stop)
            if stop == len(row.tokens):
                ready.append(row)
                last.append(len(tokens) - 1)
        padding = max(0, attention.MIN_ROWS - len(tokens))
        metadata = attention.AttentionMetadata(self._states, chunks, self._common([r for r in rows if r.decoding]))
        keep = last + last[-1:] * (attention.MIN_ROWS - len(last)) if last else [0]
        out = self._model(
            input_ids=torch.tensor([tokens + [0] * padding], device=self.device),
            position_ids=torch.tensor([positions + [0] * padding], device=self.device),
            use_cache=False,
            logits_to_keep=torch.tensor(keep, device=self.device),
            metadata=metadata,
        )
        self.counts.passes += 1
        for row, chunk in zip(rows, chunks, strict=True):
            row.computed += chunk.count
            if not row.decoding:
                self.counts.prompt_tokens += chunk.count
                self._remember(row)
                row.decoding = row.computed == len(row.tokens)
        return out.logits[0, : len(last)], ready

    def _remember(self, row: _Sequence) -> None:
        if self._prefixes.capacity:
            stop = min(row.computed, len(row.request.tokens))
            self._prefixes.insert(row.request.tokens, stop, lambda a, b: self._states.read(row.slot, a, b))

    def _common(self, rows: list[_Sequence]) -> int:
        """How many first tokens all of ``rows`` share."""
        if rows != self._shared[0]:
            # What the first and the last of them in order share, all between share too.
            ends = [pick(row.request.tokens for row in rows) for pick in (min, max)] if len(rows) > 1 else [[], []]
            pairs = zip(*ends, strict=False)
            self._shared = (rows, next((i for i, (a, b) in enumerate(pairs) if a != b), min(map(len, ends))))
        return self._shared[1]

    def _write(self, row: _Sequence, logits: Tensor, likeliest: int) -> None:
        """Choose the next token of a sequence, and append it with what follows it without a choice."""
        token = self._choose(row, logits, likeliest)
        if row.constraint is not None:
            self._append(row, row.constraint.take(token), logits)
            return
        if token in self._ends and not row.request.ignore_end:
            row.finished = True
            return
        self._append(row, [token], logits)
        text_ends = row.request.stop and any(s in self._decode(row.written[-32:]) for s in row.request.stop)
        if text_ends or len(row.written) >= row.request.max_tokens:
            row.finished = True

    def _choose(self, row: _Sequence, logits: Tensor, likeliest: int) -> int:
        if row.random is None and (row.constraint is None or row.constraint.allows(likeliest)):
            return likeliest
        logits = logits.float()
        if row.constraint is not None:
            allowed = torch.from_numpy(row.constraint.mask()).to(self.device)
            logits = logits.masked_fill(~allowed, float("-inf"))
        if row.random is None:
            return int(logits.argmax())
        scores = (logits / row.request.temperature)[None]
        if row.request.top_k is not None:
            scores = TopKLogitsWarper(row.request.top_k)(None, scores)
        if row.request.top_p is not None and row.request.top_p < 1:
            scores = TopPLogitsWarper(row.request.top_p)(None, scores)
        return int(torch.multinomial(torch.softmax(scores[0], -1), 1, generator=row.random))

    def _append(self, row: _Sequence, tokens: list[int], logits: Tensor | None = None) -> None:
        """Append tokens, of which the first was chosen by ``logits`` if there are any, and the others were not."""
        row.tokens += tokens
        if row.request.logprobs:
            chosen = [] if logits is None else [float(logits.float().log_softmax(-1)[tokens[0]])]
            row.logprobs += chosen + [0.0] * (len(tokens) - len(chosen))
        row.finished = row.constraint is not None and row.constraint.done

    def _decode(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=True)

    def _deliver(self, row: _Sequence) -> None:
        text = self._decode(row.written)
        ended = row.constraint is not None or len(row.written) < row.request.max_tokens
        for stop in row.request.stop:
            if row.constraint is None and stop in text:
                text, ended = text[: text.index(stop)], True
        self.counts.completion_tokens += len(row.written)
        completion = Completion(
            text=text,
            finished=ended,
            cut=row.constraint is not None and row.constraint.cut,
            prompt_tokens=len(row.request.tokens),
            cached_tokens=row.reused,
            tokens=len(row.written),
            logprobs=self._told(row) if row.request.logprobs else None,
        )
        if row.future.set_running_or_notify_cancel():
            row.future.set_result(completion)

    def _told(self, row: _Sequence) -> tuple[tuple[str, float], ...]:
        return tuple(zip(self.tokenizer.batch_decode([[t] for t in row.written]), row.logprobs, strict=True))
