"""Language models from config, the in-process engine, small models and the weights store."""

from importlib import import_module
from typing import TYPE_CHECKING

from hoptimizer.common.errors import UserError
from hoptimizer.common.paths import home
from hoptimizer.models.settings import LMSettings

if TYPE_CHECKING:
    from hoptimizer.models.lm import build_adapter, build_lm, check_lm

__all__ = ["LMSettings", "UserError", "build_adapter", "build_lm", "check_lm", "home"]


def __getattr__(name: str) -> object:
    # DSPy and torch take seconds to import; whoever reads settings or help does not wait for them.
    if name in ("build_adapter", "build_lm", "check_lm"):
        return getattr(import_module("hoptimizer.models.lm"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
