"""Attention of the sequences that are being written in a forward pass, all of them in the same products.

A pass has hundreds of these between two readings of weights, so that what does not differ between layers is made once a
pass: which keys and values each product reads, where its scores go, what is masked.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hoptimizer.models.engine.key_values import KeyValues
from hoptimizer.models.engine.limits import AMX_ROWS, has_amx


def min_rows(dtype: torch.dtype) -> int:
    """How many rows a product has at least: fewer run in other kernels, which sum in another order."""
    return 8 if dtype == torch.float32 else 2


def product(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """``torch.bmm`` whose rows do not depend on how many rows there are; written to ``out``, if that is given."""
    rows = left.shape[1]
    whole = max(rows, min_rows(left.dtype))
    if rows > AMX_ROWS and has_amx() and not left.is_cuda:  # the last rows, up to half as many, run in another kernel
        whole = -(-rows // AMX_ROWS) * AMX_ROWS
    if rows < whole:
        found = torch.bmm(torch.nn.functional.pad(left, (0, 0, 0, whole - rows)), right)[:, :rows]
        return found if out is None else out.copy_(found)
    return torch.bmm(left, right, out=out)


@dataclass(frozen=True)
class DecodeChunk:
    """The last token of a sequence that is being written, and those that are drafted to follow it.

    The decode chunks of all sequences are attended together, prefill chunks sequence by sequence, and a token has the
    same bits in a decode chunk of any length. Which of the two a token is in must not depend on how much of its prompt
    was cached, or its bits would.

    Attributes:
        slot: the sequence's slot.
        start: the position of the first of them.
        count: how many there are.
    """

    slot: int
    start: int
    count: int = 1

    @property
    def stop(self) -> int:
        """The position after the last of them."""
        return self.start + self.count


@dataclass
class _Block:
    """One block's part in the products of a pass.

    Attributes:
        states: its keys and values, by layer: those of the slots that reach it, or the first slot's where all share
            them.
        heads: which key heads of the batch (slots times key heads) these are.
        scores: where its scores go.
        weights: where its softmaxed scores will be.
    """

    states: list[tuple[Tensor, Tensor]]
    heads: slice
    scores: Tensor
    weights: Tensor


class DecodeAttention:
    """The attention of one forward pass' decode chunks.

    Args:
        states: where the keys and values are.
        chunks: the chunks, in the order of their slots.
        shared: how many first tokens all their sequences have in common; their keys are read once.
        heads: query heads of the model.
    """

    def __init__(self, states: KeyValues, chunks: Sequence[DecodeChunk], shared: int, heads: int) -> None:
        self._key_heads, self._dim = states.heads, states.dim
        size = states.block
        first = chunks[0].slot
        self._slots = chunks[-1].slot + 1 - first
        # Every slot has as many places as the longest chunk has tokens. What is computed for those without a token, and
        # for the slots of the range without a chunk, nobody reads.
        self._width = max(chunk.count for chunk in chunks)
        # The heads that share keys, of all places of a slot, are rows of one product.
        self._rows = self._width * (heads // states.heads)
        # By slot and place, how many positions a token there sees; 0 where there is no chunk.
        ends = [[0] * self._width for _ in range(self._slots)]
        places = list[int]()
        for chunk in chunks:
            slot = chunk.slot - first
            ends[slot] = [min(chunk.start + place + 1, chunk.stop) for place in range(self._width)]
            places += range(slot * self._width, slot * self._width + chunk.count)
        device = states.device
        self._places = torch.tensor(places, device=device)
        self._gaps = len(places) < self._slots * self._width
        self._writes = list(_writes(states, chunks))
        lengths = [each[-1] for each in ends]
        count = -(-max(lengths) // size)
        shape = (self._slots, self._key_heads, self._rows, count * size)
        # Where no scores are ever written, they hide what is not there.
        self._scores = torch.full(shape, float("-inf"), dtype=states.dtype, device=device)
        self._weights = torch.empty_like(self._scores)
        self._shared, self._own = list[_Block](), list[_Block]()
        for block in range(count):
            scores, weights = (every[..., block * size : (block + 1) * size] for every in (self._scores, self._weights))
            if block < shared // size:
                # Read once, with the queries of all slots as rows of one product.
                layers = states.layers(block, first, first + 1)
                part = slice(0, self._slots * self._key_heads)
                self._shared.append(_Block(layers, part, scores.transpose(0, 1), weights.transpose(0, 1)))
                continue
            # The range of slots that reach the block; those in it that do not are computed and masked.
            reaching = [i for i, length in enumerate(lengths) if length > block * size]
            low, high = reaching[0], reaching[-1] + 1
            layers = states.layers(block, first + low, first + high)
            part = slice(low * self._key_heads, high * self._key_heads)
            self._own.append(_Block(layers, part, scores.flatten(0, 1)[part], weights.flatten(0, 1)[part]))
        self._ends = torch.tensor(ends, device=device)[:, :, None]
        visible = min(chunk.start + 1 for chunk in chunks) // size * size
        self._masks: dict[int | None, tuple[Tensor, Tensor]] = {None: self._mask(visible, None)}

    def _mask(self, start: int, window: int | None) -> tuple[Tensor, Tensor]:
        """The scores from position ``start`` on, and which of them nobody may see."""
        positions = torch.arange(start, self._scores.shape[-1], device=self._scores.device)
        hidden = positions >= self._ends
        if window is not None:
            hidden |= self._ends - 1 - positions >= window
        # The heads that share keys, which are neighbours among the rows, see the same.
        return self._scores.unflatten(2, (self._width, -1))[..., start:], hidden[:, None, :, None, :]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, window: int | None, out: Tensor) -> None:
        """Store the new keys and values, and attend from each query to all of its sequence so far.

        Args:
            layer: index of the layer.
            query: scaled queries of shape ``(heads, tokens, dim)``.
            key: keys of shape ``(key heads, tokens, dim)``.
            value: values of the same shape as the keys.
            window: how many last positions a query sees; ``None`` for all.
            out: where the outputs go, of shape ``(tokens, heads, dim)``.
        """
        rows, dim = self._rows, self._dim
        for layers, places, chosen in self._writes:
            for new, states in zip((key, value), layers[layer], strict=True):
                new = new.transpose(0, 1)
                new = new if chosen is None else new[chosen]
                states.view(-1, dim).index_copy_(0, places, new.reshape(-1, dim))
        queries = query.transpose(0, 1)
        if self._gaps:
            by_place = queries.new_zeros(self._slots * self._width, len(query), dim)
            queries = by_place.index_copy_(0, self._places, queries)
        queries = queries.reshape(self._slots, self._width, self._key_heads, -1, dim).transpose(1, 2)
        queries = queries.reshape(-1, rows, dim)  # of shape (slots * key heads, rows, dim)
        by_head = (self._slots, self._key_heads, rows)
        if self._shared:
            together = queries.view(*by_head, dim).transpose(0, 1).reshape(self._key_heads, -1, dim)
        for block in self._shared:
            found = product(together, block.states[layer][0].transpose(1, 2))
            block.scores.copy_(found.view(block.scores.shape))
        for block in self._own:
            product(queries[block.heads], block.states[layer][0].transpose(1, 2), out=block.scores)
        if window not in self._masks:
            self._masks[window] = self._mask(0, window)
        scores, hidden = self._masks[window]
        scores.masked_fill_(hidden, float("-inf"))
        torch.softmax(self._scores, dim=-1, out=self._weights)
        total = torch.zeros(*by_head, dim, dtype=torch.float32, device=query.device)  # a sum over blocks
        for block in self._shared:
            found = product(block.weights.reshape(self._key_heads, -1, block.weights.shape[-1]), block.states[layer][1])
            total += found.view(self._key_heads, self._slots, rows, dim).transpose(0, 1)
        by_batch = total.flatten(0, 1)
        for block in self._own:
            by_batch[block.heads] += product(block.weights, block.states[layer][1])
        total = total.view(self._slots, self._key_heads, self._width, -1, dim).transpose(1, 2)
        total = total.reshape(self._slots * self._width, -1, dim)
        out.copy_(total[self._places] if self._gaps else total)


def _writes(
    states: KeyValues, chunks: Sequence[DecodeChunk]
) -> Iterator[tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor | None]]:
    """For every block that is written to: its keys and values by layer, the tokens' places in them as one row of heads
    after the other, and which tokens these are, where not all."""
    tokens = [(chunk.slot, position) for chunk in chunks for position in range(chunk.start, chunk.stop)]
    by_block: dict[int, list[int]] = {}
    for row, (_, position) in enumerate(tokens):
        by_block.setdefault(position // states.block, []).append(row)
    heads = torch.arange(states.heads, device=states.device)
    for block, rows in by_block.items():
        slots = torch.tensor([[tokens[row][0]] for row in rows], device=states.device)
        offsets = torch.tensor([[tokens[row][1] % states.block] for row in rows], device=states.device)
        places = ((slots * states.heads + heads) * states.block + offsets).flatten()
        chosen = None if len(by_block) == 1 else torch.tensor(rows, device=states.device)
        yield states.layers(block, 0, states.slots), places, chosen
