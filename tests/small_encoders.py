"""Untrained encoders of some hundred weights, in the layouts in which retrievers' models are published."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertModel, BertTokenizer, ModernBertConfig, ModernBertModel

WORDS = [
    *(
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        ":",
        ".",
        "?",
        "the",
        "of",
        "a",
        "which",
        "sleeps",
        "eats",
        "query",
    ),
    *("passage", "cat", "heron", "salmon", "ant", "horse", "whale", "owl", "toad", "river", "forest", "desert", "bird"),
]
HIDDEN = 16
SIZES = {"hidden_size": HIDDEN, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 32}


def write(folder: Path, name: str, content: object) -> None:
    """Write JSON into a folder."""
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))


def save_tokenizer(folder: Path, lower: bool = True, longest: int = 64, added: tuple[str, ...] = ()) -> None:
    """BERT's tokenizer over a few whole words."""
    (folder / "tokenizer.json").unlink(missing_ok=True)  # it would win over what follows
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    about = {"tokenizer_class": "BertTokenizer", "do_lower_case": lower, "model_max_length": longest}
    write(folder, "tokenizer_config.json", about)
    tokenizer = BertTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(list(added))
    tokenizer.save_pretrained(folder)


def tiny_bert(folder: Path, **options: object) -> Path:
    """A BERT in transformers' layout."""
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(WORDS), max_position_embeddings=64, **SIZES)).save_pretrained(folder)
    save_tokenizer(folder, **options)
    return folder


def tiny_modernbert(folder: Path, added: tuple[str, ...] = ()) -> Path:
    """A ModernBERT in transformers' layout, whose tokenizer has more tokens."""
    special = {"pad_token_id": 0, "bos_token_id": 2, "cls_token_id": 2, "eos_token_id": 3, "sep_token_id": 3}
    size = len(WORDS) + len(added)
    torch.manual_seed(0)
    ModernBertModel(ModernBertConfig(vocab_size=size, **SIZES, **special)).save_pretrained(folder)
    save_tokenizer(folder, longest=512, added=added)
    return folder


def save_dense(folder: Path, dims: tuple[int, int], activation: str, **settings: object) -> dict[str, torch.Tensor]:
    """A module ``Dense``; gives its weights."""
    weights = {"linear.weight": torch.randn(dims[1], dims[0]) / 4}
    if settings.get("bias"):
        weights["linear.bias"] = torch.randn(dims[1]) / 4
    if settings.get("use_residual") and dims[0] != dims[1]:
        weights["residual.weight"] = torch.randn(dims[1], dims[0]) / 4
    about = {"in_features": dims[0], "out_features": dims[1], "activation_function": activation}
    write(folder, "config.json", about | settings)
    save_file(weights, folder / "model.safetensors")
    return weights


def save_modules(folder: Path, *modules: tuple[str, str]) -> None:
    """``modules.json`` of paths and types."""
    listed = [{"idx": n, "name": str(n), "path": path, "type": kind} for n, (path, kind) in enumerate(modules)]
    write(folder, "modules.json", listed)
