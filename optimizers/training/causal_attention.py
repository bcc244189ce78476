"""Causal attention for training on a CPU, from plain products of matrices.

Of a training's forward and backward passes, torch's fused attention takes two fifths on a CPU, for a fifteenth of the
operations. Here queries are cut into pieces, each of which is compared with the keys up to its end by one product; the
backward pass makes the weights of a piece again, so that nothing is kept but queries, keys and values, as by the fused
one (Dao et al., 2022, FlashAttention, section 3.1).

Texts of one pass that begin alike can share their beginning: they stand one after the other, each without what an
earlier one has already, and attend to it there. Since attention is causal, outputs and gradients are as if each text
stood alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from hoptimizer.models.engine.loading import unfit

# Positions of queries that are attended from at once: few enough that little of what causality hides is computed.
CUT = 128
NAME = "hoptimizer-training"
_FUSED = "sdpa"
_FULL = "full_attention"
_OTHER_FORMS = ("sliding_window", "softcap", "s_aux", "position_bias", "cache")


@dataclass(frozen=True)
class PackedText:
    """A text among others that stand in one sequence.

    Attributes:
        places: where in the sequence each of its tokens stands.
        shared: how many tokens of its beginning belong to an earlier text of the sequence, too.
    """

    places: Tensor
    shared: int


def pack(texts: Sequence[Sequence[int]]) -> tuple[list[int], list[int], list[PackedText]]:
    """One sequence of texts, each of which shares the beginning that it has in common with the one before it.

    Args:
        texts: ids of tokens, in sorted order, which brings texts together that begin alike.

    Returns:
        the sequence, the position of each of its tokens in its own text, and where the texts stand in it.

    Example:
        >>> from hoptimizer.optimizers.training.causal_attention import pack
        >>> ids, positions, texts = pack([[5, 6, 7], [5, 6, 8, 9]])
        >>> ids, positions, [text.places.tolist() for text in texts]
        ([5, 6, 7, 8, 9], [0, 1, 2, 2, 3], [[0, 1, 2], [0, 1, 3, 4]])
    """
    ids, positions, packed = list[int](), list[int](), list[PackedText]()
    before: Sequence[int] = ()
    for text in texts:
        same = common_start(before, text)
        own = torch.arange(len(ids), len(ids) + len(text) - same)
        packed.append(PackedText(torch.cat([packed[-1].places[:same], own]) if packed else own, same))
        ids += text[same:]
        positions += range(same, len(text))
        before = text
    return ids, positions, packed


def common_start(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens at the beginning of two texts are the same."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


class CausalAttention(torch.autograd.Function):
    """Attention of each position to itself and those before it, for query heads that share keys and values.

    Arguments and result as those of :func:`attention`.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's own
        query: Tensor,
        key: Tensor,
        value: Tensor,
        texts: Sequence[PackedText],
    ) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.texts = texts
        out = query.new_empty(*query.shape[:3], value.shape[2])
        group = query.shape[1]
        for text in texts:
            keys, values = key[:, text.places], value[:, text.places]
            for part, seen in _cuts(text):
                weights = _weights(query[:, :, part].flatten(1, 2), keys[:, :seen], group)
                out[:, :, part] = (weights @ values[:, :seen]).unflatten(1, (group, -1))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:  # noqa: ANN401 - torch's own
        query, key, value = ctx.saved_tensors
        [gradient] = gradients
        of_query = torch.empty_like(query)
        of_key, of_value = (torch.zeros_like(states, dtype=torch.float32) for states in (key, value))
        group = query.shape[1]
        for text in ctx.texts:
            keys, values = key[:, text.places], value[:, text.places]
            of_keys, of_values = (torch.zeros_like(states, dtype=torch.float32) for states in (keys, values))
            for part, seen in _cuts(text):
                queries, given = (states[:, :, part].flatten(1, 2) for states in (query, gradient))
                weights = _weights(queries, keys[:, :seen], group)
                of_weights = given @ values[:, :seen].transpose(1, 2)
                of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype)
                of_query[:, :, part] = (of_scores @ keys[:, :seen]).unflatten(1, (group, -1))
                of_keys[:, :seen] += of_scores.transpose(1, 2) @ queries
                of_values[:, :seen] += weights.transpose(1, 2) @ given
            of_key.index_add_(1, text.places, of_keys)
            of_value.index_add_(1, text.places, of_values)
        return of_query, of_key.to(key.dtype), of_value.to(value.dtype), None


