"""The interface of an optimizer, the context of a compile, and the listener that follows it."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
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
    """What is told of a compile while it runs, from any thread."""

    def progress(self, stage: str, done: int, total: int, remark: str) -> None:
        """Receive how far the work is.

        Args:
            stage: what is being done.
            done: how many units of it are done.
            total: how many units there are; 0 where that is not known.
            remark: further information, such as a loss.
        """

    def record(self, of: str, figures: Mapping[str, float], update: int) -> None:
        """Receive figures that belong to a curve.

        Args:
            of: what the figures describe, such as ``training/relevance``; ``estimate``, ``spent`` and ``unscored`` are
                costs of the compile.
            figures: values by name.
            update: the position on the curve: updates of a training, or language model calls so far.
        """

    def candidate(self, candidate: "Candidate") -> None:
        """Receive a candidate that was scored, for the first time or on more questions than before.

        Args:
            candidate: the candidate with its score.
        """

    def settle(self, settings: Mapping[str, Any]) -> None:
        """Receive the settings with which an optimizer of DSPy runs.

        Args:
            settings: values by name, such as ``MIPROv2.num_candidates``.
        """


class Silent:
    """A :class:`CompileListener` that keeps nothing."""

    def progress(self, stage: str, done: int, total: int, remark: str) -> None: ...

    def record(self, of: str, figures: Mapping[str, float], update: int) -> None: ...

    def candidate(self, candidate: "Candidate") -> None: ...

    def settle(self, settings: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True)
class CompileContext:
    """One compile: what it starts from, what it may learn from, and who is told of it.

    Attributes:
        program: the program to start from; it is not changed.
        trainset: questions that demonstrations and training examples come from.
        devset: questions that candidates are scored on.
        corpus: the passages of both splits.
        objective: what is maximized; it is also callable, and then scores a prediction as a DSPy metric does.
        teacher_lm: the language model of the teacher; ``None`` for the program's own.
        seed: determines every random choice.
        workers: the number of questions that are answered at once.
        folder: where work is kept from which a killed compile is resumed; an optimizer that needs it creates it.
        listener: is told of progress, figures, candidates and settings.
        reflection_lm: the language model that proposes instructions; ``None`` where the config names none.

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
        """The questions of a split as DSPy examples.

        Args:
            split: ``train`` or ``dev``.
        """
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

    def check_roles(self, roles: Collection[str]) -> None:  # noqa: B027 - most need none
        """Make sure that there are the language models that the optimizer can't do without.

        Args:
            roles: of the language models that the config names, such as ``teacher`` and ``reflection``.

        Raises:
            UserError: one is missing.
        """

    def check(self, context: CompileContext) -> None:  # noqa: B027 - most have nothing to check
        """Make sure, before anything is spent, that the compile is possible.

        Args:
            context: the compile.

        Raises:
            UserError: it is not.
        """

    def sketch(self, context: CompileContext) -> Program | None:
        """A program whose prompts are about as long as those of the compiled one, made without a language model's call;
        ``None`` where the optimizer can't tell.

        Args:
            context: the compile.
        """
        return None

    @abstractmethod
    def compile(self, context: CompileContext) -> Program:
        """The compiled program: a copy of the context's program, with demonstrations, instructions or small models.

        Args:
            context: the compile.

        Raises:
            UserError: the compile is impossible.
        """
