"""The ``program`` section of a config, and programs built from it."""

import inspect
from functools import cache

from hoptimizer.models.errors import UserError, nearest
from hoptimizer.models.options import Options, options_model
from hoptimizer.programs.direct import CoT, Direct
from hoptimizer.programs.ircot import IRCoT
from hoptimizer.programs.program import Program
from hoptimizer.programs.rag import RAG
from hoptimizer.retrieval import Retriever

PROGRAMS: dict[str, type[Program]] = {"direct": Direct, "cot": CoT, "rag": RAG, "ircot": IRCoT}

# Given by the ``retriever`` section.
_FROM_RETRIEVER = ("retriever", "k")


def program_class(name: str) -> type[Program]:
    """The program of that name.

    Raises:
        UserError: there is none.
    """
    if name not in PROGRAMS:
        raise UserError(f"program.name: there is no program {name!r}; {nearest(name, PROGRAMS)}")
    return PROGRAMS[name]


def retrieves(name: str) -> bool:
    """Whether the program needs a retriever."""
    return "retriever" in inspect.signature(program_class(name).__init__).parameters


@cache
def settings_model(name: str) -> type[Options]:
    """The options of a program as a pydantic model, made from its constructor, where they have their defaults."""
    return options_model(name, program_class(name), given=_FROM_RETRIEVER)


def build_program(settings: Options, retriever: Retriever | None, k: int) -> Program:
    """The program that a validated ``program`` section describes.

    Args:
        settings: an instance of :func:`settings_model`.
        retriever: needed where :func:`retrieves` says so.
        k: passages a retrieval.
    """
    options = settings.model_dump()
    name = options.pop("name")
    if retrieves(name):
        options |= {"retriever": retriever, "k": k}
    return program_class(name)(**options)


@cache
def steps(name: str) -> tuple[str, ...]:
    """Names of the steps that a program of that name can have, by which a config gives one its own language model."""
    return program_class(name).step_names
