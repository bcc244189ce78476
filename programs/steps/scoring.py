"""How likely a step's language model finds outputs that it is given."""

import math
import time
from typing import Any

import dspy
from dspy.utils.exceptions import ContextWindowExceededError

from hoptimizer.models.adapters import LMAdapter
from hoptimizer.models.engine.engine import is_local
from hoptimizer.programs.program import Program
from hoptimizer.programs.record import StepRecord
from hoptimizer.programs.steps.calls import StepCalls
from hoptimizer.programs.trace import current
from hoptimizer.retrieval import Passage


def can_score(program: Program, step: str) -> bool:
    """Whether the language model of a step tells how likely any outputs are: one in this process does."""
    lm = program.language_models().get(step)
    return lm is not None and is_local(lm) and isinstance(dspy.settings.adapter, LMAdapter)


async def score(program: Program, step: str, answer: str, question: str, passages: list[Passage]) -> float:
    """The probability that a reader's language model gives to an answer, up to its end.

    It is recorded as a step ``score``, with one call.

    Args:
        program: the program.
        step: its step, a reader for which :func:`can_score` is true.
        answer: the answer.
        question: the question.
        passages: what is read.

    Returns:
        The probability; 0 where the prompt outgrows the model's context.
    """
    predictor: dspy.Predict = getattr(program, step)
    lm, signature = program.language_models()[step], predictor.signature
    shown = {"question": question, "context": [str(passage) for passage in passages]}
    demos = await program.shown_demos(step, shown)
    [field] = signature.output_fields
    adapter = dspy.settings.adapter.of(lm)
    # What stands before any answer is no part of it.
    empty = adapter.format_assistant_message_content(signature, {field: ""})
    calls, start, likely = StepCalls(), time.perf_counter(), 0.0
    for left_out in range(len(demos) + 1):  # as few as the context asks for, as where the answer was read
        *asked, reply = adapter.format_finetune_data(signature, demos[left_out:], shown, {field: answer})["messages"]
        pairs = zip(reply["content"], empty, strict=False)
        before = next((place for place, (one, other) in enumerate(pairs) if one != other), 0)
        try:
            with calls.heard(lm):
                [said] = await lm.acall(messages=[*asked, reply], logprobs=True)
        except ContextWindowExceededError:
            continue
        likely = _probability(said["logprobs"]["content"], before)
        break
    told = {"question": question, "context": [passage.id for passage in passages]}
    outputs = {field: answer, "probability": likely}
    seconds = time.perf_counter() - start
    current().add(StepRecord("score", "lm", told, outputs, seconds=seconds, calls=calls.number, **calls.cost))
    return likely


def _probability(tokens: list[Any], before: int) -> float:
    """The probability of the tokens that reach beyond so many characters."""
    total, place = 0.0, 0
    for token in tokens:
        place += len(token["token"])
        if place > before:
            total += token["logprob"]
    return math.exp(total)
