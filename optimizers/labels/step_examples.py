"""Examples that RA-ISF's steps learn from: of the annotations, of the program's own model, or of a teacher."""

import random
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import dspy

from hoptimizer.eval.datasets.question import Question
from hoptimizer.eval.metrics import exact_match
from hoptimizer.models.small.confidence import ANSWER_PROBABILITY
from hoptimizer.optimizers import searches
from hoptimizer.optimizers.labels.annotations import holding, supporting
from hoptimizer.optimizers.labels.decomposition import ordered_subquestions, subquestions
from hoptimizer.optimizers.labels.examples import Task, TrainingExample, relevance_examples, sufficiency_examples
from hoptimizer.optimizers.labels.labelling import PendingExample
from hoptimizer.optimizers.optimizer import CompileContext
from hoptimizer.programs import Program
from hoptimizer.programs.reader import read
from hoptimizer.programs.trace import StepTrace, recording
from hoptimizer.retrieval import Passage


def knowledge_examples(
    program: Program, task: Task, questions: Sequence[Question], *, measured: bool, compared: bool
) -> Iterator[PendingExample]:
    """Examples of whether the program's own language model answers exactly right without a search (equation 5).

    If the two ways are compared, what is answered right in neither of them says nothing, and is left out (after SKR).

    Args:
        program: the program, whose step ``closed_book`` is asked.
        task: the task of the step ``self_knowledge``.
        questions: the questions.
        measured: whether the examples also say how likely the answer is.
        compared: whether the step ``reader`` is asked as well, with what a search finds.
    """
    asked = [(question.question, question.answers) for question in questions]
    if "decompose" in program.step_names:  # the step is also asked about sub-questions, of which a model knows more
        asked += [(hop.question, [hop.answer]) for question in questions for hop in question.hops]
    for text, answers in asked:
        label = _compare if compared else partial(_knows, measured=measured)
        yield PendingExample({"question": text}, partial(label, program, task, text, answers))


async def _compare(program: Program, task: Task, question: str, answers: Sequence[str]) -> TrainingExample | None:
    knows = exact_match((await _ask(program, "closed_book", question=question)).answer, answers)
    with recording(StepTrace()):
        found = exact_match(await read(program, question, await program.retrieve(question)), answers)
    return TrainingExample({"question": question}, task.labels[int(knows)]) if knows or found else None


async def _knows(
    program: Program, task: Task, question: str, answers: Sequence[str], measured: bool
) -> TrainingExample:
    given = await _ask(program, "closed_book", measured=measured, question=question)
    inputs = {"question": question} | ({ANSWER_PROBABILITY: given.probability} if measured else {})
    return TrainingExample(inputs, task.labels[int(exact_match(given.answer, answers))])


def annotated_examples(
    context: CompileContext, task: Task, questions: Sequence[Question], *, every: bool
) -> Iterator[PendingExample]:
    """Examples of ``relevance``, ``sufficiency`` or ``decompose`` from the data set's annotations.

    Args:
        context: the compile, whose program's retriever finds the passages.
        task: the step's task.
        questions: the questions; those without the annotation are left out.
        every: whether to judge also supporting passages that were not found, to learn from; otherwise only what is
            found, which is what the program judges.
    """
    if task.step == "relevance":
        yield from _relevant(context, task, questions, every)
    elif task.step == "sufficiency":
        yield from _sufficing(context, task, questions, every)
    else:
        yield from _split_up(task, questions)


def _relevant(
    context: CompileContext, task: Task, questions: Sequence[Question], every: bool
) -> Iterator[PendingExample]:
    """Examples of whether a passage holds the answer to a question, or to one of its hops."""
    annotated = [question for question in questions if supporting(question)]
    found = _found(context.program, [question.question for question in annotated])
    no, yes = task.labels
    if every:
        contexts: list[list[str]] = [[] for _ in annotated]
        yield from map(_labelled, relevance_examples(annotated, found, contexts, context.corpus, labels=(no, yes)))
        return
    # Most of what a program judges are passages for the parts of a question, which its hops resemble.
    asked = [(question.question, holding(question, context.corpus)) for question in annotated]
    hops = [(hop.question, [hop.passage]) for question in annotated for hop in question.hops if hop.passage]
    found += _found(context.program, [text for text, _ in hops])
    for (text, gold), passages in zip([*asked, *hops], found, strict=True):
        for passage in passages:
            yield _labelled(
                TrainingExample({"question": text, "passage": str(passage)}, task.labels[passage.id in gold])
            )


def _sufficing(
    context: CompileContext, task: Task, questions: Sequence[Question], every: bool
) -> Iterator[PendingExample]:
    """Examples of whether the passages that are found for a question, or for a hop, suffice to answer it.

    With ``every`` there are also examples of them with all supporting passages, and with all but one.
    """
    asked = [(question.question, supporting(question)) for question in questions if supporting(question)]
    asked += [(hop.question, [hop.passage]) for question in questions for hop in question.hops if hop.passage]
    found = _found(context.program, [text for text, _ in asked])
    rng, (no, yes) = random.Random(context.seed) if every else None, task.labels
    for (text, ids), passages in zip(asked, found, strict=True):
        needed = [context.corpus[id] for id in ids]
        yield from map(_labelled, sufficiency_examples(text, needed, passages, (no, yes), rng))


def _split_up(task: Task, questions: Sequence[Question]) -> Iterator[PendingExample]:
    """Examples of the sub-questions of questions with several hops."""
    split_up = {"subquestions": subquestions, "ordered_subquestions": ordered_subquestions}[task.output]
    for question in questions:
        if split := split_up(question):
            yield _labelled(TrainingExample({"question": question.question}, split))


def _labelled(example: TrainingExample) -> PendingExample:
    async def label() -> TrainingExample:
        return example

    return PendingExample(example.inputs, label)


def taught_examples(teacher: Program, task: Task, questions: Sequence[Question]) -> Iterator[PendingExample]:
    """Examples of a step from a teacher's outputs (appendices A.2 and A.3).

    Args:
        teacher: the program with the teacher's language model in the step.
        task: the step's task.
        questions: the questions; their passages are those that the retriever finds.
    """
    texts = [question.question for question in questions]
    found = [] if task.step == "decompose" else _found(teacher, texts)
    asked: list[dict[str, Any]] = [{"question": text} for text in texts]
    if task.step == "relevance":
        asked = [one | {"passage": p} for one, passages in zip(asked, found, strict=True) for p in passages]
    elif task.step == "sufficiency":
        asked = [one | {"retrieved": passages} for one, passages in zip(asked, found, strict=True) if passages]
    for inputs in asked:
        shown = {
            name: list(map(str, value)) if isinstance(value, list) else str(value) for name, value in inputs.items()
        }
        yield PendingExample(shown, partial(_say, teacher, task, inputs, shown))


async def _say(teacher: Program, task: Task, inputs: dict[str, Any], shown: dict[str, Any]) -> TrainingExample | None:
    said = (await _ask(teacher, task.step, **inputs))[task.output]
    return TrainingExample(shown, said) if said else None


async def _ask(program: Program, step: str, **inputs: Any) -> dspy.Prediction:  # noqa: ANN401 - as Program.step
    with recording(StepTrace()):
        return await program.step(step, **inputs)


def _found(program: Program, questions: list[str]) -> list[list[Passage]]:
    """The passages that the program's retriever finds for each question."""
    if program.retriever is None:
        raise TypeError(f"{type(program).__name__} retrieves: give it a retriever")
    return searches.found(program.retriever, questions, program.k)
