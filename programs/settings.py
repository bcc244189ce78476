"""The ``program`` section of a config, and programs built from it."""

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field, create_model

from hoptimizer.common.errors import UserError, nearest
from hoptimizer.common.options import Options, options_model, presets
from hoptimizer.common.plugins import Imported, Registry, subclass_of
from hoptimizer.programs.record import COUNTS, outcome_counts
from hoptimizer.retrieval import Retriever

if TYPE_CHECKING:
    from hoptimizer.models.small.base import StepModel
    from hoptimizer.programs.program import Program

# A program is a DSPy module, which takes a second to import; that a name is none is said before.
PROGRAMS: Mapping[str, "type[Program]"] = Imported(
    {
        "direct": "hoptimizer.programs.direct:Direct",
        "cot": "hoptimizer.programs.direct:CoT",
        "rag": "hoptimizer.programs.rag:RAG",
        "ircot": "hoptimizer.programs.ircot:IRCoT",
        "ra_isf": "hoptimizer.programs.ra_isf:RAISF",
        "efficient_rag": "hoptimizer.programs.efficient_rag:EfficientRAG",
        "iter_retgen": "hoptimizer.programs.iter_retgen:IterRetGen",
        "self_ask": "hoptimizer.programs.self_ask:SelfAsk",
        "decompose_rag": "hoptimizer.programs.decompose_rag:DecomposeRAG",
        "least_to_most": "hoptimizer.programs.least_to_most:LeastToMost",
        "react": "hoptimizer.programs.react:ReAct",
        "recite": "hoptimizer.programs.recite:ReciteAndAnswer",
        "dsp": "hoptimizer.programs.dsp:DSP",
        "self_rag": "hoptimizer.programs.self_rag:SelfRAG",
        "decomp": "hoptimizer.programs.decomp:DecomP",
        "skr": "hoptimizer.programs.skr:SKR",
        "replug": "hoptimizer.programs.replug:REPLUG",
    }
)

# Parameters that the ``retriever`` section gives.
_FROM_RETRIEVER = ("retriever", "k")

_REGISTRY: Registry["type[Program]"] = Registry(
    "program",
    "hoptimizer.programs",
    PROGRAMS,
    subclass_of("hoptimizer.programs.program:Program"),
    "a subclass of hoptimizer.programs.Program",
)


def check_name(name: str) -> None:
    """Make sure that there is a program of that name, without importing it.

    Raises:
        UserError: there is none.
    """
    _REGISTRY.check(name, "program.name")


def program_class(name: str) -> "type[Program]":
    """The program of that name: ours, an entry point of ``hoptimizer.programs``, or a dotted path's.

    Raises:
        UserError: there is none.
    """
    return _REGISTRY.get(name, "program.name")


def retrieves(settings: Options) -> bool:
    """Whether the program that a ``program`` section describes needs a retriever.

    Example:
        >>> from hoptimizer.programs.settings import retrieves, settings_model
        >>> of = settings_model("least_to_most")
        >>> retrieves(of(name="least_to_most")), retrieves(of(name="least_to_most", retrieval=False))
        (True, False)
    """
    return _takes_retriever(settings.name) and getattr(settings, "retrieval", True)


def shown(settings: Options, models: Collection[str]) -> str:
    """The name of the program that a ``program`` section describes, and what it does not do before it is trained.

    Args:
        settings: the section.
        models: the roles and steps that have a language model.

    Example:
        >>> from hoptimizer.programs.settings import settings_model, shown
        >>> of = settings_model("efficient_rag")
        >>> shown(of(name="efficient_rag"), ["default"]), shown(of(name="efficient_rag"), ["default", "labeler"])
        ('efficient_rag (no labeler yet: retrieves once)', 'efficient_rag')
    """
    named = {*models, *getattr(settings, "steps", ())}
    lacking = [(step, does) for step, does in program_class(settings.name).without.items() if step not in named]
    return settings.name + "".join(f" (no {step} yet: {does})" for step, does in lacking)


def _takes_retriever(name: str) -> bool:
    return "retriever" in inspect.signature(program_class(name).__init__).parameters


@cache
def default_k(name: str) -> int:
    """Passages per retrieval where a config does not say: the default of ``k`` in the program's constructor.

    Args:
        name: the program's name in a config.

    Raises:
        UserError: there is no program of that name.

    Example:
        >>> from hoptimizer.programs.settings import default_k
        >>> default_k("ircot"), default_k("ra_isf"), default_k("efficient_rag")
        (4, 5, 10)
    """
    from hoptimizer.programs.program import Program

    open_k = inspect.signature(Program.__init__).parameters["k"]
    default = inspect.signature(program_class(name).__init__).parameters.get("k", open_k).default
    return default if isinstance(default, int) else open_k.default


@cache
def settings_model(name: str) -> type[Options]:
    """The options of a program as a pydantic model, made from its constructor, where they have their defaults.

    Every program also has ``steps``: small models that take steps over, by the step's name.

    Args:
        name: the program's name in a config, such as ``ircot``.

    Raises:
        UserError: there is no program of that name.

    Example:
        >>> from hoptimizer.programs import settings_model
        >>> settings_model("direct")(name="direct", reader="cot")
        Direct(name='direct', reader='cot', page=False, steps={})
    """
    options = options_model(name, program_class(name), given=_FROM_RETRIEVER, reserved=["steps"])
    sources = Annotated[
        dict[str, Annotated[str, Field(min_length=1)]], AfterValidator(lambda given: _known_steps(name, given))
    ]
    return create_model(options.__name__, __base__=options, steps=(sources, {}))


def _known_steps(name: str, sources: dict[str, str]) -> dict[str, str]:
    for step in sources:
        if step not in steps(name):
            raise UserError(f"program.steps.{step}: {name} has no such step; {nearest(step, steps(name))}")
    return sources


def build_program(
    settings: Options, retriever: Retriever | None, k: int, load: "Callable[[str, str], StepModel] | None" = None
) -> "Program":
    """The program that a validated ``program`` section describes.

    Args:
        settings: an instance of a model that :func:`settings_model` gives.
        retriever: needed by programs for which :func:`retrieves` is true.
        k: passages per retrieval.
        load: gives the small model for a source and a step; by default it reads a folder or the hub.

    Raises:
        UserError: a small model can't be had.

    Example:
        >>> from hoptimizer.programs import build_program, settings_model
        >>> program = build_program(settings_model("direct")(name="direct"), retriever=None, k=4)
        >>> type(program).__name__, program.step_names
        ('Direct', ('reader',))
    """
    options: dict[str, Any] = settings.model_dump()
    name, sources = options.pop("name"), options.pop("steps")
    if _takes_retriever(name):
        options |= {"retriever": retriever, "k": k}
    if presets(program_class(name)):
        del options["preset"]  # what it sets is among the options
    program = program_class(name)(**options)
    for step, source in sources.items():
        program.models[step] = (load or _load)(source, step)
    return program


def _load(source: str, step: str) -> "StepModel":
    from hoptimizer.models.small.loading import load_step_model  # brings torch

    return load_step_model(source, step)


def count_names() -> tuple[str, ...]:
    """Names of the counts that programs give: those of all, and what settles a question in those that record it."""
    own = [outcome_counts(program.outcomes) for program in PROGRAMS.values()]
    return tuple(dict.fromkeys([*COUNTS, *(name for names in own for name in names)]))


@cache
def steps(name: str) -> tuple[str, ...]:
    """Names of the steps that a program of that name can have, by which a config gives one its own language model."""
    return program_class(name).step_names
