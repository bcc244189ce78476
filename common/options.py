"""A pydantic model from a constructor, so that options and their defaults are written once."""

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError, create_model, model_validator
from pydantic.errors import PydanticUserError

from hoptimizer.common.errors import UserError
from hoptimizer.common.validation import Section, explain

Positive = Annotated[int, Field(ge=1)]
"""A number of things of which there is at least one."""


class Options(Section):
    """A section of a config that chooses something by its name.

    Attributes:
        name: what is chosen; its options are the fields of the subclass.
    """

    model_config = ConfigDict(frozen=True)

    name: str


def part_options(
    section: Any,  # noqa: ANN401 - whatever the config holds
    key: str,
    expected: str,
    got: str,
    model_of: Callable[[str], type[Options]],
) -> Options:
    """The validated options of something that stands within another of its kind: its name, or a mapping with it.

    Args:
        section: what the config holds there.
        key: the config's key, for messages.
        expected: what is expected there, in words.
        got: what the section is, in words.
        model_of: the options' model, by the name.

    Raises:
        UserError: it is something else, nothing has that name, or an option is wrong.
    """
    options = {"name": section} if isinstance(section, str) else section
    if not isinstance(options, dict) or not isinstance(name := options.get("name"), str):
        raise UserError(f"{key}: expected {expected}, got {got}")
    model = model_of(name)
    try:
        return model.model_validate(options)
    except ValidationError as error:
        raise UserError(f"{key}: {explain(error, model, prefix=f'{name}.')}") from None


def named(
    section: object, key: str, default: str, check: Callable[[str], None] | None = None
) -> Options | dict[str, Any]:
    """A section of a config as a mapping with a name.

    Args:
        section: what the config holds there: a name, a mapping, validated options, or nothing.
        key: the config's key, for messages.
        default: the name where it says none.
        check: raises where the name is not known.

    Raises:
        UserError: it is something else, or its name is.

    Example:
        >>> from hoptimizer.common.options import named
        >>> named("ircot", "program", default="rag"), named({"reader": "cot"}, "program", default="rag")
        ({'name': 'ircot'}, {'name': 'rag', 'reader': 'cot'})
    """
    if isinstance(section, Options):
        return section
    options = {"name": section} if isinstance(section, str) else {} if section is None else section
    if not isinstance(options, dict):
        raise UserError(f"{key}: expected a name or a mapping, got {section!r}")
    options = {"name": default} | options
    if not isinstance(options["name"], str):
        raise UserError(f"{key}.name: expected a name, got {options['name']!r}")
    if check:
        check(options["name"])
    return options


def chosen(section: Options | dict[str, Any], key: str, model_of: Callable[[str], type[Options]]) -> Options:
    """The validated options of a section that has its name.

    Args:
        section: a mapping as :func:`named` gives it, or validated options.
        key: the config's key, for messages.
        model_of: the options' model, by the name.

    Raises:
        UserError: nothing has that name, or an option is wrong.
    """
    if isinstance(section, Options):
        return section
    model = model_of(section["name"])
    try:
        return model.model_validate(section)
    except ValidationError as error:
        raise UserError(explain(error, model, prefix=f"{key}.")) from None


def options_model(
    name: str,
    constructor: type,
    given: Collection[str] = (),
    base: type[Options] = Options,
    reserved: Collection[str] = (),
) -> type[Options]:
    """The options of ``constructor`` as a model that forbids unknown keys.

    Where the class has :func:`presets`, a config can also choose one as ``preset``: what it sets are then the defaults.

    Args:
        name: value of the model's ``name`` field, by which a config chooses the constructor.
        constructor: a class whose parameters are annotated (``Annotated[int, Field(ge=1)]`` and the like are
            honoured); those without a default are required.
        given: parameters that the caller fills in itself and a config may not set.
        base: of the model.
        reserved: names that the caller has fields of its own for.

    Raises:
        UserError: a parameter's annotation is nothing that a value can be validated by, or its name is another field's.
    """
    try:
        # A metaclass (DSPy's modules have one) may hide the constructor's parameters: look at __init__ itself.
        # What is annotated by strings, as in modules that postpone annotations, is read as well.
        parameters = inspect.signature(constructor.__init__, eval_str=True).parameters  # type: ignore[misc]
        fields: dict[str, Any] = {
            key: (
                Any if parameter.annotation is parameter.empty else parameter.annotation,
                ... if parameter.default is parameter.empty else parameter.default,
            )
            for key, parameter in parameters.items()
            if key not in ("self", *given) and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        }
        if known := presets(constructor):
            base = _with_preset(base, known)
        if taken := [key for key in fields if key in (*base.model_fields, *reserved)]:
            raise UserError(f"{name}: an option can't be called {taken[0]!r}, which every such section has; rename it")
        title = "".join(word.capitalize() for word in re.split(r"[\W_]+", name))
        return create_model(title, __base__=base, name=(str, name), **fields)
    except (NameError, PydanticUserError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"{name}: the annotations of its constructor make no options: {reason}") from error


def presets(constructor: type) -> Mapping[str, Mapping[str, Any]]:
    """A class's named sets of options, its attribute ``presets``; empty where it has none.

    Args:
        constructor: the class.

    Example:
        >>> from hoptimizer.common.options import options_model
        >>> class Searcher:
        ...     presets = {"paper": {"rounds": 4}}
        ...     def __init__(self, rounds: int = 2, words: int = 8) -> None: ...
        >>> options = options_model("searcher", Searcher)
        >>> options(name="searcher", preset="paper", words=3)
        Searcher(name='searcher', preset='paper', rounds=4, words=3)
    """
    known: Mapping[str, Mapping[str, Any]] = getattr(constructor, "presets", {})
    return known


def _with_preset(base: type[Options], known: Mapping[str, Mapping[str, Any]]) -> type[Options]:
    """A base of options that fills in those of a preset that are not given."""

    def fill_in(cls: type[Options], values: Any) -> Any:  # noqa: ANN401 - not validated yet
        preset = values.get("preset") if isinstance(values, dict) else None
        return {**known[preset], **values} if isinstance(preset, str) and preset in known else values

    choice: Any = Literal.__getitem__(tuple(known))
    validators: Any = {"fill_in": model_validator(mode="before")(fill_in)}
    return create_model(base.__name__, __base__=base, __validators__=validators, preset=(choice | None, None))
