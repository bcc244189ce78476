"""Packed linear layers: the same bits as torch's own, faster, and without the memory of what they were made from."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from hoptimizer.common.memory import drop_pages
from hoptimizer.models.engine.limits import AMX_ROWS
from hoptimizer.models.engine.packed import JointLinear, PackedLinear, pack
from hoptimizer.models.engine.threads import Threads, by_all

SHAPES = [(896, 4864), (4864, 896), (576, 192), (1536, 1536), (64, 50)]
needs_bf16 = pytest.mark.skipif(
    not torch.cpu._is_avx512_bf16_supported(),
    reason="products of bf16 are made in fp32 here, whose sums depend on the number of rows",
)


@needs_bf16
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_packed_layer_has_the_bits_of_the_layer_however_many_rows_there_are(shape, bias):
    torch.manual_seed(7)
    linear = nn.Linear(*shape, bias=bias).bfloat16()
    packed = PackedLinear(linear)
    inputs = torch.randn(1024, shape[0], dtype=torch.bfloat16)
    with torch.inference_mode():
        whole = torch.cat([linear(rows) for rows in inputs.split(AMX_ROWS)])  # which all processors sum in one order
        assert torch.equal(packed(inputs), whole)
        assert torch.equal(packed(inputs[None])[0], whole)  # as a model's layers get them
        for rows in (2, 3, 8, 17, 33, 48, 300):
            assert torch.equal(packed(inputs[5 : 5 + rows]), whole[5 : 5 + rows]), rows


class Tied(nn.Module):
    """A model whose embeddings are the weight of its last layer, as a small language model has them."""

    def __init__(self):
        super().__init__()
        self.embed, self.inner, self.head = nn.Embedding(4096, 64), nn.Linear(64, 64), nn.Linear(64, 4096, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.inner(self.embed(tokens)))


@needs_bf16
def test_a_packed_model_computes_the_same_and_keeps_its_embeddings():
    torch.manual_seed(7)
    model = Tied().bfloat16()
    other = copy.deepcopy(model)
    tokens = torch.arange(32)
    pack(model)
    assert [type(layer) for layer in (model.embed, model.inner, model.head)] == [
        nn.Embedding,
        PackedLinear,
        PackedLinear,
    ]
    with torch.inference_mode():
        assert torch.equal(model(tokens), other(tokens))
        assert torch.equal(model.embed.weight, other.embed.weight)


class Gated(nn.Module):
    """Layers of the names whose inputs are the same."""

    def __init__(self, bias):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(896, size, bias=bias) for size in (896, 128, 128))
        self.gate_proj, self.up_proj = nn.Linear(896, 4864, bias=bias), nn.Linear(896, 4864, bias=bias)

    def forward(self, inputs):
        return torch.cat([layer(inputs) for layer in self.children()], dim=-1)


@needs_bf16
@pytest.mark.parametrize("bias", [True, False])
def test_layers_that_get_the_same_inputs_make_one_product_with_the_same_bits(bias):
    torch.manual_seed(7)
    model = Gated(bias).bfloat16()
    packed = copy.deepcopy(model)
    pack(packed)
    assert {type(layer) for layer in packed.children()} == {JointLinear}
    with torch.inference_mode():
        for rows in (2, 3, 16, 33, 300, 2):
            inputs = torch.randn(rows, 896, dtype=torch.bfloat16)
            expected = torch.cat([model(part) for part in inputs.split(AMX_ROWS)])
            assert torch.equal(packed(inputs), expected), rows


@needs_bf16
def test_products_of_several_rows_or_with_large_weights_are_made_by_all_threads_with_the_same_bits():
    torch.manual_seed(7)
    linear = nn.Linear(896, 4864).bfloat16()  # 8.7 MB
    packed, inputs, threads, seen = PackedLinear(linear), torch.randn(32, 896).bfloat16(), Threads(), []
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
    model = Tied()
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
