"""What the sums of this machine depend on."""

import torch

from hoptimizer.models.engine.limits import has_amx

BATCHES_ROUND = torch.cuda.is_available() or has_amx()
"""Whether the last digits of a sum of bf16 products depend on what is computed together: on a GPU, and by AMX."""
