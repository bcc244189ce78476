"""The ``optimizer`` section of a config, and optimizers built from it."""

from functools import cache

from hoptimizer.common.options import Options, options_model, presets
from hoptimizer.common.plugins import Registry, subclass_of
from hoptimizer.optimizers.better_together import BetterTogether
from hoptimizer.optimizers.ensemble import EnsembleSearch
from hoptimizer.optimizers.optimizer import Optimizer
from hoptimizer.optimizers.prompt.few_shot import BootstrapFewShot, LabeledFewShot
from hoptimizer.optimizers.prompt.few_shot_search import BootstrapOptuna, BootstrapRandomSearch
from hoptimizer.optimizers.prompt.gepa import GEPA
from hoptimizer.optimizers.prompt.instructions import COPRO, InferRules
from hoptimizer.optimizers.prompt.knn import KNNFewShot
from hoptimizer.optimizers.prompt.mipro import MIPROv2
from hoptimizer.optimizers.prompt.simba import SIMBA
from hoptimizer.optimizers.tuning.distill import Distill
from hoptimizer.optimizers.tuning.finetune_lm import BootstrapFinetune
from hoptimizer.optimizers.tuning.train_tagger import TrainTagger

OPTIMIZERS: dict[str, type[Optimizer]] = {
    "labeled_few_shot": LabeledFewShot,
    "bootstrap_few_shot": BootstrapFewShot,
    "bootstrap_random_search": BootstrapRandomSearch,
    "bootstrap_optuna": BootstrapOptuna,
    "knn_few_shot": KNNFewShot,
    "copro": COPRO,
    "miprov2": MIPROv2,
    "simba": SIMBA,
    "gepa": GEPA,
    "infer_rules": InferRules,
    "better_together": BetterTogether,
    "ensemble": EnsembleSearch,
    "distill": Distill,
    "bootstrap_finetune": BootstrapFinetune,
    "train_tagger": TrainTagger,
}


_REGISTRY: Registry[type[Optimizer]] = Registry(
    "optimizer",
    "hoptimizer.optimizers",
    OPTIMIZERS,
    subclass_of(Optimizer),
    "a subclass of hoptimizer.optimizers.Optimizer",
)


@cache
def settings_model(name: str) -> type[Options]:
    """The options of an optimizer as a pydantic model.

    Args:
        name: the optimizer's name in a config.

    Raises:
        UserError: neither an optimizer nor an entry point of ``hoptimizer.optimizers`` has that name.

    Example:
        >>> from hoptimizer.optimizers import settings_model
        >>> settings_model("labeled_few_shot")(name="labeled_few_shot", k=4).k
        4
    """
    return options_model(name, _REGISTRY.get(name, "optimizer.name"))


def build_optimizer(settings: Options) -> Optimizer:
    """The optimizer that a validated ``optimizer`` section describes.

    Args:
        settings: the section, as an instance of the optimizer's :func:`settings_model`.
    Example:
        >>> from hoptimizer.optimizers import build_optimizer, settings_model
        >>> type(build_optimizer(settings_model("labeled_few_shot")(name="labeled_few_shot"))).__name__
        'LabeledFewShot'
    """
    options = {name: getattr(settings, name) for name in type(settings).model_fields}
    optimizer = _REGISTRY.get(options.pop("name"), "optimizer.name")
    if presets(optimizer):
        del options["preset"]  # what it sets is among the options
    return optimizer(**options)
