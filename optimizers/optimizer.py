"""What an optimizer is, what it is given, and who hears of its work."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import dspy

from hoptimizer.eval.datasets.question import Question
from hoptimizer.eval.objective import Objective
from hoptimizer.programs import Program
from hoptimizer.retrieval import Corpus

if TYPE_CHECKING:
    from hoptimizer.optimizers.candidates import Candidate


class CompileListener(Protocol):
    """Hears of a compile as it goes. It may be told from any thread."""

    def progress(self, stage: str, done: int, total: int, remark: str) -> None:
        """How far the work is.

        Args:
            stage: what is being done.
            done: how much of it is done.
            total: of how much; 0 where that is not known.
            remark: what else there is to say, such as a loss.
        """

    def record(self, of: str, figures: Mapping[str, float], update: int) -> None:
        """Figures that belong to a curve.

        Args:
            of: what they are figures of, such as ``training/relevance``; ``estimate``, ``spent`` and ``unscored`` are
                costs of the compile.
            figures: values by name.
            update: the place on the curve: updates of a training, or language model calls so far.
        """

    def candidate(self, candidate: "Candidate") -> None:
        """A candidate was scored, for the first time or on more questions than before."""

    def settle(self, settings: Mapping[str, Any]) -> None:
        """The settings with which an optimizer of DSPy's runs."""


class Silent:
    """A :class:`CompileListener` that keeps nothing."""

    def progress(self, stage: str, done: int, total: int, remark: str) -> None: ...

    def record(self, of: str, figures: Mapping[str, float], update: int) -> None: ...

    def candidate(self, candidate: "Candidate") -> None: ...

    def settle(self, settings: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True)
class CompileContext:
    """One compile: what it starts from, what it may learn from, and who hears of it.

    Attributes:
        program: the program to start from; it is not changed.
        trainset: questions that demonstrations and training examples come from.
        devset: questions that candidates are scored on.
        corpus: the passages of both.
        objective: what is maximized; called, it scores a prediction as DSPy's optimizers want it.
        teacher_lm: the language model that teaches, or ``None`` for the program's own.
        seed: decides on every random choice.
        workers: questions under way at once.
        folder: where work is kept that a killed compile resumes; whoever needs it creates it.
        listener: hears of progress, figures, candidates and settings.
        reflection_lm: the language model that proposes instructions, or ``None`` where none is named.

    Example:
        >>> from pathlib import Path
        >>> from hoptimizer.eval import Objective, load
        >>> from hoptimizer.optimizers import CompileContext
        >>> from hoptimizer.programs import Direct
        >>> atlas = load("atlas")
        >>> context = CompileContext(
        ...     program=Direct(),
        ...     trainset=atlas.split("train", 4),
        ...     devset=atlas.split("dev", 2),
        ...     corpus=atlas.corpus,
        ...     objective=Objective.parse("f1"),
        ...     teacher_lm=None,
        ...     seed=7,
        ...     workers=4,
        ...     folder=Path("work"),
        ... )
        >>> [list(example.inputs().keys()) for example in context.examples("dev")]
        [['question'], ['question']]
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
    listener: CompileListener = field(default_factory=Silent)
    reflection_lm: dspy.LM | None = None

    def examples(self, split: Literal["train", "dev"]) -> list[dspy.Example]:
        """The questions of a split as DSPy's optimizers take them."""
        return [question.to_dspy() for question in (self.trainset if split == "train" else self.devset)]


class Optimizer(ABC):
    """Turns a program into a compiled one.

    Example:
        >>> from hoptimizer.optimizers import Optimizer
        >>> class WithFirstQuestion(Optimizer):
        ...     def compile(self, context):
        ...         program = context.program.deepcopy()
        ...         program.reader.demos = context.examples("train")[:1]
        ...         return program
    """

    def check(self, context: CompileContext) -> None:  # noqa: B027 - most have nothing to check
        """Make sure, before anything is spent, that the compile can be done.

        Raises:
            UserError: it can't.
        """

    @abstractmethod
    def compile(self, context: CompileContext) -> Program:
        """The compiled program: a copy of the context's, with demonstrations, instructions or small models."""
