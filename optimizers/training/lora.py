"""Low-rank adapters, which are trained in place of all weights (Hu et al., 2022)."""

from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel

from hoptimizer.optimizers.training.loop import MasterWeights

ADAPTERS = "adapter"
"""The folder beside a model's weights with the adapters that are merged into them, as PEFT saves them: servers load
several of these beside one copy of the base."""


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


def merged(
    adapted: PeftModel, master_weights: MasterWeights, dtype: torch.dtype, base: str, folder: Path
) -> PreTrainedModel:
    """The model with its adapters added to its weights; the adapters are saved, too.

    Args:
        adapted: the model with adapters.
        master_weights: the trained weights of the adapters, in fp32.
        dtype: the precision of the result.
        base: what the model that they are for is called.
        folder: where :data:`ADAPTERS` is written.
    """
    adapted.float()
    master_weights.load(master_weights.state())  # restores the fp32 values of the adapters that bf16 had rounded
    adapted.active_peft_config.base_model_name_or_path = base  # and not a path on this machine
    adapted.save_pretrained(folder / ADAPTERS)
    (folder / ADAPTERS / "README.md").unlink()  # PEFT's, a form to be filled in
    return adapted.merge_and_unload().to(dtype)
