"""Optimizers: what compiles a program."""

from hoptimizer.optimizers.optimizer import Job, Optimizer
from hoptimizer.optimizers.settings import OPTIMIZERS, build_optimizer, settings_model

__all__ = ["OPTIMIZERS", "Job", "Optimizer", "build_optimizer", "settings_model"]
