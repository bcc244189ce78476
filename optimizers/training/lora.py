"""Low-rank adapters, which are trained in place of all weights (Hu et al., 2022)."""

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel

from hoptimizer.optimizers.training.loop import MasterWeights


def adapted(model: PreTrainedModel, rank: int, seed: int) -> PeftModel:
    """The model with adapters on every linear layer but the last; only the adapters are trained.

    Args:
        model: the model.
        rank: the rank of the adapters.
        seed: determines the adapters' initial weights.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear")
        return get_peft_model(model, config).eval()


def merged(adapted: PeftModel, master_weights: MasterWeights, dtype: torch.dtype) -> PreTrainedModel:
    """The model with its adapters added to its weights.

    Args:
        adapted: the model with adapters.
        master_weights: the trained weights of the adapters, in fp32.
        dtype: the precision of the result.
    """
    adapted.float()
    master_weights.load(master_weights.state())  # restores the fp32 values of the adapters that bf16 had rounded
    return adapted.merge_and_unload().to(dtype)
