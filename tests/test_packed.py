"""Packed linear layers: the same bits as torch's own, faster, and without the memory of what they were made from."""

import copy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

from hoptimizer.common.memory import drop_pages
from hoptimizer.models.engine.limits import AMX_ROWS
from hoptimizer.models.engine.packed import JointLinear, PackedLinear, pack
from hoptimizer.models.engine.threads import Threads, by_all

SHAPES = [(896, 4864), (4864, 896), (576, 192), (1536, 1536), (64, 50)]
PRECISIONS = [
    pytest.param(
        torch.bfloat16,
        marks=pytest.mark.skipif(not torch.cpu._is_avx512_bf16_supported(), reason="bf16 is not multiplied here"),
    ),
    torch.float32,
]


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_packed_layer_gives_a_row_the_same_bits_however_many_there_are(shape, bias, dtype):
    torch.manual_seed(7)
    linear = nn.Linear(*shape, bias=bias).to(dtype)
    packed = PackedLinear(linear)
    inputs = torch.randn(1024, shape[0], dtype=dtype)
    with torch.inference_mode():
        whole = packed(inputs)
        # Torch's own layer sums up to so many rows of bf16 in one order on all processors; in fp32, MKL has its own.
        parts = torch.cat([linear(rows) for rows in inputs.split(AMX_ROWS)])
        assert torch.equal(whole, parts) or (dtype == torch.float32 and torch.allclose(whole, parts, atol=1e-5))
        assert torch.equal(packed(inputs.view(4, 256, -1)), whole.view(4, 256, -1))  # as a model's layers get them
        for rows in (1, 2, 3, 8, 17, 33, 48, 300):
            assert torch.equal(packed(inputs[5 : 5 + rows]), whole[5 : 5 + rows]), rows


class Tied(nn.Module):
    """A model whose embeddings are the weight of its last layer, as a small language model has them."""

    def __init__(self):
        super().__init__()
        self.embed, self.inner, self.head = nn.Embedding(4096, 64), nn.Linear(64, 64), nn.Linear(64, 4096, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.inner(self.embed(tokens)))


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
def test_a_packed_model_computes_the_same_and_keeps_its_embeddings(dtype):
    torch.manual_seed(7)
    model = Tied().to(dtype)
    other = copy.deepcopy(model)
    tokens = torch.arange(32)
    pack(model)
    assert [type(layer) for layer in (model.embed, model.inner, model.head)] == [
        nn.Embedding,
        PackedLinear,
        PackedLinear,
    ]
    with torch.inference_mode():
        torch.testing.assert_close(model(tokens), other(tokens))
        assert torch.equal(model.embed.weight, other.embed.weight)


class Gated(nn.Module):
    """Layers of the names whose inputs are the same."""

    def __init__(self, bias):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(896, size, bias=bias) for size in (896, 128, 128))
        self.gate_proj, self.up_proj = nn.Linear(896, 4864, bias=bias), nn.Linear(896, 4864, bias=bias)

    def forward(self, inputs):
        return torch.cat([layer(inputs) for layer in self.children()], dim=-1)


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_layers_that_get_the_same_inputs_make_one_product_with_the_same_bits(bias, dtype):
    torch.manual_seed(7)
    model = Gated(bias).to(dtype)
    packed = copy.deepcopy(model)
    alone = [PackedLinear(copy.deepcopy(layer)) for layer in model.children()]
    pack(packed)
    assert {type(layer) for layer in packed.children()} == {JointLinear}
    with torch.inference_mode():
        for rows in (2, 3, 16, 33, 300, 2):
            inputs = torch.randn(rows, 896, dtype=dtype)
            assert torch.equal(packed(inputs), torch.cat([layer(inputs) for layer in alone], dim=-1)), rows


def test_threads_that_ask_for_the_same_joint_product_at_once_get_their_own():
    torch.manual_seed(7)
    model = Gated(bias=False)
    pack(model)
    inputs = [torch.randn(1 + place, 896) for place in range(8)]
    with torch.inference_mode():
        alone = [model(one) for one in inputs]

    def asked(place):
        with torch.inference_mode():
            return place, model(inputs[place])

    with ThreadPoolExecutor(4) as threads:
        for place, found in threads.map(asked, list(range(8)) * 20):
            assert torch.equal(found, alone[place])


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
def test_products_of_several_rows_or_with_large_weights_are_made_by_all_threads_with_the_same_bits(dtype):
    torch.manual_seed(7)
    linear = nn.Linear(896, 4864).to(dtype)  # 8.7 MB, or twice as much
    packed, inputs, threads, seen = PackedLinear(linear), torch.randn(32, 896, dtype=dtype), Threads(), []
    with torch.inference_mode():
        whole = packed(inputs)
        for tokens in (1, 32, 1000):
            with threads.of(tokens):
                small, large = (by_all(size, torch.get_num_threads) for size in (1 << 20, linear.weight.nbytes))
                seen.append((torch.get_num_threads(), small, large))
                assert torch.equal(packed(inputs), whole)
    every = torch.get_num_threads()
    assert seen == [(1, 1, every), (1, every, every), (every, every, every)]


def test_layers_in_other_precisions_are_left_as_they_are():
    model = Tied().double()
    pack(model)
    assert isinstance(model.inner, nn.Linear)


def test_dropped_pages_of_a_mapped_file_leave_the_process_and_read_as_the_file(tmp_path):
    def resident():
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
        return int(status["RssFile"].split()[0]) * 1024

    size = 64 << 20
    (tmp_path / "weights").write_bytes(b"\x07" * size)
    mapped = torch.from_file(str(tmp_path / "weights"), size=size, dtype=torch.uint8)
    before = resident()
    assert int(mapped.sum()) == 7 * size
    read = resident()
    drop_pages(mapped.data_ptr(), size)
    assert read - before > size // 2
    assert resident() < read - size // 2
    assert int(mapped[-1]) == 7
    drop_pages(mapped.data_ptr() + 1, 10)  # less than a page: nothing happens
