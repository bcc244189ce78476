"""Optimizers, which compile programs."""

from typing import TYPE_CHECKING

import lazy_loader

from hoptimizer.optimizers.settings import OPTIMIZERS, build_optimizer, settings_model

if TYPE_CHECKING:
    from hoptimizer.optimizers.optimizer import CompileContext, Optimizer

__all__ = ["OPTIMIZERS", "CompileContext", "Optimizer", "build_optimizer", "settings_model"]

# Imported when first used: they bring DSPy.
__getattr__, __dir__, _ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "optimizer": ["CompileContext", "Optimizer"],
        "settings": ["OPTIMIZERS", "build_optimizer", "settings_model"],
    },
)
