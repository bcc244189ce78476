"""Batched text generation in one process: requests join and leave the batch between two forward passes."""

import atexit
import threading
from collections import deque
from concurrent.futures import Future

import torch
from torch import Tensor

from hoptimizer.common.errors import UserError
from hoptimizer.common.memory import trim_heap
from hoptimizer.models.engine.attention import AttentionMetadata, PrefillChunk
from hoptimizer.models.engine.constrained_decoding import Constraint, GrammarCompiler
from hoptimizer.models.engine.decode_attention import DecodeChunk, min_rows
from hoptimizer.models.engine.key_values import KeyValues
from hoptimizer.models.engine.loading import BatchLimits, device_and_dtype, end_tokens, load, memory_share
from hoptimizer.models.engine.prefix_cache import PAGE, PrefixCache, common_tokens
from hoptimizer.models.engine.request import Completion, GenerationCounts, GenerationRequest
from hoptimizer.models.engine.sequence import SequenceState, Text, draft_length
from hoptimizer.models.engine.threads import Threads

# Tokens of a typical sequence, by which is reckoned how many sequences fit the memory.
TYPICAL_TOKENS = 2048
# Seconds without a call after which no other is expected soon.
_PAUSE = 1.0
# The most memory for the states of earlier prompts.
PREFIX_BYTES = 512 << 20

Chunk = PrefillChunk | DecodeChunk


def _released() -> RuntimeError:
    return RuntimeError("the model was taken out of memory while it was asked")


