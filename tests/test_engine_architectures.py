"""Architectures of transformers in the in-process engine: it writes what transformers does, or says that it can't."""

import pytest
import torch
import transformers
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, AutoTokenizer

from hoptimizer.common.errors import UserError
from hoptimizer.models.engine.chat_template import leading_tokens
from hoptimizer.models.engine.generator import Generator
from hoptimizer.models.engine.request import GenerationRequest
from hoptimizer.models.weights.store import pull

SHARED = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
SLIDING = ["sliding_attention", "full_attention"] * 2
GEMMA = {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": 8, "intermediate_size": 128}
GROUPED = {"num_key_value_heads": 2, "intermediate_size": 128}
PROMPTS = ("The river Seine flows through the city of Paris in France and", "Who wrote the book about whales?")


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(pull("smollm2-135m-instruct"))


def saved(folder, tokenizer, kind, **options):
    """A small model with random weights, large enough that its texts differ."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SHARED | {"vocab_size": len(tokenizer)} | options)
    model = AutoModelForCausalLM.from_config(config).eval()
    for weights in model.parameters():
        if weights.ndim > 1:
            weights.data.mul_(4)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("GPT2", {}),
        ("OPT", {"ffn_dim": 128, "word_embed_proj_dim": 64}),
        ("GPTNeoX", {"intermediate_size": 128}),
        ("Gemma3Text", GEMMA | {"layer_types": SLIDING}),
        ("Qwen2", GROUPED),
        ("Qwen3", GROUPED | {"head_dim": 16}),
        ("Llama", GROUPED),
        ("Mistral", GROUPED | {"sliding_window": 8}),
        ("Phi3", GROUPED),
        ("Olmo2", GROUPED),
        ("SmolLM3", GROUPED),
    ],
)
def test_writes_what_transformers_writes(kind, options, tokenizer, tmp_path):
    model = saved(tmp_path, tokenizer, kind, **options)
    prompts = [tokenizer(text)["input_ids"] for text in PROMPTS]
    ours = Generator(str(tmp_path), dtype=torch.float32)
    futures = [ours.submit(GenerationRequest(prompt, 8, ignore_end=True)) for prompt in prompts]
    for prompt, future in zip(prompts, futures, strict=True):
        tokens = list(prompt)
        for _ in range(8):
            with torch.no_grad():
                tokens.append(int(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
        assert future.result().text == tokenizer.decode(tokens[len(prompt) :])
    ours.close()


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("Lfm2", {"num_key_value_heads": 2, "layer_types": ["conv"] * 3 + ["full_attention"]}, "has layers of conv"),
        (
            "Llama4Text",
            {"num_key_value_heads": 2, "attention_chunk_size": 8, "moe_layers": [], "no_rope_layers": [1, 1, 1, 0]},
            "has layers of chunked_attention",
        ),
        (
            "Gemma4Text",
            GEMMA
            | {"layer_types": SLIDING, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 256}
            | {"num_kv_shared_layers": 2},
            "layers differ in shape",
        ),
        ("FalconH1", {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16}, "has no attention interface"),
    ],
)
def test_says_what_it_cannot_run(kind, options, reason, tokenizer, tmp_path):
    saved(tmp_path, tokenizer, kind, **options)
    with pytest.raises(UserError, match=f"local/ models can't run .*{reason}; serve it with"):
        Generator(str(tmp_path))


def test_a_text_without_a_chat_template_begins_with_the_token_that_the_tokenizer_gives_it(tokenizer, tmp_path):
    assert leading_tokens(tokenizer, templated=False) == []  # SmolLM2 has none
    beginning = AutoTokenizer.from_pretrained(pull("smollm2-135m-instruct"))
    special = [("<|im_start|>", 1)]
    beginning._tokenizer.post_processor = TemplateProcessing(single="<|im_start|> $A", special_tokens=special)
    assert leading_tokens(beginning, templated=True) == []  # its template writes it
    assert leading_tokens(beginning, templated=False) == [1]
