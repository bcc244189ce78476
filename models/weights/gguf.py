"""Conversion of a GGUF file to bf16 safetensors, once, because dequantising it at every load would take seconds."""

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from functools import cache
from pathlib import Path
from unittest.mock import patch


def convert(source: Path, file: str, target: Path) -> None:
    """Write model, tokenizer and chat template of a GGUF file as transformers loads them.

    Args:
        source: the folder that holds the file.
        file: the GGUF file's name in it.
        target: the folder to write; it is created if need be.
    """
    import gguf
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    # Transformers reads the file three times, for the config, the weights and the tokenizer; reading a vocabulary of
    # 150,000 tokens is slow.
    with _quiet(), patch.object(gguf, "GGUFReader", cache(gguf.GGUFReader)):
        model = AutoModelForCausalLM.from_pretrained(
            source, gguf_file=file, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
        )
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=file)
        tokenizer.model_max_length = model.config.max_position_embeddings
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' bars and advice out of the terminal: the store shows its own bar."""
    from transformers.utils import logging as transformers_logging

    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        with redirect_stderr(io.StringIO()):  # one of the bars is a plain tqdm that no setting reaches
            yield
    finally:
        transformers_logging.set_verbosity(level)
