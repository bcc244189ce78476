"""Several samples of a step, and the answer that comes most often (self-consistency; Wang et al. 2023)."""

from collections.abc import Sequence
from typing import Any

import dspy

from hoptimizer.programs.program import Program


def sampling(program: Program, step: str, number: int, *, of: int, temperature: float) -> dict[str, Any]:
    """How one of several samples of a step is asked for: the first as ever, the others each in its own way.

    Args:
        program: whose step it is.
        step: the step's name.
        number: which sample; from 0.
        of: how many samples there are.
        temperature: of the samples after the first.

    Returns:
        What :meth:`Program.step` takes as ``sampling``.
    """
    if not number:
        return {}
    lm = program.language_models().get(step)
    # Optimizers tell samples of a program apart by this id; each sample within one needs its own.
    rollout = (lm.kwargs.get("rollout_id") or 0) if lm else 0
    # A model that is given no temperature may refuse one, and samples by itself.
    heat = {} if lm and lm.kwargs.get("temperature") is None else {"temperature": temperature}
    return heat | {"rollout_id": rollout * of + number}


def commonest(answers: Sequence[str]) -> str:
    """The answer that comes most often, of equals the first one; empty where there is none.

    >>> commonest(["", "Bern", "Rome", "bern"])
    'Bern'
    """
    given = [dspy.Prediction(answer=answer) for answer in answers if answer]
    return dspy.majority(given).answer if given else ""
