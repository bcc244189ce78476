"""Causal attention for training on a CPU, from plain products of matrices.

Of a training's forward and backward passes, torch's fused attention takes two fifths on a CPU, for a fifteenth of the
operations. Here queries are cut into pieces, each of which is compared with the keys up to its end by one product; the
backward pass makes the weights of a piece again, so that nothing is kept but queries, keys and values, as by the fused
one (Dao et al., 2022, FlashAttention, section 3.1).
"""

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

# Positions of queries that are attended from at once: few enough that little of what causality hides is computed.
CUT = 128
NAME = "hoptimizer-training"
_FUSED = "sdpa"
_OTHER_FORMS = ("sliding_window", "softcap", "s_aux", "position_bias", "cache")


class CausalAttention(torch.autograd.Function):
    """Attention of each position to itself and those before it, for query heads that share keys and values.

    Arguments and result as those of :func:`attention`.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:  # noqa: ANN401 - torch's own
        ctx.save_for_backward(query, key, value)
        out = query.new_empty(*query.shape[:3], value.shape[2])
        group = query.shape[1]
        for part, seen in _cuts(query.shape[2]):
            weights = _weights(query[:, :, part].flatten(1, 2), key[:, :seen], group)
            out[:, :, part] = (weights @ value[:, :seen]).unflatten(1, (group, -1))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # noqa: ANN401 - torch's own
        query, key, value = ctx.saved_tensors
        [gradient] = gradients
        of_query = torch.empty_like(query)
        of_key, of_value = (torch.zeros_like(states, dtype=torch.float32) for states in (key, value))
        group = query.shape[1]
        for part, seen in _cuts(query.shape[2]):
            queries, given = (states[:, :, part].flatten(1, 2) for states in (query, gradient))
            weights = _weights(queries, key[:, :seen], group)
            of_weights = given @ value[:, :seen].transpose(1, 2)
            of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype)
            of_query[:, :, part] = (of_scores @ key[:, :seen]).unflatten(1, (group, -1))
            of_key[:, :seen] += of_scores.transpose(1, 2) @ queries
            of_value[:, :seen] += weights.transpose(1, 2) @ given
        return of_query, of_key.to(key.dtype), of_value.to(value.dtype)


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention.

    Args:
        query: scaled queries of shape ``(batch * key heads, query heads per key head, positions, dim)``.
        key: keys of shape ``(batch * key heads, positions, dim)``.
        value: values, of the same shape but for ``dim``, which may be another.

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
    return cast(Tensor, CausalAttention.apply(query, key, value))


def _cuts(count: int) -> Iterator[tuple[slice, int]]:
    """The pieces of so many positions, and how many positions each sees."""
    for start in range(0, count, CUT):
        stop = min(start + CUT, count)
        yield slice(start, stop), stop


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
    **kwargs: Any,  # noqa: ANN401 - whatever a model hands on
) -> tuple[Tensor, None]:
    """The attention function for transformers' interface, which describes its arguments: what it is not made for, such
    as a mask or a window, is left to torch's."""
    is_other = any(kwargs.get(name) is not None for name in _OTHER_FORMS) or kwargs.get("is_causal") is False
    if attention_mask is not None or dropout or is_other or not getattr(module, "is_causal", True):
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
    )
    return found.reshape(batch, heads, count, -1).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)


def attend_by_products(model: PreTrainedModel) -> None:
    """Have a causal model attend by :func:`attention`, if it is on a CPU and would use torch's fused one."""
    is_causal = not model.config.is_encoder_decoder
    if is_causal and model.device.type == "cpu" and model.config._attn_implementation == _FUSED:
        model.set_attn_implementation(NAME)
