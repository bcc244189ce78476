"""Optimizers, which compile programs."""

from hoptimizer.optimizers.optimizer import CompileContext, Optimizer
from hoptimizer.optimizers.settings import OPTIMIZERS, build_optimizer, settings_model

__all__ = ["OPTIMIZERS", "CompileContext", "Optimizer", "build_optimizer", "settings_model"]
