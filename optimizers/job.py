"""What an optimizer is given."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import dspy

from hoptimizer.eval.dataset import Question
from hoptimizer.programs import Program
from hoptimizer.retrieval import Corpus

Objective = Callable[[dspy.Example, dspy.Prediction, object], float]


@dataclass(frozen=True)
class Job:
    """One compile.

    Attributes:
        program: the uncompiled program; it is not changed.
        trainset: questions that demonstrations come from.
        devset: questions that candidates are scored on.
        corpus: the passages of both.
        objective: a DSPy metric, 0 to 1, higher is better.
        teacher_lm: the language model that teaches, or ``None`` for the program's own.
        seed: decides on every random choice.
        workers: questions under way at once.
    """

    program: Program
    trainset: Sequence[Question]
    devset: Sequence[Question]
    corpus: Corpus
    objective: Objective
    teacher_lm: dspy.LM | None
    seed: int
    workers: int


class Optimizer(Protocol):
    """Turns an uncompiled program into a compiled one."""

    def compile(self, job: Job) -> Program:
        """The compiled program: a copy of the job's, with demonstrations."""
