"""The layout of prompts as a part of what is compiled."""

from collections.abc import Sequence
from dataclasses import replace

import dspy

from hoptimizer.models.lm import is_local
from hoptimizer.models.settings import Layout
from hoptimizer.optimizers.candidates import Ledger
from hoptimizer.optimizers.optimizer import Job
from hoptimizer.optimizers.prompt.scoring import score

LAYOUTS: tuple[Layout, ...] = ("json", "plain")


def choose_layout(job: Job, layouts: Sequence[Layout], ledger: Ledger) -> Job:
    """The job with its program in the layout that scores best on dev, without demonstrations.

    DSPy's layouts are made for large models. How a small one is written to matters as much as what it is shown, so
    the layout is chosen as demonstrations are: by the objective.

    Args:
        job: the compile.
        layouts: what to try; one alone is taken as it is. Language models outside this process keep theirs.
        ledger: is told how each one scored.
    """
    if not layouts or not is_local(dspy.settings.lm):
        return job
    candidates = [job.program.deepcopy() for _ in layouts]
    for candidate, layout in zip(candidates, layouts, strict=True):
        candidate.layout = layout
    if len(candidates) == 1:
        return replace(job, program=candidates[0])
    scores = [score(job, candidate, ledger) for candidate in candidates]
    return replace(job, program=candidates[scores.index(max(scores))])
