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
from hoptimizer.retrieval.encoders.model_files import are_pickled


def load_text_encoder(folder: Path, key: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, Any]:
    """An encoder in fp32, its tokenizer, which pads at the right, and its config.

    Args:
        folder: weights, config and tokenizer.
        key: the config's key that names it, for messages.

    Raises:
        UserError: it can't be loaded, or its weights are incomplete.
    """
    name = str(folder)
    with loading(name, "an encoder"):
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
        # Of T5 the encoder alone.
        auto = AutoModelForTextEncoding if config.is_encoder_decoder else AutoModel
        model, tokenizer, lacking = load_checked(name, config, auto)
    # The pooler on BERT's first token is no part of what is used, and many checkpoints lack it.
    if missing := [name for name in lacking if not name.startswith("pooler.")]:
        raise UserError(f"{key}: the weights in {folder} lack {missing[0]}; take another checkpoint")
    return model, tokenizer, config


def load_checked(folder: str, config: Any, auto: Any) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, list[str]]:  # noqa: ANN401 - transformers' classes
    """A model in fp32 for inference, without code of its own, from safetensors or, where there are none, from pickles
    that hold nothing but tensors; its tokenizer, which pads at the right; and the names of weights that the folder
    lacks, in order.

    Args:
        folder: weights, config and tokenizer.
        config: the model's config, of transformers.
        auto: transformers' class that loads models of its kind.
    """
    model, found = auto.from_pretrained(
        folder,
        config=config,
        dtype=torch.float32,
        trust_remote_code=False,
        use_safetensors=not are_pickled(Path(folder)),
        weights_only=True,
        output_loading_info=True,
    )
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="right", trust_remote_code=False)
    return model.eval(), tokenizer, sorted(found["missing_keys"])


def readable_tokens(model: PreTrainedModel, most: int) -> int:
    """How many tokens of a text a model has places for, up to a number.

    Args:
        model: of transformers.
        most: what is wanted of it.
    """
    places: int | None = getattr(model.config, "max_position_embeddings", None)
    if places is None:
        return most
    # RoBERTa and its kin count places from behind the padding token's number.
    paddings = [
        getattr(module, "padding_idx", None)
        for name, module in model.named_modules()
        if name.endswith("position_embeddings")
    ]
    return min(most, places - max((one + 1 for one in paddings if one is not None), default=0))
