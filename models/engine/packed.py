"""Linear layers whose weights lie in memory in the order in which the processor multiplies them.

Decoding reads every weight for a token or a few, so that the time it takes is that of reading. From rows as torch keeps
them, oneDNN reads bf16 weights at half the speed that memory has: it copies them into its own order again for every
product. Packed once, they are read as they are; sums are made in the same order, so that a product has the same bits.
"""

from collections import Counter

import torch
from torch import Tensor, nn

from hoptimizer.common.memory import drop_pages

# What torch.compile packs for, too: the order suits few rows, and is no worse for many.
_ROWS = 2


class PackedLinear(nn.Module):
    """A linear layer for inference on a CPU, in bf16.

    Args:
        linear: the layer whose weights are packed.

    Example:
        >>> import torch
        >>> from hoptimizer.models.engine.packed import PackedLinear
        >>> linear = torch.nn.Linear(64, 32).bfloat16()
        >>> inputs = torch.ones(2, 64, dtype=torch.bfloat16)
        >>> with torch.inference_mode():
        ...     torch.equal(PackedLinear(linear)(inputs), linear(inputs))
        True
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.bias = linear.bias
        with torch.inference_mode():
            self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight, _ROWS)

    def forward(self, inputs: Tensor) -> Tensor:
        """The layer's outputs."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self._weight, self.bias, "none", [], "")
        return out


def pack(model: nn.Module) -> None:
    """Put packed layers in the place of a model's linear ones, where they can be packed: in bf16, on a CPU.

    The weights that they were made from are lost.
    """
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")):
        return
    held = Counter(weight.data_ptr() for _, weight in model.named_parameters(remove_duplicate=False))
    for module in list(model.modules()):
        for name, layer in list(module.named_children()):
            if type(layer) is nn.Linear and layer.weight.dtype == torch.bfloat16 and layer.weight.device.type == "cpu":
                setattr(module, name, PackedLinear(layer))
                if held[layer.weight.data_ptr()] == 1:  # else it is the embeddings' weight, too
                    drop_pages(layer.weight.data_ptr(), layer.weight.nbytes)
