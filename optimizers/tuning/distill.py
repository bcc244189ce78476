"""Distillation of a program's steps into small models (RA-ISF, section 3.2 and appendix A)."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import dspy
from pydantic import Field

from hoptimizer.common.errors import UserError, nearest
from hoptimizer.eval.datasets.question import Question
from hoptimizer.eval.metrics import exact_match
from hoptimizer.models.small.base import StepModel
from hoptimizer.models.small.confidence import ANSWER_PROBABILITY, Confidence
from hoptimizer.optimizers.labels.annotations import annotations, check_annotations, subquestions, supporting
from hoptimizer.optimizers.labels.examples import Task, TrainingExample, relevance_examples
from hoptimizer.optimizers.labels.labelling import PendingExample, collect
from hoptimizer.optimizers.optimizer import CompileContext, Optimizer
from hoptimizer.programs import Program
from hoptimizer.programs.trace import StepTrace, recording
from hoptimizer.retrieval import Passage

Step = Literal["self_knowledge", "relevance", "decompose"]
LabelSource = Literal["annotations", "teacher"]
SelfKnowledgeModel = Literal["probability", "encoder"]
Positive = Annotated[int, Field(ge=1)]

# Steps that learn from annotations or a teacher; self_knowledge depends on the language model alone.
_TAUGHT: tuple[Step, ...] = ("relevance", "decompose")


class Distill(Optimizer):
    """Small models that take over steps from the language model.

    ``self_knowledge`` learns which questions the program's own language model answers right without a search
    (equation 5); ``relevance`` and ``decompose`` learn from the data set's annotations or from a teacher's answers. The
    epoch and the threshold of a fine-tuned model are those that are best on dev. Everything is kept in the context's
    folder, from which a compile that was killed is resumed.

    Args:
        steps: the steps that small models take over.
        questions: the number of train questions to learn from, drawn at random; by default all.
        labels: the source of the labels. ``annotations``: a passage that supports the question is relevant, and the
            hops of a question are its sub-questions; ``teacher``: the outputs of ``lm.teacher``.
        self_knowledge: the model of this step. ``probability``: a threshold on the probability of the language model's
            own answer, the one that is best on train; for language models that report it (local ones, and servers with
            ``logprobs``). ``encoder``: a fine-tuned encoder, which reads only the question.
        base: the model that is fine-tuned: a name of the weights store, a folder or a Hub id; by default a small
            encoder for steps that choose, and a small language model for steps that write.
        epochs: the most passes over the examples; by default that of the kind of model, as for the other options.
        learning_rate: the peak of the learning rate.
    """

    def __init__(
        self,
        steps: Annotated[tuple[Step, ...], Field(min_length=1)] = ("self_knowledge", "relevance"),
        questions: Positive | None = None,
        labels: LabelSource = "annotations",
        self_knowledge: SelfKnowledgeModel = "probability",
        base: Annotated[str, Field(min_length=1)] | None = None,
        epochs: Positive | None = None,
        learning_rate: Annotated[float, Field(gt=0)] | None = None,
    ) -> None:
        self.steps = tuple(dict.fromkeys(steps))
        self.questions = questions
        self.labels = labels
        self.self_knowledge = self_knowledge
        chosen = {"base": base, "epochs": epochs, "learning_rate": learning_rate}
        self.training = {key: value for key, value in chosen.items() if value is not None}

    def check(self, context: CompileContext) -> None:
        if self.questions is not None and self.questions > len(context.trainset):
            raise UserError(
                f"optimizer.questions: {self.questions} of {len(context.trainset)} train questions; take fewer"
            )
        for step in self.steps:
            _check_step(context.program, step)
            if step in _TAUGHT and self.labels == "annotations":
                known, splits = annotations(context.program)[step], {"train": context.trainset, "dev": context.devset}
                remedy = "leave the step out, or take optimizer.labels=teacher"
                check_annotations("optimizer.steps", step, known, splits, remedy)
            if step in _TAUGHT and self.labels == "teacher" and context.teacher_lm is None:
                raise UserError("optimizer.labels=teacher: there is no teacher; name one, as in lm.teacher=MODEL")

    def compile(self, context: CompileContext) -> Program:
        self.check(context)
        learn = context.trainset
        if self.questions is not None:
            learn = random.Random(context.seed).sample(list(learn), self.questions)
        compiled = context.program.deepcopy()
        for step in self.steps:
            train = self.gather(context, step, "train", learn)
            dev = self.gather(context, step, "dev", context.devset)
            if step == "self_knowledge" and self.self_knowledge == "probability":
                compiled.models[step] = self._calibrate(context, train, dev)
            else:
                compiled.models[step] = self._fine_tune(context, step, train, dev)
        return compiled

    def gather(
        self, context: CompileContext, step: Step, split: str, questions: Sequence[Question]
    ) -> list[TrainingExample]:
        """A step's examples, which are written to the context's folder as they are made.

        Args:
            context: the compile.
            step: the step that learns from the examples.
            split: ``train`` or ``dev``.
            questions: the questions of the split.

        Raises:
            UserError: a language model fails.
        """
        task = self._task(context, step)
        pending = list(self._pending(context, task, split, questions))
        stage = f"{task.step}: examples from {split}"
        file = context.folder / f"{task.step}-{split}.jsonl"
        examples = collect(
            pending, file, context.workers, lambda done, total: context.listener.progress(stage, done, total, "")
        )
        classes = Counter(str(example.output) for example in examples) if task.labels else {}
        balance = "".join(f", {label} {count}" for label, count in sorted(classes.items()))
        context.listener.progress(f"{stage}, {len(examples)} in all{balance}", len(examples), len(examples), "")
        return examples

    def _task(self, context: CompileContext, step: Step) -> Task:
        task = Task.of(step, getattr(context.program, step).signature)
        if step == "self_knowledge" and self.self_knowledge == "probability":
            return replace(task, inputs=(*task.inputs, ANSWER_PROBABILITY))
        return task

    def _pending(
        self, context: CompileContext, task: Task, split: str, questions: Sequence[Question]
    ) -> Iterator[PendingExample]:
        if task.step == "self_knowledge":
            yield from _known(context.program, task, questions, measured=self.self_knowledge == "probability")
        elif self.labels == "teacher":
            yield from _taught(_teacher(context, task.step), task, questions)
        elif task.step == "relevance":
            yield from _supported(context, task, questions, every=split == "train")
        else:
            yield from _split_up(questions)

    def _calibrate(
        self, context: CompileContext, train: Sequence[TrainingExample], dev: Sequence[TrainingExample]
    ) -> StepModel:
        from hoptimizer.optimizers.training.confidence import calibrate_confidence

        if not any(example.inputs[ANSWER_PROBABILITY] for example in train):
            raise UserError(
                "optimizer.self_knowledge=probability: the language model does not tell how likely its answers are; "
                "take optimizer.self_knowledge=encoder, or one that gives logprobs"
            )
        folder = context.folder / "self_knowledge"
        lm = context.program.lms.get("closed_book") or dspy.settings.lm
        card = calibrate_confidence(self._task(context, "self_knowledge"), train, dev, lm.model, folder)
        return Confidence(folder, card)

    def _fine_tune(
        self, context: CompileContext, step: Step, train: Sequence[TrainingExample], dev: Sequence[TrainingExample]
    ) -> StepModel:
        # Imported here, since these modules import peft and scikit-learn, which a config that only names the optimizer
        # does not need.
        from hoptimizer.models.small.loading import load_step_model
        from hoptimizer.optimizers.training.calibration import Aim
        from hoptimizer.optimizers.training.classifier import ClassifierTrainingConfig, train_classifier
        from hoptimizer.optimizers.training.generator import GeneratorTrainingConfig, train_generator
        from hoptimizer.optimizers.training.loop import reporting

        task = self._task(context, step)
        chosen: dict[str, Any] = {"seed": context.seed, **self.training}
        folder, report = context.folder / step, reporting(context.listener, step)
        if task.labels:
            # A small model knows few answers: with the best F1 it would often claim to know all of them.
            aim: Aim = "balanced_accuracy" if step == "self_knowledge" else "f1"
            train_classifier(task, train, dev, ClassifierTrainingConfig(**chosen, calibrate=aim), folder, report)
        else:
            train_generator(task, train, dev, GeneratorTrainingConfig(**chosen), folder, report)
        return load_step_model(str(folder), step)


def _known(program: Program, task: Task, questions: Sequence[Question], *, measured: bool) -> Iterator[PendingExample]:
    """Examples of whether the program's own language model answers exactly right without a search (equation 5)."""
    asked = [(question.question, question.answers) for question in questions]
    # The step is also asked about sub-questions, of which a model knows more.
    asked += [(hop.question, [hop.answer]) for question in questions for hop in question.hops]
    for text, answers in asked:
        yield PendingExample({"question": text}, partial(_knows, program, task, text, answers, measured))


