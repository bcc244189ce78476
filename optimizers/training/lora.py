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
    """The model with adapters on every linear layer but the last; only the adapters, which are in fp32, are trained.

    Args:
        model: the model, in any precision.
        rank: the rank of the adapters.
        seed: determines the adapters' initial weights.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear")
        for layer in model.modules():
            layer.compute_dtype = torch.float32  # by which PEFT goes, or else by that of the layer's own weights
        return get_peft_model(model, config).eval()


def merged(adapted: PeftModel, master_weights: MasterWeights, base: str, folder: Path) -> PreTrainedModel:
    """The model with its adapters added to its weights, in their precision; the adapters are saved, too.

    Args:
        adapted: the model with adapters.
        master_weights: the trained weights of the adapters, in fp32.
        base: what the model that they are for is called.
        folder: where :data:`ADAPTERS` is written.
    """
    for name, weight in master_weights.weights.items():
        adapted.get_parameter(name).data = weight.data  # in fp32, so that a sum is rounded once, layer by layer
    adapted.active_peft_config.base_model_name_or_path = base  # and not a path on this machine
    # Whether embeddings belong to it, which PEFT would ask the hub, is known: they are no linear layers.
    adapted.save_pretrained(folder / ADAPTERS, save_embedding_layers=False)
    (folder / ADAPTERS / "README.md").unlink()  # PEFT's, a form to be filled in
    return adapted.merge_and_unload()
