"""Language models from settings; beside them the in-process engine, small models and the weights store.

The rooms hold the rest: :mod:`hoptimizer.models.engine` runs ``local/NAME`` models, :mod:`hoptimizer.models.weights`
fetches them, and :mod:`hoptimizer.models.small` has the models that take steps of a program over.
"""

from typing import TYPE_CHECKING

import lazy_loader

from hoptimizer.models.settings import LMSettings

if TYPE_CHECKING:
    from hoptimizer.models.check import check_lm
    from hoptimizer.models.lm import build_adapter, build_lm

__all__ = ["LMSettings", "build_adapter", "build_lm", "check_lm"]

# DSPy and torch take seconds to import; whoever reads settings or help does not wait for them.
__getattr__, __dir__, _ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "check": ["check_lm"],
        "lm": ["build_adapter", "build_lm"],
        "settings": ["LMSettings"],
    },
)
