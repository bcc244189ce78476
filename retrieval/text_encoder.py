"""Encoders of transformers, loaded without running code that comes with them."""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForTextEncoding,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hoptimizer.common.errors import UserError
from hoptimizer.models.engine.loading import loading


def load_text_encoder(folder: Path, key: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, Any]:
    """An encoder in fp32, its tokenizer, which pads at the right, and its config.

    Args:
        folder: weights as safetensors, config and tokenizer.
        key: the config's key that names it, for messages.

    Raises:
        UserError: it can't be loaded, or its weights are incomplete.
    """
    name = str(folder)
    with loading(name, "an encoder"):
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
        # Of T5 the encoder alone.
        auto = AutoModelForTextEncoding if config.is_encoder_decoder else AutoModel
        model, found = auto.from_pretrained(
            name,
            config=config,
            dtype=torch.float32,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
        tokenizer = AutoTokenizer.from_pretrained(name, padding_side="right", trust_remote_code=False)
    # The pooler on BERT's first token is no part of what is used, and many checkpoints lack it.
    if missing := sorted(name for name in found["missing_keys"] if not name.startswith("pooler.")):
        raise UserError(f"{key}: the weights in {folder} lack {missing[0]}; take another checkpoint")
    return model.eval(), tokenizer, config
