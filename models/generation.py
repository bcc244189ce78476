"""Batched text generation in one process: requests join and leave the batch between two forward passes."""

import atexit
import os
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, TopKLogitsWarper, TopPLogitsWarper
from transformers import logging as transformers_logging

from hoptimizer.models import attention
from hoptimizer.models.constraint import Compiler, Constraint, Grammar
from hoptimizer.models.errors import UserError
from hoptimizer.models.prefix import PIECE, PrefixStore

# Sequences in one batch.
SLOTS = 32
# Tokens of one forward pass: enough to keep the matrix products at full speed, few enough to fit the caches.
STEP_TOKENS = 1024
PREFIX_BYTES = 2 << 30


@dataclass(frozen=True)
class Job:
    """One text to write.

    Attributes:
        tokens: the prompt.
        max_tokens: the most tokens to write.
        grammar: what may be written; ``None`` for free text.
        temperature: 0 takes the likeliest token.
        top_p: sample among the likeliest tokens that have this probability together.
        top_k: sample among so many of the likeliest tokens.
        seed: of the sampling.
        stop: texts at which free text ends, which are left out.
        ignore_end: write ``max_tokens`` whatever the model says, for benchmarks.
    """

    tokens: list[int]
    max_tokens: int
    grammar: Grammar | None = None
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    seed: int = 0
    stop: tuple[str, ...] = ()
    ignore_end: bool = False


@dataclass(frozen=True)
class Completion:
    """A written text.

    Attributes:
        text: the text.
        finished: whether the model ended it; else ``max_tokens`` did.
        cut: whether a field of a JSON object was closed by the budget (the object is whole all the same).
        prompt_tokens: tokens of the prompt.
        reused_tokens: how many of them had been computed for an earlier prompt.
        tokens: tokens written.
    """

    text: str
    finished: bool
    cut: bool
    prompt_tokens: int
    reused_tokens: int
    tokens: int


@dataclass
class Counts:
    """What a generator has done so far; for tests, benchmarks and the curious."""

    passes: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    written_tokens: int = 0


@dataclass(eq=False)
class _Row:
    """A sequence in the batch."""

    job: Job
    future: "Future[Completion]"
    slot: int
    tokens: list[int]
    computed: int  # how many of the tokens have their keys and values in the slot
    reused: int
    constraint: Constraint | None
    random: torch.Generator | None
    finished: bool = False
    writing: bool = field(default=False)

    @property
    def written(self) -> list[int]:
        return self.tokens[len(self.job.tokens) :]


