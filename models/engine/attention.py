"""Attention over a batch of sequences of unlike lengths, with the keys and values of all of them in one place.

One forward pass gets the new tokens of all sequences side by side, without padding: one token of a sequence that is
being written, hundreds of one whose prompt is being read. Linear layers see one matrix; only attention has to tell the
sequences apart. That is done here, behind transformers' attention interface, so that any architecture that uses the
interface works.

Two things were measured before this was written (SmolLM2-135M in bf16 on two Zen 5 cores): torch's fused CPU kernel
takes three to four times as long as the plain products below for prompts, and twice as long (eight times with
grouped heads) for single tokens; and the plain products give a token the same bits whatever else is in the batch,
as long as its own keys are cut in the same places. That is why keys and values lie in blocks at fixed positions. On a
GPU, where starting a kernel takes longer than most of them run, torch's fused one is taken for prompts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from hoptimizer.common.errors import UserError
from hoptimizer.models.engine.decode_attention import DecodeAttention, DecodeChunk, product
from hoptimizer.models.engine.key_values import KeyValues, spans

# The queries of a prompt are cut every so many positions (a divisor of a block's), so that most of what causality hides
# from them is not computed.
CUT = 128
NAME = "hoptimizer"


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


class AttentionMetadata:
    """What one forward pass needs to know about its tokens: passed through the model to :func:`attend`.

    Args:
        states: where the keys and values are.
        chunks: the sequences' new tokens, in the order in which they lie in the batch: first the decode chunks, in the
            order of their slots, then the prefill chunks.
        shared: how many first tokens all sequences that are being decoded have in common; their keys are read once.
    """

    def __init__(self, states: KeyValues, chunks: Sequence[PrefillChunk | DecodeChunk], shared: int) -> None:
        self.states, self._common = states, shared
        self._decoded = [chunk for chunk in chunks if isinstance(chunk, DecodeChunk)]
        self._prefill: list[tuple[int, PrefillChunk]] = []
        self._tokens_decoded = offset = sum(chunk.count for chunk in self._decoded)
        for chunk in chunks[len(self._decoded) :]:
            self._prefill.append((offset, cast(PrefillChunk, chunk)))
            offset += chunk.count
        self._decode: DecodeAttention | None = None
        self._out: Tensor | None = None

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
        """Store the new keys and values, and attend from the new queries to all of each sequence so far.

        Args:
            layer: index of the layer.
            query: scaled queries of shape ``(heads, tokens, dim)``.
            key: keys of shape ``(key heads, tokens, dim)``.
            value: values of the same shape as the keys.
            window: how many last positions a query sees; ``None`` for all.

        Returns:
            Outputs of shape ``(tokens, heads, dim)``, which the next layer's take the place of.
        """
        if self._out is None:  # zeros for tokens that only pad
            self._out = query.new_zeros(query.shape[1], query.shape[0], value.shape[2])
        out = self._out
        for offset, chunk in self._prefill:
            part = slice(offset, offset + chunk.count)
            self._attend_prefill(layer, chunk, query[:, part], key[:, part], value[:, part], window, out[part])
        if count := self._tokens_decoded:
            if self._decode is None:
                self._decode = DecodeAttention(self.states, self._decoded, self._common, len(query))
            self._decode.attend(layer, query[:, :count], key[:, :count], value[:, :count], window, out[:count])
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
        for block, low, high in spans(chunk.start, stop, self.states.block):
            for new, states in zip((key, value), self.states.parts[block][layer], strict=True):
                states[chunk.slot, :, low:high] = new[:, offset : offset + high - low]
            offset += high - low
        # All keys and values of the sequence so far, of shape (key heads, positions, dim).
        filled = self.states.parts[: -(-stop // self.states.block)]
        keys = torch.cat([parts[layer][0][chunk.slot] for parts in filled], dim=1)
        values = torch.cat([parts[layer][1][chunk.slot] for parts in filled], dim=1)
        if query.is_cuda and window is None:
            fused(query, keys[:, :stop], values[:, :stop], out)
            return
        for cut, low, high in spans(chunk.start, stop, CUT):
            seen = (cut + 1) * CUT
            first = cut * CUT + low - chunk.start
            # The heads that share keys become rows of one product: (key heads, group * queries, dim). A cut's queries
            # see no key past its end, so that scores have the shape (heads, queries, seen).
            queries = query[:, first : first + high - low].reshape(key_heads, -1, dim)
            scores = product(queries, keys[:, :seen].transpose(1, 2)).reshape(heads, high - low, seen)
            _hide(scores, cut * CUT + low, window)
            weights = torch.softmax(scores, dim=-1).view(key_heads, -1, seen)
            found = product(weights, values[:, :seen]).reshape(heads, high - low, dim)
            out[first : first + high - low] = found.transpose(0, 1)


def fused(query: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
    """The attention of a sequence's last tokens in one kernel, as a GPU has it.

    Args:
        query: scaled queries of shape ``(heads, tokens, dim)``.
        keys: all keys of the sequence, of shape ``(key heads, positions, dim)``; the last are the queries' own.
        values: values of the same shape as the keys.
        out: where the outputs go, of shape ``(tokens, heads, dim)``.
    """
    mask = causal_lower_right(query.shape[1], keys.shape[1])
    found = torch.nn.functional.scaled_dot_product_attention(
        query[None], keys[None], values[None], attn_mask=mask, scale=1.0, enable_gqa=True
    )
    out.copy_(found[0].transpose(0, 1))


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