class Generator:
    """A causal language model that writes texts for many callers at once.

    Greedy texts do not depend on what else is in the batch, nor on how much of a prompt was reused: every operation
    gives a token the same bits either way. This holds in bf16 on CPUs; products of attention in fp32, and GPUs, promise
    no such thing.

    Args:
        model: folder or hub id.
        dtype: the precision of weights and states; by default bf16 where the hardware multiplies it, else fp32.
        slots: sequences in one batch; by default as many as a share of the memory holds, up to 32, or 64 on a GPU.
        prefix_bytes: memory for the states of earlier prompts; 0 reuses nothing.

    Attributes:
        limits: how much is computed at once, from the next pass on.

    Raises:
        UserError: the model can't be loaded, or is of an architecture that does not use transformers' attention
            interface.
    """

    def __init__(
        self, model: str, dtype: torch.dtype | None = None, slots: int | None = None, prefix_bytes: int | None = None
    ) -> None:
        self.device, best = device_and_dtype()
        self._model, self.tokenizer = load(model, self.device, dtype or best)
        self.limits = BatchLimits.of(self.device)
        config = self._model.config.get_text_config()
        self.context_length: int = config.max_position_embeddings
        self._ends = end_tokens(self._model, self.tokenizer)
        self.compiler = GrammarCompiler(self.tokenizer, config.vocab_size, self._ends)
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        dtype, memory = self._model.dtype, memory_share(self.device)
        if slots is None:
            each = config.num_hidden_layers * 2 * heads * dim * dtype.itemsize * TYPICAL_TOKENS
            slots = max(1, min(self.limits.sequences, memory // each))
        self._states = KeyValues(config.num_hidden_layers, heads, dim, slots, dtype, self.device)
        self._prefixes = PrefixCache(min(PREFIX_BYTES, memory) if prefix_bytes is None else prefix_bytes)
        self._threads = Threads()
        self.counts = GenerationCounts()
        self._free = list(range(slots))
        self._rows: list[SequenceState] = []
        self._shared: tuple[list[SequenceState], int] = ([], 0)
        self._waiting: deque[Text] = deque()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = self._forgetting = False

    def submit(self, request: GenerationRequest) -> "Future[Completion]":
        """Hand in a request; cancelling the future takes it out of the batch. After :meth:`close`, the future fails.

        Raises:
            hoptimizer.models.engine.constrained_decoding.GrammarError: no answer of the grammar is short enough.
            UserError: the batch has fewer places than the request has prompts.
        """
        if (count := len(request.prompts)) > (slots := self._states.slots):
            raise UserError(f"{count} prompts are read together, the memory here holds {slots}: lower retriever.k")
        # Made here rather than between two passes: the caller hears of a schema that can't be written, and no other
        # request waits for it.
        constraint = Constraint(self.compiler, request.grammar, request.max_tokens) if request.grammar else None
        text = Text(request, constraint, self.device)
        with self._wake:
            if self._closed:
                text.future.set_exception(_released())
                return text.future
            self._waiting.append(text)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="generator", daemon=True)
                self._thread.start()
                atexit.register(self.close)
            self._wake.notify()
        return text.future

    def forget(self) -> None:
        """Give back the memory of earlier prompts' states, as soon as no sequence is under way."""
        with self._wake:
            self._forgetting = True
            self._wake.notify()

    def close(self) -> None:
        """Stop after the pass that is under way; requests that are not done fail.

        At exit too, for a thread in torch would bring the process down, and where garbage is collected, by any thread.
        """
        with self._wake:
            self._closed = True
            self._wake.notify()
        if (thread := self._thread) is not None and thread is not threading.current_thread():
            thread.join()
        atexit.unregister(self.close)  # or the weights would stay in memory until the exit
        for text in [*self._texts(), *self._waiting]:
            if text.future.set_running_or_notify_cancel():
                text.future.set_exception(_released())
        self._states.release()
        self._prefixes.clear()
        trim_heap()

    def _run(self) -> None:
        while True:
            with self._wake:
                idle = False
                while not (self._waiting or self._rows or self._closed):
                    if self._forgetting:
                        self._forgetting = idle = False
                        self._prefixes.clear()
                    if not self._wake.wait(None if idle else _PAUSE):
                        idle = True
                        trim_heap()  # whatever comes next may need the memory that the last batch took
                if self._closed:
                    return
            try:
                with torch.inference_mode():
                    self._step()
            except BaseException as error:  # noqa: BLE001 - handed to the callers, who raise it
                for text in self._texts():
                    self._leave(text)
                    if text.future.set_running_or_notify_cancel():
                        text.future.set_exception(error)

    def _step(self) -> None:
        for text in self._texts():
            if text.future.cancelled():
                self._leave(text)
        self._admit()
        self._retire()  # those whose budget was too small for any choice
        self._compact()
        self._begin()
        chunks, rows = self._schedule()
        if not rows:
            return
        self._states.reserve(max(row.computed + chunk.count for row, chunk in zip(rows, chunks, strict=True)))
        logits, ready = self._forward(rows, chunks)
        # On a CPU, numpy finds the largest of 50,000 in a tenth of torch's time; from a GPU, only its place is copied.
        likeliest = logits.float().numpy().argmax(-1) if logits.is_cpu else logits.argmax(-1).cpu().numpy()
        first = 0
        for row in ready:
            part = slice(first, first := first + 1 + len(row.draft))
            row.write(logits[part], likeliest[part], self._ends, self.tokenizer)
        self._retire()

    def _texts(self) -> list[Text]:
        """The texts of the batch."""
        return list(dict.fromkeys(row.text for row in self._rows))

    def _retire(self) -> None:
        for text in self._texts():
            if text.finished:
                self._leave(text)
                self.counts.completion_tokens += len(text.written)
                text.answer(self.tokenizer)
        self._states.release(max((row.computed for row in self._rows), default=0))

    def _admit(self) -> None:
        """Give the free slots to the texts that wait, in their order: one to each prompt of a text, or none of them."""
        while True:
            with self._wake:
                if not self._waiting or len(self._waiting[0].rows) > len(self._free):
                    return
                text = self._waiting.popleft()
            if not text.future.cancelled():
                for row in text.rows:
                    row.slot = self._free.pop(0)
                self._rows += text.rows

    def _begin(self) -> None:
        """Begin the new sequences with what is known of their prompts, but for those whose next page is being computed
        for another one."""
        for row in [row for row in self._rows if not row.begun]:
            # The last token is computed in any case: its output is where the decoding starts.
            known = self._prefixes.match(row.prompt[:-1])
            start = len(known) * PAGE
            more = row.prompt[: start + PAGE]
            whole = self._prefixes.capacity and len(more) == start + PAGE
            if whole and any(other.reading and other.prompt[: len(more)] == more for other in self._rows):
                continue
            row.begun, row.reused, row.computed = True, start, start
            self._states.reserve(start)
            for place, page in enumerate(known):
                self._states.load(row.slot, place * PAGE, page)
            self.counts.cached_tokens += start

    def _leave(self, text: Text) -> None:
        for row in text.rows:
            self._rows.remove(row)
            self._free.append(row.slot)
        self._free.sort()

    def _compact(self) -> None:
        """Move the last sequences into free slots before them, since a pass computes all slots up to the last used
        one."""
        while self._rows and self._free and self._free[0] < max(row.slot for row in self._rows):
            last = max(self._rows, key=lambda row: row.slot)
            target = self._free.pop(0)
            self._states.move(last.slot, target, last.computed)
            self._free.append(last.slot)
            self._free.sort()
            last.slot = target

    def _schedule(self) -> tuple[list[Chunk], list[SequenceState]]:
        """What the next pass computes: the last token of each text that is being written, with a draft of what follows
        it, and prompts up to a limit."""
        chosen: list[tuple[Chunk, SequenceState]] = []
        budget = self.limits.pass_tokens
        drafted = draft_length(sum(row.decoding for row in self._rows), self.limits.decoded_tokens)
        for row in sorted((row for row in self._rows if row.begun), key=lambda row: not row.decoding):
            count = len(row.tokens) - row.computed
            if not row.decoding:
                count = min(count, budget)
            if count > 0:
                budget -= count
                kind: type[Chunk] = PrefillChunk
                if row.decoding and count == 1:
                    kind, row.draft = DecodeChunk, row.text.draft(drafted)
                chosen.append((kind(row.slot, row.computed, count + len(row.draft)), row))
        chosen.sort(key=lambda one: (isinstance(one[0], PrefillChunk), one[0].slot))
        return [chunk for chunk, _ in chosen], [row for _, row in chosen]

    def _forward(self, rows: list[SequenceState], chunks: list[Chunk]) -> tuple[Tensor, list[SequenceState]]:
        """Compute the chunks.

        Returns:
            Logits of shape ``(positions, vocabulary)``, and the sequences that they continue: those whose tokens are
            all computed, each with its last position and those of its draft. A prompt of which a part remains has none.
        """
        tokens, positions, last = list[int](), list[int](), list[int]()
        ready: list[SequenceState] = []
        for row, chunk in zip(rows, chunks, strict=True):
            tokens += [*row.tokens[chunk.start : chunk.stop], *row.draft]
            positions += range(chunk.start, chunk.stop)
            if chunk.stop >= len(row.tokens):
                ready.append(row)
                last += range(len(tokens) - 1 - len(row.draft), len(tokens))
        least = min_rows(self._model.dtype)
        padding = max(0, least - len(tokens))
        metadata = AttentionMetadata(self._states, chunks, self._common([r for r in rows if r.decoding]))
        keep = last + last[-1:] * (least - len(last)) if last else [0]
        with self._threads.of(len(tokens)):
            out = self._model(
                input_ids=torch.tensor([tokens + [0] * padding], device=self.device),
                position_ids=torch.tensor([positions + [0] * padding], device=self.device),
                use_cache=False,
                logits_to_keep=torch.tensor(keep, device=self.device),
                metadata=metadata,
            )
        self.counts.passes += 1
        for row, chunk in zip(rows, chunks, strict=True):
            row.computed += chunk.count - len(row.draft)
            if not row.decoding:
                self.counts.prompt_tokens += chunk.count
                self._remember(row)
                row.decoding = row.computed == len(row.tokens)
        return out.logits[0, : len(last)], ready

    def _remember(self, row: SequenceState) -> None:
        if self._prefixes.capacity:
            stop = min(row.computed, len(row.prompt))
            self._prefixes.insert(row.prompt, stop, lambda a, b: self._states.read(row.slot, a, b))

    def _common(self, rows: list[SequenceState]) -> int:
        """How many first tokens of their prompts all of ``rows`` share; 0 where one is alone."""
        if rows != self._shared[0]:
            self._shared = rows, common_tokens([row.prompt for row in rows]) if len(rows) > 1 else 0
        return self._shared[1]