async def _knows(
    program: Program, task: Task, question: str, answers: Sequence[str], measured: bool
) -> TrainingExample:
    given = await _ask(program, "closed_book", measured=measured, question=question)
    inputs = {"question": question} | ({ANSWER_PROBABILITY: given.probability} if measured else {})
    return TrainingExample(inputs, task.labels[int(exact_match(given.answer, answers))])


def _supported(
    context: CompileContext, task: Task, questions: Sequence[Question], *, every: bool
) -> Iterator[PendingExample]:
    """Examples of whether a passage supports a question.

    Args:
        context: the compile, whose program's retriever finds the passages.
        task: the step's task.
        questions: the questions; those without supporting passages are left out.
        every: whether to make examples also of supporting passages that were not found, and of the hops; otherwise
            only of the passages that are found, which are those that the program judges.
    """
    annotated = [question for question in questions if supporting(question)]
    found = _found(context.program, annotated)
    no, yes = task.labels
    if every:
        contexts: list[list[str]] = [[] for _ in annotated]
        yield from map(_labelled, relevance_examples(annotated, found, contexts, context.corpus, labels=(no, yes)))
        return
    for question, passages in zip(annotated, found, strict=True):
        for passage in passages:
            label = task.labels[passage.id in supporting(question)]
            yield _labelled(TrainingExample({"question": question.question, "passage": str(passage)}, label))


