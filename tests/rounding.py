"""What the sums of this machine depend on."""

import torch

BATCHES_ROUND = torch.cuda.is_available() or torch.cpu._is_amx_tile_supported()
"""Whether the last digits of a sum of bf16 products depend on what is computed together: on a GPU, and by AMX."""
