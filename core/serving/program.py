"""A program as a server's app."""

from collections.abc import Collection

from dspy.clients import base_lm
from fastapi import FastAPI

from hoptimizer.compiled import CompiledProgram
from hoptimizer.models.engine.engine import generator, is_local
from hoptimizer.serving.admission import Limits
from hoptimizer.serving.answer_route import answer_routes
from hoptimizer.serving.answering import Answering
from hoptimizer.serving.app import make_app
from hoptimizer.serving.openai_route import openai_routes
from hoptimizer.workbench import HISTORY, use_cache


def program_app(program: CompiledProgram, name: str, limits: Limits, keys: Collection[str]) -> FastAPI:
    """The app that answers questions with a program. The process's answers are kept as the program's config says.

    Args:
        program: the program.
        name: what clients of OpenAI call it.
        limits: how much is taken on.
        keys: of which a request has to bring one; empty where anyone may ask.
    """
    use_cache(program.config)
    base_lm.MAX_HISTORY_SIZE = HISTORY
    answering = Answering(program, limits)
    return make_app(
        f"hoptimizer: {name}", answering.work, keys, answer_routes(answering), openai_routes(answering, name)
    )


def load_models(program: CompiledProgram) -> None:
    """Load the language models of this process that a program asks, which the first question would wait for.

    Raises:
        UserError: one can't be loaded.
    """
    default = program.config.lm["default"]
    asked = {lm.model for lm in program.program.language_models().values() if is_local(lm)}
    if default.is_local and not all(
        program.program.has_own_model(step) for step, _ in program.program.named_predictors()
    ):
        asked.add(default.model)
    for model in sorted(asked):
        generator(model)
