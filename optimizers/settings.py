"""The ``optimizer`` section of a config, and optimizers built from it."""

from functools import cache

from hoptimizer.models.errors import UserError, nearest
from hoptimizer.models.options import Options, options_model
from hoptimizer.optimizers.distill import Distill
from hoptimizer.optimizers.few_shot import BootstrapFewShot, BootstrapRandomSearch, LabeledFewShot
from hoptimizer.optimizers.finetune import BootstrapFinetune
from hoptimizer.optimizers.job import Optimizer
from hoptimizer.optimizers.train_tagger import TrainTagger

OPTIMIZERS: dict[str, type[Optimizer]] = {
    "labeled_few_shot": LabeledFewShot,
    "bootstrap_few_shot": BootstrapFewShot,
    "bootstrap_random_search": BootstrapRandomSearch,
    "distill": Distill,
    "bootstrap_finetune": BootstrapFinetune,
    "train_tagger": TrainTagger,
}


@cache
def settings_model(name: str) -> type[Options]:
    """The options of an optimizer as a pydantic model.

    Raises:
        UserError: there is no optimizer of that name.
    """
    if name not in OPTIMIZERS:
        raise UserError(f"optimizer.name: there is no optimizer {name!r}; {nearest(name, OPTIMIZERS)}")
    return options_model(name, OPTIMIZERS[name])


def build_optimizer(settings: Options) -> Optimizer:
    """The optimizer that a validated ``optimizer`` section describes."""
    options = settings.model_dump()
    return OPTIMIZERS[options.pop("name")](**options)