def _split_up(questions: Sequence[Question]) -> Iterator[PendingExample]:
    """Examples of the sub-questions of questions with several hops."""
    for question in questions:
        if split := subquestions(question):
            yield _labelled(TrainingExample({"question": question.question}, split))


def _labelled(example: TrainingExample) -> PendingExample:
    async def label() -> TrainingExample:
        return example

    return PendingExample(example.inputs, label)


def _taught(teacher: Program, task: Task, questions: Sequence[Question]) -> Iterator[PendingExample]:
    """Examples from a teacher's outputs, for each passage found or for the question (appendices A.2 and A.3)."""
    if task.step != "relevance":
        for question in questions:
            yield PendingExample(
                {"question": question.question}, partial(_say, teacher, task, question=question.question)
            )
        return
    for question, passages in zip(questions, _found(teacher, questions), strict=True):
        for passage in passages:
            say = partial(_say, teacher, task, question=question.question, passage=passage)
            yield PendingExample({"question": question.question, "passage": str(passage)}, say)


async def _say(teacher: Program, task: Task, **inputs: str | Passage) -> TrainingExample | None:
    said = (await _ask(teacher, task.step, **inputs))[task.output]
    return TrainingExample({name: str(value) for name, value in inputs.items()}, said) if said else None


async def _ask(program: Program, step: str, **inputs: Any) -> dspy.Prediction:  # noqa: ANN401 - as Program.step
    with recording(StepTrace()):
        return await program.step(step, **inputs)


def _teacher(context: CompileContext, step: str) -> Program:
    """The program with the teacher's language model in the step."""
    teacher = context.program.deepcopy()
    teacher.lms = {step: context.teacher_lm}
    return teacher


def _found(program: Program, questions: Sequence[Question]) -> list[list[Passage]]:
    """The passages that the program's retriever finds for each question."""
    if program.retriever is None:
        raise TypeError(f"{type(program).__name__} retrieves: give it a retriever")
    return program.retriever.search([question.question for question in questions], program.k)


def _check_step(program: Program, step: Step) -> None:
    name = type(program).__name__
    if step not in program.step_names:
        raise UserError(f"optimizer.steps: {name} has no step {step!r}; {nearest(step, program.step_names)}")
    if getattr(program, step) is None:
        raise UserError(f"optimizer.steps: {step!r} is switched off in the program; switch it on, or leave it out")
    if step in program.models:
        raise UserError(f"optimizer.steps: program.steps.{step} names a small model for it; leave one of them out")
