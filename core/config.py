"""One YAML file and ``key=value`` arguments become a validated config."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, SerializeAsAny, ValidationError, model_validator

from hoptimizer.common.errors import UserError, nearest
from hoptimizer.common.options import Options, chosen, named
from hoptimizer.common.plugins import DOTTED, nested, sources
from hoptimizer.common.strict import read_mapping
from hoptimizer.common.urls import public
from hoptimizer.common.validation import Section, explain
from hoptimizer.eval.datasets.settings import DataSettings
from hoptimizer.eval.failures import MAX_UNANSWERED
from hoptimizer.executors import settings as executors
from hoptimizer.layers import Layers
from hoptimizer.models.folder import fingerprints
from hoptimizer.models.settings import LMSettings
from hoptimizer.optimizers import settings as optimizers
from hoptimizer.programs import settings as programs
from hoptimizer.retrieval import settings as retrievers
from hoptimizer.retrieval.options import RetrieverOptions
from hoptimizer.tracking.settings import TrackingSettings
from hoptimizer.upgrade import upgraded_config

if TYPE_CHECKING:
    from hoptimizer.eval.objective import Objective

DEFAULT_LM = "local/qwen2.5-coder-0.5b-instruct"
# Roles of language models besides the names of a program's steps.
LM_ROLES = ("default", "teacher", "reflection", "judge")
_NOT_DECIDING = ("tracking", "workers", "max_unanswered", "executor")
# Options of optimizers that name a model.
_STARTED_FROM = ("base", "encoder")
_log = logging.getLogger(__name__)


def _weighable(value: object) -> object:
    from hoptimizer.eval.objective import Objective  # brings DSPy

    Objective.parse(value)  # says what is wrong with it
    return value


Metric = Annotated[str | dict[str, float], BeforeValidator(_weighable)]


class PlainConfig(Section):
    """What of a config can be read without DSPy, which takes most of a second to import.

    That is all but the options of the program and the optimizer, and the metric.
    """

    model_config = ConfigDict(frozen=True)

    data: DataSettings
    program: Any
    retriever: SerializeAsAny[RetrieverOptions]
    lm: dict[str, LMSettings]
    optimizer: Any
    metric: Any = None
    tracking: TrackingSettings = Field(default_factory=TrackingSettings)
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 7  # as NumPy takes it
    workers: Annotated[int, Field(ge=1)] = 64
    max_unanswered: Annotated[float, Field(ge=0, lt=1)] = MAX_UNANSWERED
    executor: SerializeAsAny[Options]

    @model_validator(mode="before")
    @classmethod
    def _sections(cls, values: dict[str, Any]) -> dict[str, Any]:
        return _by_name(values)


class Config(PlainConfig):
    """Everything a command needs to know.

    Attributes:
        data: the data set and how much of each split is used.
        program: the program's name and options.
        retriever: how passages are found.
        lm: language models: ``default``, ``teacher``, ``reflection`` (it proposes instructions), ``judge``, or a step's
            name.
        optimizer: the optimizer's name and options.
        metric: what is optimized and compared: a metric, or weights of metrics and counts.
        tracking: the MLflow store.
        seed: decides on every random choice.
        workers: questions under way at once.
        max_unanswered: the greatest share of the questions that may be left out because a call or a search got no
            answer; with more of them a run fails.
        executor: what answers questions, and in a compile the calls of ``local/`` models: this process, or the workers
            of a Ray cluster.

    Example:
        >>> from hoptimizer import Config, make_config
        >>> config: Config = make_config({"data": "atlas", "program": "ircot", "lm": "openai/gpt-4o"})
        >>> config.program.name, config.lm["default"].model, config.metric
        ('ircot', 'openai/gpt-4o', 'f1')
    """

    program: SerializeAsAny[Options]
    optimizer: SerializeAsAny[Options]
    metric: Metric = "f1"

    @model_validator(mode="before")
    @classmethod
    def _sections(cls, values: dict[str, Any]) -> dict[str, Any]:
        values = _by_name(values)
        values["program"] = chosen(values["program"], "program", programs.settings_model)
        values["optimizer"] = chosen(values["optimizer"], "optimizer", optimizers.settings_model)
        return values

    @model_validator(mode="after")
    def _known_names(self) -> "Config":
        from hoptimizer.eval.objective import NO_JUDGE

        if self.objective.is_judged and "judge" not in self.lm:
            raise UserError(NO_JUDGE)
        steps = programs.steps(self.program.name)
        for role in self.lm:
            if role not in LM_ROLES and role not in steps:
                raise UserError(f"lm.{role}: no such step or role; {nearest(role, [*LM_ROLES, *steps])}")
        return self

    def public(self) -> dict[str, Any]:
        """The resolved config as plain data, without secrets."""
        values = self.model_dump(mode="json")
        # A part of the user's own may take a secret.
        values |= {section: public(values[section]) for section in ("program", "optimizer", "retriever")}
        return values | {"retriever": values["retriever"] | {"k": self.k}}

    @property
    def k(self) -> int:
        """Passages per retrieval: as ``retriever.k`` says, else the program's own number."""
        return self.retriever.k or programs.default_k(self.program.name)

    @property
    def deciding(self) -> dict[str, Any]:
        """Of the public config what decides on a result, which its place and how servers are dealt with do not."""
        public = {key: value for key, value in self.public().items() if key not in _NOT_DECIDING}
        return public | {"lm": {role: LMSettings.deciding(settings) for role, settings in public["lm"].items()}}

    @property
    def digest(self) -> str:
        """Hash of everything that decides on a result, with what folders of models and code of one's own hold."""
        optimizing = [*nested(self.optimizer)]
        started_from = [getattr(options, key, None) for options in optimizing for key in _STARTED_FROM]
        models = [*self.local_models, *getattr(self.program, "steps", {}).values(), *self.retriever.encoders]
        models += [name for name in started_from if isinstance(name, str)]
        parts = {
            "programs": [self.program.name],
            "retrievers": [options.name for options in nested(self.retriever)],
            "optimizers": [options.name for options in optimizing],
            "metrics": [self.metric] if isinstance(self.metric, str) else self.metric,
        }
        text = json.dumps(self.deciding, sort_keys=True) + fingerprints(models) + sources(parts)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def local_models(self) -> list[str]:
        """The names of the language models that run in this process."""
        return [settings.name for settings in self.lm.values() if settings.is_local]

    @property
    def objective(self) -> "Objective":
        """What ``metric`` asks for, its judge not yet at hand."""
        from hoptimizer.eval.objective import Objective

        return Objective.parse(self.metric)

    @property
    def experiment(self) -> str:
        """Name of the MLflow experiment."""
        return self.tracking.experiment or Path(self.data.name).name


