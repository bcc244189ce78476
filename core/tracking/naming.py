"""What runs, models, parameters, metrics, tags and files are called in MLflow."""

import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hoptimizer.config import Config

FOLDED = "workings/"
"""Begins the names of all metrics but the headlines: MLflow's pages fold by prefix, and sort by name."""

HEADLINES = ("em", "f1", "accuracy", "recall", "objective", "passages", "lm_calls", "usd")
"""The metrics of a split that keep a short name, such as ``dev/f1``, besides the one that is maximized."""

UNCOMPILED = "uncompiled"

PREFIX = "hop."
"""Begins the names of a run's tags that are ours."""
VERSION = PREFIX + "version"
"""The tag of the version of hoptimizer that made a run."""
FINGERPRINT = PREFIX + "fingerprint"
"""The tag that tells a run's piece of work from others, so that it can be continued."""
CORPUS = PREFIX + "corpus_digest"
"""The tag that tells the passages of a run's data from others."""
SHARES = PREFIX + "shares"
"""The tag of the metrics of the user's whose scores are shares, which are shown in percent."""
KIND = PREFIX + "kind"
"""The tag of what a run is: ``compile``, ``eval``, or one of those that follow."""
STARTED_FROM = PREFIX + "variant"
"""The tag of the run whose program a run compiled further, or scored."""
OF_UNCOMPILED = PREFIX + UNCOMPILED
"""The tag of a run that scored the uncompiled program of another one."""
CANDIDATE = "candidate"
"""The kind of a run that a search's candidate has of its own, below the compile's."""
NO_VARIANTS = ("compare", "study", CANDIDATE)
"""The kinds of runs that scored no variant."""

VARIANT = "variant"
"""The folder of a run or a model that holds the variant: its config, its state and its small models."""
CONFIG = f"{VARIANT}/config.yaml"
STATE = f"{VARIANT}/program.json"
PREDICTIONS = "predictions"
"""The folder of a run that holds the tables of answers."""
UNANSWERED = "unanswered"
"""The column of predictions that marks questions without a result."""

_LENGTH = 500  # of a parameter
# MLflow refuses these in the name of a model or a prompt: / : . % " '
_REFUSED = re.compile(r"[^\w-]+")


def variant_name(config: "Config", *, compiled: bool) -> str:
    """What a run is called: program, optimizer and language model, which is what differs between most runs.

    Args:
        config: what the variant is made from.
        compiled: whether an optimizer made it.

    Example:
        >>> from hoptimizer import make_config
        >>> from hoptimizer.tracking.naming import variant_name
        >>> config = make_config({"data": "atlas", "program": "ircot", "optimizer": "miprov2", "lm": "openai/gpt-4o"})
        >>> variant_name(config, compiled=True), variant_name(config, compiled=False)
        ('ircot miprov2 gpt-4o', 'ircot uncompiled gpt-4o')
    """
    return " ".join(_parts(config, config.optimizer.name if compiled else UNCOMPILED))


def model_name(config: "Config", *, compiled: bool = True) -> str:
    """What the MLflow model of a variant is called.

    Args:
        config: what it was made from.
        compiled: whether an optimizer made it.

    Example:
        >>> from hoptimizer import make_config
        >>> from hoptimizer.tracking.naming import model_name
        >>> model_name(make_config({"data": "atlas", "program": "ircot", "optimizer": "gepa", "lm": "openai/gpt-4.1"}))
        'ircot-gepa-gpt-4-1'
    """
    parts = _parts(config, config.optimizer.name if compiled else UNCOMPILED)
    return "-".join(_REFUSED.sub("-", part).strip("-") for part in parts)


def _parts(config: "Config", optimizer: str) -> list[str]:
    """Each in short: of a dotted path the name of the class, of a model's name what stands behind its provider."""
    program, by = (name.rpartition(":")[2] for name in (config.program.name, optimizer))
    return [program, by, config.lm["default"].model.rstrip("/").rpartition("/")[2]]


def params_of(config: "Config", *, compiled: bool) -> dict[str, str]:
    """What decides on a variant as MLflow's parameters; the optimizer that a config names made no uncompiled program.

    Args:
        config: what it was made from.
        compiled: whether an optimizer made it.
    """
    return as_params(config.deciding | ({} if compiled else {"optimizer": {"name": UNCOMPILED}}))


def as_params(values: Mapping[str, Any]) -> dict[str, str]:
    """Nested values as MLflow's parameters: keys joined by dots, without those that are not set."""
    return {key: _shortened(str(value)) for key, value in _flat(values).items() if value is not None}


def _shortened(text: str) -> str:
    """A text as long as a parameter may be; one that is cut ends in a hash of the whole, which tells it from others
    that begin alike."""
    if len(text) <= _LENGTH:
        return text
    end = f"… {hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
    return text[: _LENGTH - len(end)] + end


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def logged_names(metrics: Mapping[str, float], split: str, maximized: str) -> dict[str, float]:
    """The metrics of a split by the names that a run has them by: the headlines first and few, the rest folded.

    Args:
        metrics: by their names within the split, such as ``f1`` or ``f1/type/bridge``.
        split: what was answered.
        maximized: the name of the metric that is maximized.

    Example:
        >>> from hoptimizer.tracking.naming import logged_names
        >>> logged_names({"f1": 0.5, "contains": 0.75}, "dev", "f1")
        {'dev/f1': 0.5, 'workings/dev/contains': 0.75}
    """
    shown = {*HEADLINES, maximized}
    return {f"{'' if name in shown else FOLDED}{split}/{name}": value for name, value in metrics.items()}


def without_fold(metrics: Mapping[str, float]) -> dict[str, float]:
    """A run's metrics by their names as they were before some were folded, which older runs have them by.

    Example:
        >>> from hoptimizer.tracking.naming import without_fold
        >>> without_fold({"dev/f1": 0.5, "workings/dev/contains": 0.75})
        {'dev/f1': 0.5, 'dev/contains': 0.75}
    """
    return {name.removeprefix(FOLDED): value for name, value in metrics.items()}


def predictions_file(split: str, moment: str, part: int = 1) -> str:
    """The table of answers on a split, ``before`` or ``after`` compiling, or a further part of it."""
    return f"{PREDICTIONS}/{split}-{moment}{f'-{part}' if part > 1 else ''}.json"


def parts_tag(split: str, moment: str) -> str:
    """The tag that says in how many parts a table of answers is kept, where it is more than one."""
    return f"{PREFIX}{PREDICTIONS}/{split}-{moment}"
