"""Attention of the in-process engine, beside torch's own on each sequence by itself."""

import pytest
import torch
from torch import Tensor
from transformers.modeling_utils import local_torch_dtype

from hoptimizer.models.engine.attention import AttentionMetadata, PrefillChunk, fused
from hoptimizer.models.engine.decode_attention import DecodeChunk, product
from hoptimizer.models.engine.key_values import KeyValues

HEADS, KEY_HEADS, DIM, SLOTS = 6, 2, 16, 5
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BLOCK = KeyValues(1, 1, 1, 1, torch.float32, DEVICE).block


def _states(lengths: dict[int, int], shared: int) -> tuple[KeyValues, dict[int, Tensor]]:
    """Keys and values of sequences by slot, of which the first ``shared`` are the same in all."""
    states = KeyValues(1, KEY_HEADS, DIM, SLOTS, torch.float32, DEVICE)
    states.reserve(max(lengths.values()) + BLOCK)
    common = torch.randn(1, 2, KEY_HEADS, shared, DIM, device=DEVICE)
    filled = {}
    for slot, length in lengths.items():
        filled[slot] = torch.cat([common, torch.randn(1, 2, KEY_HEADS, length - shared, DIM, device=DEVICE)], 3)
        states.load(slot, 0, filled[slot])
    return states, filled


def _expected(query: Tensor, keys: Tensor, values: Tensor, window: int | None) -> Tensor:
    """Outputs of shape ``(tokens, heads, dim)`` for queries that are the last ones of a sequence."""
    stop, count = keys.shape[1], query.shape[1]
    ago = torch.arange(stop - count, stop, device=query.device)[:, None] - torch.arange(stop, device=query.device)
    seen = (ago >= 0) & (ago < (window or stop))
    found = torch.nn.functional.scaled_dot_product_attention(
        query[None], keys[None], values[None], attn_mask=seen, scale=1.0, enable_gqa=True
    )
    return found[0].transpose(0, 1)


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("shared", [0, BLOCK + 3])
@pytest.mark.parametrize("prefill", [1, 2, 150])
@pytest.mark.parametrize("drafted", [(0, 0, 0), (2, 0, 5), (3, 3, 3)], ids=str)
def test_every_sequence_of_a_pass_sees_its_own_tokens_alone(window, shared, prefill, drafted):
    """Sequences that decode in slots 0, 2 and 4, each with a draft, one that reads its prompt between them, and none in
    slot 3; the draft in slot 4 may reach into the next block."""
    torch.manual_seed(7)
    lengths = {0: BLOCK + 44, 1: BLOCK + 34, 2: 2 * BLOCK, 4: 3 * BLOCK - 2}
    states, filled = _states(lengths, shared)
    decoded = [DecodeChunk(slot, lengths[slot], 1 + count) for slot, count in zip((0, 2, 4), drafted, strict=True)]
    chunks = [*decoded, PrefillChunk(1, lengths[1], prefill)]
    tokens = sum(chunk.count for chunk in chunks)
    query, key, value = (torch.randn(heads, tokens, DIM, device=DEVICE) for heads in (HEADS, KEY_HEADS, KEY_HEADS))
    with local_torch_dtype(torch.bfloat16):  # what another thread that loads a model sets for all
        out = AttentionMetadata(states, chunks, shared).attend(0, query, key, value, window)
    offset = 0
    for chunk in chunks:
        part = slice(offset, offset + chunk.count)
        offset += chunk.count
        before = filled[chunk.slot][0]
        keys, values = torch.cat([before[0], key[:, part]], 1), torch.cat([before[1], value[:, part]], 1)
        assert torch.allclose(out[part], _expected(query[:, part], keys, values, window), atol=1e-5), chunk
        assert torch.equal(states.read(chunk.slot, 0, chunk.stop)[0], torch.stack([keys, values]))


@pytest.mark.parametrize("prefill", [1, 2, 150, 407])
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)], ids=["fp32", "bf16"])
def test_one_kernel_attends_as_the_products_do(prefill, dtype, atol):
    torch.manual_seed(7)
    query = torch.randn(HEADS, prefill, DIM, device=DEVICE).to(dtype)
    keys, values = torch.randn(2, KEY_HEADS, 407, DIM, device=DEVICE).to(dtype)
    out = torch.empty(prefill, HEADS, DIM, device=DEVICE, dtype=dtype)
    fused(query, keys, values, out)
    expected = _expected(query.float(), keys.float(), values.float(), None)
    assert torch.allclose(out.float(), expected, atol=atol)


def test_a_pass_after_blocks_were_given_back_reads_the_new_ones():
    states, _ = _states({0: 2 * BLOCK}, 0)
    assert states.layers(1, 0, 1)[0][0].any()
    states.release(BLOCK)
    states.reserve(2 * BLOCK)
    assert not states.layers(1, 0, 1)[0][0].any()


@pytest.mark.skipif(not torch.cpu._is_avx512_bf16_supported(), reason="products of bf16 are made in fp32 here")
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("keys", [512, 1024, 2048])
def test_a_row_of_a_product_has_the_same_bits_however_many_rows_there_are(keys, dim):
    torch.manual_seed(7)
    weights = torch.softmax(torch.randn(2, 640, keys), dim=-1).bfloat16()
    values = torch.randn(2, keys, dim).bfloat16()
    whole = product(weights, values)
    for rows in (2, 17, 33, 40, 48, 66, 77, 128, 300):
        assert torch.equal(product(weights[:, 5 : 5 + rows], values), whole[:, 5 : 5 + rows]), rows
