"""Adapters that are trained in place of all weights (Hu et al., 2022)."""

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel

from hoptimizer.optimizers.training.loop import MasterWeights


def adapted(model: PreTrainedModel, rank: int, seed: int) -> PeftModel:
    """The model with adapters of a rank on every linear layer but the last; they alone are trained."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear")
        return get_peft_model(model, config).eval()


def merged(adapted: PeftModel, masters: MasterWeights, dtype: torch.dtype) -> PreTrainedModel:
    """The model with its adapters added to its weights, in ``dtype``."""
    adapted.float()
    masters.load(masters.copy())  # what bf16 had rounded
    return adapted.merge_and_unload().to(dtype)
