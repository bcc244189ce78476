"""In what runs differ: the language model, and every setting that is not the same in all."""

from collections.abc import Mapping, Sequence

from mlflow.entities import Run

from hoptimizer.config import Config
from hoptimizer.tracking.reading import StoredRuns

MODEL = "lm.default.model"
# What an option belongs to is chosen by this key of its section.
_NAME = "name"
# How many questions there are decides on nothing but which of them are asked, and what a compile learns from.
_SIZES = ("data.train", "data.dev", "data.test")


def differing(runs: Sequence[Run]) -> list[dict[str, str]]:
    """The language model of each run, and of each its values of the settings in which they differ.

    An option is compared between the runs whose section has the same name: that another program has no such option is
    no difference of its own.

    Args:
        runs: in the order of display.

    Returns:
        for each run the settings that it has, by their keys; the same order of keys in all.
    """
    params = [_deciding(run) for run in runs]
    keys = list(dict.fromkeys(key for own in params for key in own))
    wanted = [MODEL, *(key for key in keys if key != MODEL and _differs(key, params))]
    return [{key: own[key] for key in wanted if key in own} for own in params]


def _deciding(run: Run) -> dict[str, str]:
    """The parameters that decide on a run's result: an uncompiled program has no optimizer, and no training data.

    A compile adds what it told DSPy's optimizers, which is no setting of the config.
    """
    params = {key: value for key, value in run.data.params.items() if key.partition(".")[0] in Config.model_fields}
    if StoredRuns.is_compiled(run):
        return {key: value for key, value in params.items() if key != "data.test"}
    return {key: value for key, value in params.items() if not key.startswith("optimizer.") and key not in _SIZES}


def _differs(key: str, params: Sequence[Mapping[str, str]]) -> bool:
    if key in _SIZES:
        return len({own[key] for own in params if key in own}) > 1
    # Roles of language models have no names; what one of them lacks in a run is said by its model.
    of_role = key.startswith("lm.")
    name = f"{key.rpartition('.')[0]}.model" if of_role else f"{key.partition('.')[0]}.{_NAME}"
    if key == name or not any(name in own for own in params):
        return len({own.get(key) for own in params}) > 1
    groups: dict[str, set[str | None]] = {}
    for own in params:
        if name in own:
            groups.setdefault("" if of_role else own[name], set()).add(own.get(key))
    return any(len(values) > 1 for values in groups.values())
