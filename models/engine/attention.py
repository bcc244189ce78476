"""Attention over a batch of sequences of unlike lengths, with the keys and values of all of them in one place.

One forward pass gets the new tokens of all sequences side by side, without padding: one token of a sequence that is
being written, hundreds of one whose prompt is being read. Linear layers see one matrix; only attention has to tell the
sequences apart. That is done here, behind transformers' attention interface, so that any architecture that uses the
interface works.

Two things were measured before this was written (SmolLM2-135M in bf16 on two Zen 5 cores): torch's fused CPU kernel
takes three to four times as long as the plain products below for prompts, and twice as long (eight times with
grouped heads) for single tokens; and the plain products give a token the same bits whatever else is in the batch,
as long as its own keys are cut in the same places. That is why keys and values lie in blocks at fixed positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from hoptimizer.common.errors import UserError
from hoptimizer.models.engine.key_values import BLOCK, KeyValues, spans

# The queries of a prompt are cut every so many positions (a divisor of BLOCK), so that most of what causality hides
# from them is not computed.
CUT = 128
NAME = "hoptimizer"


def min_rows(dtype: torch.dtype) -> int:
    """How many rows a product has at least: fewer run in other kernels, which sum in another order."""
    return 8 if dtype == torch.float32 else 2


def _product(left: Tensor, right: Tensor) -> Tensor:
    """``torch.bmm`` whose rows do not depend on how many rows there are."""
    rows = left.shape[1]
    if left.dtype == torch.float32 and rows < min_rows(left.dtype):
        left = torch.nn.functional.pad(left, (0, 0, 0, min_rows(left.dtype) - rows))
    return torch.bmm(left, right)[:, :rows]


@dataclass(frozen=True)
class PrefillChunk:
    """New tokens of one sequence in a forward pass: a part of its prompt, or several that decoding forced at once.

    Attributes:
        slot: the sequence's slot.
        start: the position of the first of them, which is the number of tokens already in the slot.
        count: how many there are.
    """

    slot: int
    start: int
    count: int

    @property
    def stop(self) -> int:
        """The position after the last of them."""
        return self.start + self.count


@dataclass(frozen=True)
class DecodeToken:
    """The one new token of a sequence that is being written.

    The decode tokens of all sequences are attended together, prefill chunks sequence by sequence. Which of the two a
    token is must not depend on how much of its prompt was cached, or its bits would.

    Attributes:
        slot: the sequence's slot.
        start: the token's position.
    """

    slot: int
    start: int
    count: ClassVar[int] = 1

    @property
    def stop(self) -> int:
        """The position after it."""
        return self.start + 1


class AttentionMetadata:
    """What one forward pass needs to know about its tokens: passed through the model to :func:`attend`.

    Args:
        states: where the keys and values are.
        chunks: the sequences' new tokens, in the order in which they lie in the batch.
        shared: how many first tokens all sequences that are being decoded have in common; their keys are read once.
    """

    def __init__(self, states: KeyValues, chunks: Sequence[PrefillChunk | DecodeToken], shared: int) -> None:
        self.states = states
        self._shared_blocks = shared // BLOCK
        self._prefill: list[tuple[int, PrefillChunk]] = []
        self._decode: list[tuple[int, DecodeToken]] = []
        offset = 0
        for chunk in chunks:
            if isinstance(chunk, DecodeToken):
                self._decode.append((offset, chunk))
            else:
                self._prefill.append((offset, chunk))
            offset += chunk.count
        if self._decode:
            self._plan_decode()

    def _plan_decode(self) -> None:
        slots = [chunk.slot for _, chunk in self._decode]
        self._first, self._end = min(slots), max(slots) + 1
        lengths = [0] * (self._end - self._first)
        for _, chunk in self._decode:
            lengths[chunk.slot - self._first] = chunk.start + 1
        device = self.states.blocks[0].device
        self._rows = torch.tensor([offset for offset, _ in self._decode], device=device)
        self._row_slots = torch.tensor([slot - self._first for slot in slots], device=device)
        # For every block that is written to: the decode tokens that write into it, as their numbers, and for each of
        # them its slot and its offset in the block.
        self._writes: list[tuple[int, Tensor, Tensor, Tensor]] = []
        by_block: dict[int, list[int]] = {}
        for i, (_, chunk) in enumerate(self._decode):
            by_block.setdefault(chunk.start // BLOCK, []).append(i)
        for block, members in by_block.items():
            index = torch.tensor(members, device=device)
            offsets = torch.tensor([self._decode[i][1].start % BLOCK for i in members], device=device)
            self._writes.append((block, index, self._row_slots[index] + self._first, offsets))
        # For every block the range of slots that reach it; slots in the range that do not are computed and masked.
        self._reach: list[tuple[int, int]] = []
        for block in range(-(-max(lengths) // BLOCK)):
            reaching = [i for i, length in enumerate(lengths) if length > block * BLOCK]
            self._reach.append((reaching[0], reaching[-1] + 1))
        self._ends = torch.tensor(lengths, device=device)[:, None]
        # Slots without a token have nothing to see; their outputs are NaN and never read.
        self._visible = min(length for length in lengths if length) // BLOCK * BLOCK
        self._hidden = torch.arange(self._visible, len(self._reach) * BLOCK, device=device) >= self._ends

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
        """Store the new keys and values, and attend from the new queries to all of each sequence so far.

        Args:
            layer: index of the layer.
            query: scaled queries of shape ``(heads, tokens, dim)``.
            key: keys of shape ``(key heads, tokens, dim)``.
            value: values of the same shape as the keys.
            window: how many last positions a query sees; ``None`` for all.

        Returns:
            Outputs of shape ``(tokens, heads, dim)``.
        """
        out = query.new_zeros(query.shape[1], query.shape[0], value.shape[2])  # zeros for tokens that only pad
        for offset, chunk in self._prefill:
            part = slice(offset, offset + chunk.count)
            self._attend_prefill(layer, chunk, query[:, part], key[:, part], value[:, part], window, out[part])
        if self._decode:
            out[self._rows] = self._attend_decode(
                layer, query[:, self._rows], key[:, self._rows], value[:, self._rows], window
            )
        return out

    def _attend_prefill(
        self,
        layer: int,
        chunk: PrefillChunk,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        window: int | None,
        out: Tensor,
    ) -> None:
        heads, _, dim = query.shape
        key_heads = key.shape[0]
        stop, offset = chunk.stop, 0
        for block, low, high in spans(chunk.start, stop):
            for new, states in zip((key, value), self.states.parts[block][layer], strict=True):
                states[chunk.slot, :, low:high] = new[:, offset : offset + high - low]
            offset += high - low
        # All keys and values of the sequence so far, of shape (key heads, positions, dim).
        filled = self.states.parts[: -(-stop // BLOCK)]
        keys = torch.cat([parts[layer][0][chunk.slot] for parts in filled], dim=1)
        values = torch.cat([parts[layer][1][chunk.slot] for parts in filled], dim=1)
        for cut, low, high in spans(chunk.start, stop, CUT):
            seen = (cut + 1) * CUT
            first = cut * CUT + low - chunk.start
            # The heads that share keys become rows of one product: (key heads, group * queries, dim). A cut's queries
            # see no key past its end, so that scores have the shape (heads, queries, seen).
            queries = query[:, first : first + high - low].reshape(key_heads, -1, dim)
            scores = _product(queries, keys[:, :seen].transpose(1, 2)).reshape(heads, high - low, seen)
            _hide(scores, cut * CUT + low, window)
            weights = torch.softmax(scores, dim=-1).view(key_heads, -1, seen)
            found = _product(weights, values[:, :seen]).reshape(heads, high - low, dim)
            out[first : first + high - low] = found.transpose(0, 1)

    def _attend_decode(self, layer: int, query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
        heads, _, dim = query.shape
        key_heads, slots = key.shape[0], self._end - self._first
        for block, index, at_slots, offsets in self._writes:
            for new, states in zip((key, value), self.states.parts[block][layer], strict=True):
                states[at_slots, :, offsets] = new[:, index].transpose(0, 1)
        # The heads that share keys become rows of one product: (slots, key heads, group, dim). Slots of the range that
        # decode nothing in this pass keep zeros.
        queries = query.new_zeros(slots, key_heads, heads // key_heads, dim)
        queries[self._row_slots] = query.view(key_heads, -1, query.shape[1], dim).permute(2, 0, 1, 3)
        scores = queries.new_full((slots, key_heads, heads // key_heads, len(self._reach) * BLOCK), float("-inf"))
        for block, (low, high) in enumerate(self._reach):
            # Of shape (slots, key heads, BLOCK, dim). A block that all sequences share is read once, from the first
            # slot, with the queries of all slots as rows of one product.
            keys = self.states.parts[block][layer][0][self._first + low : self._first + high]
            if block < self._shared_blocks:
                together = queries[low:high].transpose(0, 1).reshape(key_heads, -1, dim)
                product = _product(together, keys[0].transpose(1, 2))
                product = product.view(key_heads, high - low, -1, BLOCK).transpose(0, 1)
            else:
                product = _product(queries[low:high].flatten(0, 1), keys.flatten(0, 1).transpose(1, 2))
                product = product.view(high - low, key_heads, -1, BLOCK)
            scores[low:high, ..., block * BLOCK : (block + 1) * BLOCK] = product
        hidden, start = self._hidden, self._visible
        if window is not None:
            positions = torch.arange(len(self._reach) * BLOCK, device=query.device)
            hidden, start = (positions >= self._ends) | (self._ends - 1 - positions >= window), 0
        scores[..., start:].masked_fill_(hidden[:, None, None, :], float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        found = torch.zeros(slots, key_heads, heads // key_heads, dim, device=query.device)  # fp32: a sum over blocks
        for block, (low, high) in enumerate(self._reach):
            values = self.states.parts[block][layer][1][self._first + low : self._first + high]
            part = weights[low:high, ..., block * BLOCK : (block + 1) * BLOCK]
            if block < self._shared_blocks:
                together = part.transpose(0, 1).reshape(key_heads, -1, BLOCK)
                product = _product(together, values[0]).view(key_heads, high - low, -1, dim).transpose(0, 1)
            else:
                product = _product(part.reshape(-1, part.shape[2], BLOCK), values.flatten(0, 1))
                product = product.view(high - low, key_heads, -1, dim)
            found[low:high] += product
        return found[self._row_slots].to(query.dtype).flatten(1, 2)


def _hide(scores: Tensor, start: int, window: int | None) -> None:
    """Mask what queries may not see.

    Args:
        scores: of shape ``(heads, queries, keys)``; the keys begin at position 0.
        start: position of the first query.
        window: how many last positions a query sees; ``None`` for all.
    """
    count, seen = scores.shape[1:]
    queries = torch.arange(start, start + count, device=scores.device)[:, None]
    # Without a window only the last cut holds keys that some query precedes.
    first = seen - CUT if window is None else 0
    keys = torch.arange(first, seen, device=scores.device)
    hidden = queries < keys
    if window is not None:
        hidden |= queries - keys >= window
    scores[..., first:].masked_fill_(hidden, float("-inf"))


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    scaling: float | None = None,
    metadata: AttentionMetadata | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """The attention function for transformers' interface, which describes every argument but ``metadata``."""
    if metadata is None:
        raise RuntimeError("this model was loaded for the engine, which alone can run it")
    if softcap is not None or s_aux is not None:
        raise UserError(
            f"local/ models can't run {type(module).__name__}: it caps attention scores or has attention sinks; serve "
            "the model with vLLM or `transformers serve` and name it with api_base"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    found = metadata.attend(cast(int, module.layer_idx), query[0] * scale, key[0], value[0], sliding_window)
    return found[None], None


def no_mask(*args: object, **kwargs: object) -> None:
    """transformers' mask function for :func:`attend`, which masks by itself."""


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, no_mask)
