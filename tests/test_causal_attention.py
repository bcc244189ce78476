"""Attention from plain products: torch's own outputs and gradients, and what it is not made for left to torch."""

import json

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig

from hoptimizer.optimizers.training.causal_attention import NAME, attend_by_products, attention

SHAPES = [(2, 1, 1, 16), (2, 3, 64, 16), (6, 2, 128, 16), (3, 4, 300, 16), (3, 4, 300, 24)]


def fused(query, key, value):
    key, value = (states[:, None].expand(-1, query.shape[1], -1, -1) for states in (key, value))
    return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=1.0)


def gradients(attend, query, key, value, given):
    return torch.autograd.grad(attend(query, key, value), (query, key, value), given)


def random_inputs(batch, group, count, dim, dtype):
    torch.manual_seed(7)
    shapes = [(batch, group, count, 16), (batch, count, 16), (batch, count, dim)]
    inputs = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]
    return inputs, torch.randn(batch, group, count, dim, dtype=dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_outputs_and_gradients_are_those_of_torch(shape):
    inputs, given = random_inputs(*shape, torch.float32)
    assert torch.allclose(attention(*inputs), fused(*inputs), atol=1e-5)
    for ours, theirs in zip(gradients(attention, *inputs, given), gradients(fused, *inputs, given), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4)


def test_in_bf16_the_gradients_are_as_close_to_those_in_fp32_as_products_in_bf16_are():
    inputs, given = random_inputs(6, 3, 300, 16, torch.float32)
    exact = gradients(fused, *inputs, given)
    rounded = [one.detach().bfloat16().requires_grad_() for one in inputs]
    for ours, true in zip(gradients(attention, *rounded, given.bfloat16()), exact, strict=True):
        assert (ours.float() - true).norm() < 0.03 * true.norm()


def model(config, **changes):
    torch.manual_seed(7)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return AutoModelForCausalLM.from_config(config(**sizes, **heads, **changes)).eval()


def loss_and_gradient(one, **inputs):
    one.zero_grad()
    ids = torch.arange(300)[None] % 64
    loss = one(input_ids=ids, labels=ids, **inputs).loss
    loss.backward()
    return loss.item(), one.model.layers[0].self_attn.q_proj.weight.grad.clone()


MASK = torch.ones(1, 300, dtype=torch.long).index_fill_(1, torch.arange(7), 0)


@pytest.mark.parametrize(
    ("config", "changes", "inputs"),
    [
        (LlamaConfig, {}, {}),
        (LlamaConfig, {}, {"attention_mask": MASK}),
        (MistralConfig, {"sliding_window": 50}, {}),
    ],
    ids=["causal", "masked", "windowed"],
)
def test_a_model_has_the_same_loss_and_gradients(config, changes, inputs):
    one = model(config, **changes)
    before, its = loss_and_gradient(one, **inputs)
    attend_by_products(one)
    assert one.config._attn_implementation == NAME
    after, ours = loss_and_gradient(one, **inputs)
    assert after == pytest.approx(before, abs=1e-5)
    assert torch.allclose(ours, its, atol=1e-6)


def test_a_saved_model_does_not_name_it(tmp_path):
    one = model(LlamaConfig)
    attend_by_products(one)
    one.save_pretrained(tmp_path)
    assert NAME not in json.dumps(json.loads((tmp_path / "config.json").read_text(encoding="utf-8")))


def test_a_model_that_attends_eagerly_is_left_as_it_is():
    one = model(LlamaConfig)
    one.set_attn_implementation("eager")
    attend_by_products(one)
    assert one.config._attn_implementation == "eager"