class Generator:
    """A causal language model that writes texts for many callers at once.

    Greedy texts do not depend on what else is in the batch, nor on how much of a prompt was reused: every operation
    gives a token the same bits either way (on CPU; GPU kernels promise no such thing).

    Args:
        model: folder or hub id.
        device: where to run; by default a GPU if there is one.
        dtype: by default bf16 where the hardware multiplies it, else fp32.
        slots: sequences in one batch.
        prefix_bytes: memory for the states of earlier prompts; 0 reuses nothing.

    Raises:
        UserError: the model can't be loaded, or is of an architecture that does not use transformers' attention
            interface.
    """

    def __init__(
        self,
        model: str,
        device: str | None = None,
        dtype: torch.dtype | None = None,
        slots: int = SLOTS,
        prefix_bytes: int | None = None,
    ) -> None:
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._model = _load(model, self.device, dtype or best_dtype(self.device))
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        config = self._model.config.get_text_config()
        self.context_length: int = config.max_position_embeddings
        self._ends = _end_tokens(self._model, self.tokenizer)
        self.compiler = Compiler(self.tokenizer, config.vocab_size, self._ends)
        heads = config.num_key_value_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._states = attention.KeyValues(config.num_hidden_layers, heads, dim, slots, self._model.dtype, self.device)
        self._prefixes = PrefixStore(_memory_share(PREFIX_BYTES) if prefix_bytes is None else prefix_bytes)
        self.counts = Counts()
        self._free = list(range(slots))
        self._rows: list[_Row] = []
        self._shared: tuple[list[_Row], int] = ([], 0)
        self._waiting: deque[tuple[Job, Future[Completion]]] = deque()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, job: Job) -> "Future[Completion]":
        """Hand in a job; cancelling the future takes it out of the batch."""
        future: Future[Completion] = Future()
        with self._wake:
            self._waiting.append((job, future))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="generator", daemon=True)
                self._thread.start()
                atexit.register(self.close)
            self._wake.notify()
        return future

    def close(self) -> None:
        """Stop after the pass that is under way. At exit, a thread inside torch would bring the process down."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

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
                    if not row.future.cancelled():
                        row.future.set_exception(error)

    def _step(self) -> None:
        for row in [row for row in self._rows if row.future.cancelled()]:
            self._leave(row)
        self._admit()
        self._compact()
        pieces, rows = self._pieces()
        if not rows:
            return
        self._states.reserve(max(row.computed + piece.count for row, piece in zip(rows, pieces, strict=True)))
        logits, ready = self._forward(rows, pieces)
        # numpy finds the largest of 50,000 in a tenth of torch's time.
        likeliest = logits.float().cpu().numpy().argmax(-1)
        for row, scores, best in zip(ready, logits, likeliest, strict=True):
            self._write(row, scores, int(best))
        for row in [row for row in rows if row.finished]:
            self._leave(row)
            self._deliver(row)

    def _admit(self) -> None:
        """Give waiting jobs the free slots, in their order, with what is known of their prompts."""
        with self._wake:
            waiting, self._waiting = self._waiting, deque()
        held: deque[tuple[Job, Future[Completion]]] = deque()
        for job, future in waiting:
            if future.cancelled():
                continue
            if not self._free or not self._enter(job, future):
                held.append((job, future))
        with self._wake:
            self._waiting.extendleft(reversed(held))

    def _enter(self, job: Job, future: "Future[Completion]") -> bool:
        """Take a job into the batch; ``False`` if it had better wait for a prefix that is being computed right now."""
        # The last token is computed in any case: its output is where the writing starts.
        states = self._prefixes.match(job.tokens[:-1])
        known = len(states) * PIECE
        needed = job.tokens[: known + PIECE]
        if (
            self._prefixes.capacity
            and len(needed) > known
            and any(not row.writing and row.job.tokens[: len(needed)] == needed for row in self._rows)
        ):
            return False
        constraint = Constraint(self.compiler, job.grammar, job.max_tokens) if job.grammar else None
        row = _Row(
            job=job,
            future=future,
            slot=self._free.pop(0),
            tokens=list(job.tokens),
            computed=known,
            reused=known,
            constraint=constraint,
            random=torch.Generator(self.device).manual_seed(job.seed) if job.temperature > 0 else None,
        )
        if states:
            self._states.reserve(known)
            for place, piece in enumerate(states):
                self._states.load(row.slot, place * PIECE, piece)
        self._rows.append(row)
        self.counts.reused_tokens += known
        if constraint is not None:
            self._append(row, constraint.opening)
        return True

    def _leave(self, row: _Row) -> None:
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

    def _pieces(self) -> tuple[list[attention.Piece], list[_Row]]:
        """What the next pass computes: the last token of all that are being written, and prompts up to the limit."""
        pieces, rows = [], []
        budget = STEP_TOKENS
        for row in sorted(self._rows, key=lambda row: not row.writing):
            count = len(row.tokens) - row.computed
            if not row.writing:
                count = min(count, budget)
            if count > 0:
                budget -= count
                single = row.writing and count == 1
                pieces.append(attention.Piece(row.slot, row.computed, count, single))
                rows.append(row)
        return pieces, rows

    def _forward(self, rows: list[_Row], pieces: list[attention.Piece]) -> tuple[Tensor, list[_Row]]:
        """Compute the pieces; the logits after each sequence that is complete so far, and these sequences."""
        tokens: list[int] = []
        positions: list[int] = []
        last: list[int] = []
        ready: list[_Row] = []
        for row, piece in zip(rows, pieces, strict=True):
            stop = piece.start + piece.count
            tokens += row.tokens[piece.start : stop]
            positions += range(piece.start, stop)
            if stop == len(row.tokens):
                ready.append(row)
                last.append(len(tokens) - 1)
        padding = max(0, attention.MIN_ROWS - len(tokens))
        plan = attention.Plan(self._states, pieces, self._common([r for r in rows if r.writing]))
        keep = last + last[-1:] * (attention.MIN_ROWS - len(last)) if last else [0]
        out = self._model(
            input_ids=torch.tensor([tokens + [0] * padding], device=self.device),
            position_ids=torch.tensor([positions + [0] * padding], device=self.device),
            use_cache=False,
            logits_to_keep=torch.tensor(keep, device=self.device),
            plan=plan,
        )
        self.counts.passes += 1
        for row, piece in zip(rows, pieces, strict=True):
            row.computed += piece.count
            if not row.writing:
                self.counts.prompt_tokens += piece.count
                self._remember(row)
                row.writing = row.computed == len(row.tokens)
        return out.logits[0, : len(last)], ready

    def _remember(self, row: _Row) -> None:
        if self._prefixes.capacity:
            stop = min(row.computed, len(row.job.tokens))
            self._prefixes.insert(row.job.tokens, stop, lambda a, b: self._states.read(row.slot, a, b))

    def _common(self, rows: list[_Row]) -> int:
        """How many first tokens all of ``rows`` share."""
        if rows != self._shared[0]:
            low = min(row.job.tokens for row in rows) if rows else []
            high = max(row.job.tokens for row in rows) if rows else []
            count = next(
                (i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high))
            )
            self._shared = (rows, count if len(rows) > 1 else 0)
        return self._shared[1]

    def _write(self, row: _Row, logits: Tensor, likeliest: int) -> None:
        """Choose the next token of a sequence, and append it with what follows it without a choice."""
        token = self._choose(row, logits, likeliest)
        if row.constraint is not None:
            self._append(row, row.constraint.take(token))
            return
        if token in self._ends and not row.job.ignore_end:
            row.finished = True
            return
        self._append(row, [token])
        text_ends = row.job.stop and any(s in self._decode(row.written[-32:]) for s in row.job.stop)
        if text_ends or len(row.written) >= row.job.max_tokens:
            row.finished = True

    def _choose(self, row: _Row, logits: Tensor, likeliest: int) -> int:
        if row.random is None and (row.constraint is None or row.constraint.allows(likeliest)):
            return likeliest
        logits = logits.float()
        if row.constraint is not None:
            allowed = torch.from_numpy(row.constraint.mask()).to(self.device)
            logits = logits.masked_fill(~allowed, float("-inf"))
        if row.random is None:
            return int(logits.argmax())
        scores = (logits / row.job.temperature)[None]
        if row.job.top_k is not None:
            scores = TopKLogitsWarper(row.job.top_k)(None, scores)
        if row.job.top_p is not None and row.job.top_p < 1:
            scores = TopPLogitsWarper(row.job.top_p)(None, scores)
        return int(torch.multinomial(torch.softmax(scores[0], -1), 1, generator=row.random))

    def _append(self, row: _Row, tokens: list[int]) -> None:
        row.tokens += tokens
        row.finished = row.constraint is not None and row.constraint.done

    def _decode(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=True)

    def _deliver(self, row: _Row) -> None:
        text = self._decode(row.written)
        ended = row.constraint is not None or len(row.written) < row.job.max_tokens
        for stop in row.job.stop:
            if row.constraint is None and stop in text:
                text, ended = text[: text.index(stop)], True
        self.counts.written_tokens += len(row.written)
        completion = Completion(
            text=text,
            finished=ended,
            cut=row.constraint is not None and row.constraint.cut,
            prompt_tokens=len(row.job.tokens),
            reused_tokens=row.reused,
            tokens=len(row.written),
        )
        if row.future.set_running_or_notify_cancel():
            row.future.set_result(completion)


def best_dtype(device: torch.device) -> torch.dtype:
    """bf16 where the hardware multiplies it, else fp32."""
    if device.type != "cpu":
        return torch.bfloat16
    return torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32


def _memory_share(most: int) -> int:
    """At most ``most`` bytes, and an eighth of the machine's memory."""
    return min(most, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8)


def _end_tokens(model: torch.nn.Module, tokenizer: object) -> list[int]:
    configured = model.generation_config.eos_token_id
    ends = configured if isinstance(configured, list) else [configured]
    return sorted({end for end in [*ends, tokenizer.eos_token_id] if end is not None})


def _load(name: str, device: torch.device, dtype: torch.dtype) -> torch.nn.Module:
    transformers_logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(name)
        model = AutoModelForCausalLM.from_pretrained(
            name, config=config, dtype=dtype, attn_implementation=attention.NAME
        )
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"can't load the model {name!r}: {reason}; give a name of `hop models list`, a folder with config.json, "
            "safetensors and tokenizer, or a hub id"
        ) from error
    finally:
        transformers_logging.enable_progress_bar()
    if not model._supports_attention_backend:
        raise UserError(
            f"local/ models can't run {type(model).__name__}, which has no attention interface; serve it with "
            "`transformers serve` and name it with api_base"
        )
    return model.eval().to(device)
