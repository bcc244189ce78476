"""Runs of a program whose steps are taken as the data set's annotations say."""

import copy
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from hoptimizer.eval.datasets.question import Question
from hoptimizer.optimizers.labels.annotations import Annotation, Case, annotations
from hoptimizer.programs import Program
from hoptimizer.retrieval import Corpus


@dataclass(frozen=True)
class StepExample:
    """One step that was taken.

    Attributes:
        step: the step's name.
        inputs: the signature's input fields, as its model sees them.
        outputs: the signature's output fields.
    """

    step: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]


class _Oracle:
    """Takes one step of a program for one question, and keeps the examples that this makes."""

    def __init__(self, step: str, outputs: Mapping[str, Annotation], case: Case) -> None:
        self._step, self._outputs, self._case = step, outputs, case
        self._asked = 0
        self.taken: list[StepExample] = []

    async def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        outputs = {name: known.tell(self._case, inputs, self._asked) for name, known in self._outputs.items()}
        self._asked += 1
        if [] not in outputs.values():  # a question that can't be split is no example of splitting
            self.taken.append(StepExample(self._step, inputs, outputs))
        return outputs


async def replay(program: Program, question: Question, corpus: Corpus, steps: Collection[str]) -> list[StepExample]:
    """Run a program with oracles for some of its steps, so that each gets the inputs that right steps lead to.

    Args:
        program: the program, whose other steps are taken as they are; it is not changed.
        question: the annotated question.
        corpus: the corpus with its supporting passages.
        steps: the names of the steps with oracles, of those that
            :func:`~hoptimizer.optimizers.labels.annotations.annotations` lists.

    Returns:
        the steps that the oracles took, in an order that does not depend on which of several calls was first.

    Raises:
        Unannotated: the program asks for an output that the question has no annotation of.
    """
    case, known = Case(question, corpus), annotations(program)
    oracles = {step: _Oracle(step, known[step], case) for step in steps}
    guided = copy.copy(program)
    guided.models = program.models | oracles
    await guided.acall(**question.asked)
    taken = [one for oracle in oracles.values() for one in oracle.taken]
    return sorted(taken, key=lambda one: json.dumps([one.step, one.inputs], sort_keys=True))
