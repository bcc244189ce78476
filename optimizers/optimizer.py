"""What an optimizer is given."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import dspy

from hoptimizer.eval.datasets.dataset import Question
from hoptimizer.eval.objective import Objective
from hoptimizer.programs import Program
from hoptimizer.retrieval import Corpus

if TYPE_CHECKING:
    from hoptimizer.optimizers.candidates import Candidate


def _unlogged(*told: Any) -> None:  # noqa: ANN401 - whatever it is told
    """A log that goes nowhere."""


@dataclass(frozen=True)
class CompileContext:
    """One compile.

    Attributes:
        program: the uncompiled program; it is not changed.
        trainset: questions that demonstrations come from.
        devset: questions that candidates are scored on.
        corpus: the passages of both.
        objective: what is maximized; called, it scores a prediction as DSPy's optimizers want it.
        teacher_lm: the language model that teaches, or ``None`` for the program's own.
        reflection_lm: the language model that proposes instructions, or ``None`` where none is named.
        seed: decides on every random choice.
        workers: questions under way at once.
        folder: for work that a compile which was killed takes up again; made by who needs it.
        report: told about long work: the stage, how much of it is done, of how much, and a remark.
        log: told figures as the work goes: of what, the figures by name, and the number of the update.
        record: told of each candidate, and again where it is scored on more questions.
        settle: told the settings that an optimizer of DSPy's runs with.
    """

    program: Program
    trainset: Sequence[Question]
    devset: Sequence[Question]
    corpus: Corpus
    objective: Objective
    teacher_lm: dspy.LM | None
    seed: int
    workers: int
    folder: Path
    report: Callable[[str, int, int, str], None]
    log: Callable[[str, Mapping[str, float], int], None] = _unlogged
    reflection_lm: dspy.LM | None = None
    record: "Callable[[Candidate], None]" = _unlogged
    settle: Callable[[Mapping[str, Any]], None] = _unlogged

    def examples(self, split: Literal["train", "dev"]) -> list[dspy.Example]:
        """The questions of a split as DSPy's optimizers take them."""
        return [question.to_dspy() for question in (self.trainset if split == "train" else self.devset)]


class Optimizer(ABC):
    """Turns an uncompiled program into a compiled one."""

    def check(self, context: CompileContext) -> None:  # noqa: B027 - most have nothing to look at
        """Look, before anything is spent, whether the job can be done.

        Raises:
            UserError: it can't.
        """

    @abstractmethod
    def compile(self, context: CompileContext) -> Program:
        """The compiled program: a copy of the context's, with demonstrations or small models."""
