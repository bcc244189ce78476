"""Optimizers as parts of other optimizers."""

from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny

from hoptimizer.common.errors import UserError
from hoptimizer.common.options import Options, part_options
from hoptimizer.optimizers.optimizer import Optimizer


def _validated(section: Any) -> Options:  # noqa: ANN401 - whatever the config holds
    from hoptimizer.optimizers.settings import settings_model  # it imports the optimizers that import this module

    if isinstance(section, Options):
        return section
    expected = "an optimizer's name, or a mapping with it"
    validated = part_options(section, "optimizer", expected, repr(section), settings_model)
    if getattr(validated, "budget", None):
        raise UserError(
            f"optimizer: {validated.name}, as a part of another, has a budget; give one for all, optimizer.budget"
        )
    return validated


InnerOptions = Annotated[SerializeAsAny[Options], BeforeValidator(_validated)]
"""An optimizer's name, or a mapping of its name and options."""


def built(options: Options) -> Optimizer:
    """The optimizer that validated options describe.

    Args:
        options: the optimizer's name and options.
    """
    from hoptimizer.optimizers.settings import build_optimizer

    return build_optimizer(options)