def _by_name(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with every section by its name, and with the validated options of ``retriever`` and ``executor``."""
    values = dict(values)
    values["program"] = named(values.get("program"), "program", "rag", programs.check_name)
    values["optimizer"] = named(values.get("optimizer"), "optimizer", "bootstrap_random_search", optimizers.check_name)
    for key, default, model in (
        ("retriever", "colbert", retrievers.settings_model),
        ("executor", executors.IN_PROCESS, executors.settings_model),
    ):
        values[key] = chosen(named(values.get(key), key, default), key, model)
    lm = {} if values.get("lm") is None else values["lm"]
    if not isinstance(lm, str | dict):
        raise UserError(
            f"lm: expected a model, or models by role as in {{default: {DEFAULT_LM}}}; got {type(lm).__name__}"
        )
    lm = {"default": lm} if isinstance(lm, str) or "model" in lm else lm
    default = lm.get("default", DEFAULT_LM)
    # `lm.default.temperature=0.7` alone keeps the default model.
    lm = lm | {"default": {"model": DEFAULT_LM} | default if isinstance(default, dict) else default}
    values["lm"] = lm
    return values


def load_config(
    path: Path | None = None,
    overrides: Sequence[str] = (),
    base: dict[str, Any] | None = None,
    check: Callable[[PlainConfig], None] | None = None,
) -> Config:
    """Read a config.

    Args:
        path: a YAML file, or ``None`` for none.
        overrides: ``key=value`` arguments, dotted keys; they win over the file.
        base: the config of a variant as plain data, which may be a stranger's; the file and the arguments win over it.
        check: raises a ``UserError`` where what can be read without DSPy is not as it has to be.

    A name and its options may be given in any order and place. Where the file or the arguments name something else than
    what they win over, the options that were set for that are dropped, and a warning of the logger
    ``hoptimizer.config`` tells which; :class:`~hoptimizer.layers.Layers` has the whole rule.

    Raises:
        UserError: the file is missing or malformed, a key or value is not known, or the base names code of its own; the
            message names it.

    Example:
        >>> from hoptimizer import load_config
        >>> load_config(None, ["data=atlas", "program=ircot", "program.max_steps=4"]).program.max_steps
        4
    """
    source = f"{path}: " if path else ""
    layers = Layers(read_mapping(path) if path else {}, variant=base)
    layers.add_words(overrides)
    config = make_config(layers.resolved(), source, check)
    for note in layers.notes(config.public()):
        _log.warning(note)
    return config


def make_config(
    values: Any,  # noqa: ANN401 - validated here
    source: str = "",
    check: Callable[[PlainConfig], None] | None = None,
) -> Config:
    """Validate plain data as a config.

    Args:
        values: what a YAML file holds.
        source: starts the message of an error, e.g. ``"my.yaml: "``.
        check: as :func:`load_config` takes it.

    Example:
        >>> from hoptimizer import make_config
        >>> make_config({"data": "atlas", "program": {"name": "rag", "reader": "cot"}}).program.reader
        'cot'
    """
    if not isinstance(values, dict):
        raise UserError(f"{source}expected a mapping of keys, got {type(values).__name__}")
    try:
        values = upgraded_config(values)
        plain = PlainConfig.model_validate(values)  # a mistake in it is said at once
        if check:
            check(plain)
        return Config.model_validate(values)
    except ValidationError as error:
        raise UserError(source + explain(error, Config)) from _raised(error)
    except UserError as error:
        raise UserError(f"{source}{error}") from None


def _raised(error: ValidationError) -> BaseException | None:
    """What a user's own module raised. Nothing else is chained: pydantic's error shows values, and one may be a key."""
    found = error.errors()[0].get("ctx", {}).get("error")
    return found.__cause__ if isinstance(found, UserError) else None


def json_schema() -> dict[str, Any]:
    """JSON schema of a config file, for editors."""
    schema = Config.model_json_schema()
    schema["properties"]["program"] = _choices(programs.PROGRAMS, programs.settings_model)
    schema["properties"]["optimizer"] = _choices(optimizers.OPTIMIZERS, optimizers.settings_model)
    schema["properties"]["retriever"] = _choices(retrievers.OWN, retrievers.settings_model)
    schema["properties"]["executor"] = _choices(executors.EXECUTORS, executors.settings_model, own=False)
    for choice in [choice for section in schema["properties"].values() for choice in section.get("anyOf", ())]:
        schema["$defs"] |= choice.pop("$defs", {})  # references are looked up from the top
    schema["required"] = ["data"]
    return schema


def _choices(names: Iterable[str], model: Callable[[str], type[Options]], *, own: bool = True) -> dict[str, Any]:
    """Ours with their options, and a user's own by its dotted path, whose options are not known here."""
    path = {"type": "string", "pattern": DOTTED}
    options: list[dict[str, Any]] = (
        [path, {"type": "object", "properties": {"name": path}, "required": ["name"]}] if own else []
    )
    for name in names:
        option = model(name).model_json_schema()
        option["properties"]["name"] = {"const": name}
        options.append(option)
    return {"anyOf": [{"enum": list(names)}, *options]}
