"""The choice of the prompt format as a part of a compile."""

from collections.abc import Sequence
from dataclasses import replace

import dspy

from hoptimizer.models.engine.engine import is_local
from hoptimizer.models.settings import PromptFormat
from hoptimizer.optimizers.candidates import SearchContext
from hoptimizer.optimizers.prompt.scoring import score

PROMPT_FORMATS: tuple[PromptFormat, ...] = ("json", "plain")


def choose_prompt_format(context: SearchContext, prompt_formats: Sequence[PromptFormat]) -> SearchContext:
    """The context with its program in the prompt format that scores best on dev, with the demonstrations it has.

    DSPy's prompt formats are made for large models. With a small model the format of a prompt matters as much as its
    demonstrations, so the format is chosen as demonstrations are: by the objective.

    Args:
        context: the compile.
        prompt_formats: the formats to try; a single one is used without a trial. Language models outside this process
            keep their format.
    """
    if not prompt_formats or not is_local(dspy.settings.lm):
        return context
    candidates = [context.program.deepcopy() for _ in prompt_formats]
    for candidate, prompt_format in zip(candidates, prompt_formats, strict=True):
        candidate.prompt_format = prompt_format
    if len(candidates) == 1:
        return replace(context, program=candidates[0])
    scores = [score(context, candidate) for candidate in candidates]
    return replace(context, program=candidates[scores.index(max(scores))])
