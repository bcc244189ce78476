"""Optimizers as parts of other optimizers."""

from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny, ValidationError

from hoptimizer.common.errors import UserError
from hoptimizer.common.options import Options
from hoptimizer.common.validation import explain
from hoptimizer.optimizers.optimizer import Optimizer


def _validated(section: Any) -> Options:  # noqa: ANN401 - whatever the config holds
    from hoptimizer.optimizers.settings import settings_model  # it imports the optimizers that import this module

    if isinstance(section, Options):
        return section
    options = {"name": section} if isinstance(section, str) else section
    if not isinstance(options, dict) or not isinstance(options.get("name"), str):
        raise UserError(f"optimizer: expected an optimizer's name, or a mapping with it, got {section!r}")
    name = options["name"]
    model = settings_model(name)
    try:
        validated = model.model_validate(options)
    except ValidationError as error:
        raise UserError(f"optimizer: {explain(error, model, prefix=f'{name}.')}") from None
    if getattr(validated, "budget", None):
        raise UserError(f"optimizer: {name}, as a part of another, has a budget; give one for all, optimizer.budget")
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
