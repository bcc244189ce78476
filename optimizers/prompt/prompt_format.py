"""The choice of the prompt format as a part of a compile."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import dspy

from hoptimizer.models.engine.engine import is_local
from hoptimizer.models.settings import PromptFormat
from hoptimizer.optimizers.candidates import SearchContext
from hoptimizer.optimizers.optimizer import CompileContext
from hoptimizer.optimizers.prompt.scoring import scored
from hoptimizer.programs import Program

PROMPT_FORMATS: tuple[PromptFormat, ...] = ("json", "plain")


def choose_prompt_format(
    context: SearchContext,
    prompt_formats: Sequence[PromptFormat],
    sketch: Callable[[CompileContext], Program | None],
) -> SearchContext:
    """The context with its program in the prompt format that scores best on dev.

    DSPy's prompt formats are made for large models. With a small model the format of a prompt matters as much as its
    demonstrations, so the format is chosen as demonstrations are: by the objective. A format in which a model answers
    well without demonstrations may be a bad one with them, so it is tried with such as the compiled program will have.
    The format that the model has is kept unless another one is better by more than a standard error: few questions of
    dev can't tell more, and the formats of known models were chosen on many.

    Args:
        context: the compile.
        prompt_formats: the formats to try; a single one is used without a trial. Language models outside this process
            keep their format.
        sketch: makes a program with demonstrations like those of the compiled one, which stands for it in the trials;
            where it can't tell (``None``), the context's program does.
    """
    if not prompt_formats or not is_local(dspy.settings.lm):
        return context
    best = prompt_formats[0]
    if len(prompt_formats) > 1:
        tried = sketch(context) or context.program
        trials = {each: scored(context, _in(each, tried)) for each in prompt_formats}
        best = max(trials, key=lambda each: trials[each].score)
        own = context.program.prompt_format or getattr(dspy.settings.lm, "prompt_format", None)
        if own in trials and not trials[best].is_above(trials[own]):
            best = own
    return replace(context, program=_in(best, context.program))


def _in(prompt_format: PromptFormat, program: Program) -> Program:
    """A copy of a program in a prompt format."""
    changed = program.deepcopy()
    changed.prompt_format = prompt_format
    return changed