def attention(query: Tensor, key: Tensor, value: Tensor, texts: Sequence[PackedText] | None = None) -> Tensor:
    """Causal attention.

    Args:
        query: scaled queries of shape ``(batch * key heads, query heads per key head, positions, dim)``.
        key: keys of shape ``(batch * key heads, positions, dim)``.
        value: values, of the same shape but for ``dim``, which may be another.
        texts: where the texts stand that the positions hold; by default the positions are one text.

    Returns:
        Outputs of the queries' shape, with the values' ``dim``.

    Example:
        >>> import torch
        >>> from hoptimizer.optimizers.training.causal_attention import attention
        >>> query, key, value = torch.rand(2, 3, 200, 8), torch.rand(2, 200, 8), torch.rand(2, 200, 8)
        >>> found = attention(query, key, value)
        >>> alike = torch.nn.functional.scaled_dot_product_attention(
        ...     query, key[:, None].expand_as(query), value[:, None].expand_as(query), is_causal=True, scale=1.0
        ... )
        >>> torch.allclose(found, alike, atol=1e-5)
        True
    """
    whole = [PackedText(torch.arange(query.shape[2], device=query.device), 0)]
    return cast(Tensor, CausalAttention.apply(query, key, value, whole if texts is None else texts))


def _cuts(text: PackedText) -> Iterator[tuple[Tensor, int]]:
    """The pieces of what a text has alone, as places, and how many of the text's tokens each sees."""
    count = len(text.places)
    for start in range(text.shared, count, CUT):
        stop = min(start + CUT, count)
        yield text.places[start:stop], stop


def _weights(queries: Tensor, keys: Tensor, group: int) -> Tensor:
    """The attention weights of a piece's queries, the last of which sees the last key.

    The query heads that share a key head are rows of one product: ``group`` of them, one after the other.
    """
    scores = queries @ keys.transpose(1, 2)
    count = queries.shape[1] // group
    hidden = torch.ones(count, count, dtype=torch.bool, device=scores.device).triu_(1)
    scores.unflatten(1, (group, count))[..., -count:].masked_fill_(hidden, float("-inf"))
    return torch.softmax(scores, dim=-1)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    texts: Sequence[PackedText] | None = None,
    **kwargs: Any,  # noqa: ANN401 - whatever a model hands on
) -> tuple[Tensor, None]:
    """The attention function for transformers' interface, which describes all arguments but ``texts``: what it is not
    made for, such as a mask or a window, is left to torch's."""
    is_other = any(kwargs.get(name) is not None for name in _OTHER_FORMS) or kwargs.get("is_causal") is False
    if attention_mask is not None or dropout or is_other or not getattr(module, "is_causal", True):
        if texts is not None:
            raise RuntimeError(f"{type(module).__name__} can't be trained on texts that share their beginnings")
        found, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return found, None
    batch, heads, count, dim = query.shape
    key_heads = key.shape[1]
    scaled = query * (dim**-0.5 if scaling is None else scaling)
    found = attention(
        scaled.reshape(batch * key_heads, heads // key_heads, count, dim),
        key.reshape(batch * key_heads, count, -1),
        value.reshape(batch * key_heads, count, -1),
        texts,
    )
    return found.reshape(batch, heads, count, -1).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)


def attend_by_products(model: PreTrainedModel) -> bool:
    """Have a causal model attend by :func:`attention`, if it is on a CPU and would use torch's fused one.

    Returns:
        whether texts may share their beginnings: whether it now does, in all of its layers and to all that is before.
    """
    is_causal = not model.config.is_encoder_decoder
    if not (is_causal and model.device.type == "cpu" and model.config._attn_implementation == _FUSED):
        return False
    model.set_attn_implementation(NAME)
    config = model.config.get_text_config()
    is_full = set(getattr(config, "layer_types", None) or [_FULL]) == {_FULL}
    return unfit(model) is None and is_full and getattr(config, "sliding_window", None) is None
