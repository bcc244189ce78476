"""The ``optimizer`` section of a config, and optimizers built from it."""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from hoptimizer.common.options import Options, options_model, presets
from hoptimizer.common.plugins import Imported, Registry, subclass_of

if TYPE_CHECKING:
    from hoptimizer.optimizers.optimizer import Optimizer

# They bring DSPy, which takes a second to import; that a name is none is said before.
OPTIMIZERS: Mapping[str, "type[Optimizer]"] = Imported(
    {
        "labeled_few_shot": "hoptimizer.optimizers.prompt.few_shot:LabeledFewShot",
        "bootstrap_few_shot": "hoptimizer.optimizers.prompt.few_shot:BootstrapFewShot",
        "bootstrap_random_search": "hoptimizer.optimizers.prompt.few_shot_search:BootstrapRandomSearch",
        "bootstrap_optuna": "hoptimizer.optimizers.prompt.few_shot_search:BootstrapOptuna",
        "knn_few_shot": "hoptimizer.optimizers.prompt.knn:KNNFewShot",
        "copro": "hoptimizer.optimizers.prompt.instructions:COPRO",
        "miprov2": "hoptimizer.optimizers.prompt.mipro:MIPROv2",
        "simba": "hoptimizer.optimizers.prompt.simba:SIMBA",
        "gepa": "hoptimizer.optimizers.prompt.gepa:GEPA",
        "infer_rules": "hoptimizer.optimizers.prompt.instructions:InferRules",
        "better_together": "hoptimizer.optimizers.better_together:BetterTogether",
        "ensemble": "hoptimizer.optimizers.ensemble:EnsembleSearch",
        "distill": "hoptimizer.optimizers.tuning.distill:Distill",
        "bootstrap_finetune": "hoptimizer.optimizers.tuning.finetune_lm:BootstrapFinetune",
        "train_tagger": "hoptimizer.optimizers.tuning.train_tagger:TrainTagger",
    }
)


_REGISTRY: Registry["type[Optimizer]"] = Registry(
    "optimizer",
    "hoptimizer.optimizers",
    OPTIMIZERS,
    subclass_of("hoptimizer.optimizers.optimizer:Optimizer"),
    "a subclass of hoptimizer.optimizers.Optimizer",
)


def check_name(name: str) -> None:
    """Make sure that there is an optimizer of that name, without importing it.

    Raises:
        UserError: there is none.
    """
    _REGISTRY.check(name, "optimizer.name")


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


def build_optimizer(settings: Options) -> "Optimizer":
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
