"""Linear layers whose weights lie in memory in the order in which the processor multiplies them.

Decoding reads every weight for a token or a few, so that the time it takes is that of reading. From rows as torch keeps
them, oneDNN reads bf16 weights at half the speed that memory has: it copies them into its own order again for every
product. Packed once, they are read as they are. Layers that get the same inputs are packed as one, and make one
product.

A row of a product has the same bits however many rows there are, so that a text has the same result whatever else is in
its batch. In fp32, torch's own layers do not promise that: MKL sums a few rows in another order than many. In bf16, AMX
has an order of sums for up to 32 rows, and others for more; there, so many are multiplied at a time, which makes the
reading of prompts slower by about a fifth.
"""

import copy
from collections import Counter
from collections.abc import Sequence, Set
from typing import TypeGuard, TypeVar

import torch
from torch import Tensor, nn

from hoptimizer.common.memory import drop_pages
from hoptimizer.models.engine.limits import AMX_ROWS, has_amx
from hoptimizer.models.engine.threads import by_all

Model = TypeVar("Model", bound=nn.Module)

# What torch.compile packs for, too: the order suits few rows, and is no worse for many.
_ROWS = 2
# Layers of one module that get the same inputs, as the architectures with gated feed-forward layers call them.
_TOGETHER = [("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")]


class PackedLinear(nn.Module):
    """A linear layer for inference on a CPU, in bf16 or fp32.

    Args:
        linears: the layer whose weights are packed, or several of them: their outputs are laid side by side.

    Attributes:
        weight: its shape ``(outputs, inputs)`` and precision, which some architectures ask for, without its numbers.

    Example:
        >>> import torch
        >>> from hoptimizer.models.engine.packed import PackedLinear
        >>> linear = torch.nn.Linear(64, 32).bfloat16()
        >>> inputs = torch.ones(2, 64, dtype=torch.bfloat16)
        >>> with torch.inference_mode():
        ...     torch.equal(PackedLinear(linear)(inputs), linear(inputs))
        True
    """

    def __init__(self, *linears: nn.Linear) -> None:
        super().__init__()
        with torch.inference_mode():
            self.bias = None if linears[0].bias is None else torch.cat([linear.bias for linear in linears])
            weight = linears[0].weight if len(linears) == 1 else torch.cat([linear.weight for linear in linears])
            self.weight = weight.to("meta")
            self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)

    def forward(self, inputs: Tensor) -> Tensor:
        """The layer's outputs."""
        return by_all(self.weight.nbytes, self._product, inputs)

    def _product(self, inputs: Tensor) -> Tensor:
        rows = inputs.flatten(end_dim=-2)
        count = len(rows)
        if rows.dtype == torch.bfloat16 and count % AMX_ROWS == 1:  # a row alone is summed in another order than two
            rows = torch.cat([rows, rows[-1:]])
        parts = rows.split(AMX_ROWS) if rows.dtype == torch.bfloat16 and has_amx() else (rows,)
        found = [torch.ops.mkldnn._linear_pointwise(part, self._weight, self.bias, "none", [], "") for part in parts]
        return (found[0] if len(found) == 1 else torch.cat(found))[:count].view(*inputs.shape[:-1], -1)


class _JointProduct:
    """The one product of several layers that are asked with the same inputs, one after the other."""

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        self._linear = PackedLinear(*linears)
        self._sizes = [linear.out_features for linear in linears]
        # One attribute, which is read once: several threads may ask.
        self._made: tuple[Tensor | None, tuple[Tensor, ...]] = (None, ())

    def part(self, place: int, inputs: Tensor) -> Tensor:
        """The outputs of one of the layers; those of the others are kept until the last layer is asked."""
        known, outputs = self._made
        if known is not inputs:
            outputs = self._linear(inputs).split(self._sizes, dim=-1)
        self._made = (None, ()) if place == len(self._sizes) - 1 else (inputs, outputs)
        return outputs[place]


class JointLinear(nn.Module):
    """One of several layers whose product is made at once.

    Args:
        product: the product.
        place: the layer's place in it.
    """

    def __init__(self, product: _JointProduct, place: int) -> None:
        super().__init__()
        self._product, self._place = product, place

    def forward(self, inputs: Tensor) -> Tensor:
        """The layer's outputs."""
        return self._product.part(self._place, inputs)


def pack(model: nn.Module) -> None:
    """Put packed layers in the place of a model's linear ones, where they can be packed: on a CPU.

    The weights that they were made from are lost.
    """
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")):
        return
    precisions = {torch.float32} | ({torch.bfloat16} if torch.ops.mkldnn._is_mkldnn_bf16_supported() else set())
    held = Counter(weight.data_ptr() for _, weight in model.named_parameters(remove_duplicate=False))
    for module in list(model.modules()):
        layers = {name: layer for name, layer in module.named_children() if _is_packable(layer, precisions)}
        for names in _TOGETHER:
            together = [layers[name] for name in names if name in layers]
            if len(together) == len(names) and len({(one.in_features, one.bias is None) for one in together}) == 1:
                product = _JointProduct(together)
                for place, name in enumerate(names):
                    setattr(module, name, JointLinear(product, place))
                    _drop(layers.pop(name), held)
        for name, layer in layers.items():
            setattr(module, name, PackedLinear(layer))
            _drop(layer, held)


def packed_copy(model: Model) -> Model:
    """A model as it computes when it is loaded for inference, while it is being trained; on a GPU, the model itself."""
    if next(model.parameters()).is_cuda:
        return model
    copied = copy.deepcopy(model)
    pack(copied)
    return copied


def _is_packable(layer: nn.Module, precisions: Set[torch.dtype]) -> TypeGuard[nn.Linear]:
    return type(layer) is nn.Linear and layer.weight.dtype in precisions and layer.weight.device.type == "cpu"


def _drop(layer: nn.Linear, held: Counter[int]) -> None:
    if held[layer.weight.data_ptr()] == 1:  # else it is the embeddings' weight, too
        drop_pages(layer.weight.data_ptr(), layer.weight.nbytes)
