"""Distillation of a program's steps into small models (RA-ISF, section 3.2 and appendix A)."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import dspy
from pydantic import Field

from hoptimizer.common.errors import UserError, nearest
from hoptimizer.common.options import Positive
from hoptimizer.eval.datasets.question import Question
from hoptimizer.models.small.base import StepModel
from hoptimizer.models.small.confidence import ANSWER_PROBABILITY, Confidence
from hoptimizer.optimizers.labels.annotations import annotations, check_annotations
from hoptimizer.optimizers.labels.decomposition import subquestions
from hoptimizer.optimizers.labels.examples import Task, TrainingExample
from hoptimizer.optimizers.labels.labelling import collect
from hoptimizer.optimizers.labels.step_examples import annotated_examples, knowledge_examples, taught_examples
from hoptimizer.optimizers.optimizer import CompileContext, Optimizer
from hoptimizer.programs import Program

Step = Literal["self_knowledge", "relevance", "sufficiency", "decompose"]
LabelSource = Literal["annotations", "teacher"]
SelfKnowledgeModel = Literal["probability", "encoder", "knn"]

# Steps that learn from annotations or a teacher; self_knowledge depends on the language model alone.
_TAUGHT: tuple[Step, ...] = ("relevance", "sufficiency", "decompose")
# The most tokens that an encoder reads, of a question with a passage and with all passages of a search.
_READS = {"relevance": 256, "sufficiency": 512}


class Distill(Optimizer):
    """Small models that take over steps from the language model.

    ``self_knowledge`` learns which questions the program's own language model answers right without a search
    (equation 5); ``relevance``, ``sufficiency`` and ``decompose`` learn from the data set's annotations or from a
    teacher's answers. The epoch and the threshold of a fine-tuned model are those that are best on dev. Everything is
    kept in the context's folder, from which a compile that was killed is resumed.

    Args:
        steps: the steps that small models take over.
        questions: the number of train questions to learn from, drawn at random; by default all.
        labels: the source of the labels. ``annotations``: a passage that holds the answer is relevant, all passages
            that support the question suffice, and its hops are its sub-questions; ``teacher``: the outputs of
            ``lm.teacher``.
        self_knowledge: the model of this step. ``probability``: a threshold on the probability of the language model's
            own answer, the one that is best on train; for language models that report it (local ones, and servers with
            ``logprobs``). ``encoder``: a fine-tuned encoder, which reads only the question. ``knn``: a vote of the most
            similar train questions, of those that are answered right without a search or with one (SKR-knn).
        k: the train questions that vote; the published code tries 5 to 10.
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
        k: Positive = 5,
        base: Annotated[str, Field(min_length=1)] | None = None,
        epochs: Positive | None = None,
        learning_rate: Annotated[float, Field(gt=0)] | None = None,
    ) -> None:
        self.steps = tuple(dict.fromkeys(steps))
        self.questions = questions
        self.labels = labels
        self.self_knowledge = self_knowledge
        self.k = k
        chosen = {"base": base, "epochs": epochs, "learning_rate": learning_rate}
        self.training = {key: value for key, value in chosen.items() if value is not None}

    def check(self, context: CompileContext) -> None:
        if self.questions is not None and self.questions > len(context.trainset):
            raise UserError(
                f"optimizer.questions: {self.questions} of {len(context.trainset)} train questions; take fewer"
            )
        for step in self.steps:
            _check_step(context.program, step)
            if (
                step == "self_knowledge"
                and self.self_knowledge == "knn"
                and getattr(context.program, "reader", None) is None
            ):
                raise UserError(
                    "optimizer.self_knowledge=knn compares answers with and without passages, and nothing reads them: "
                    "switch the program's search on, or take optimizer.self_knowledge=encoder"
                )
            if step in _TAUGHT and self.labels == "annotations":
                known, splits = annotations(context.program)[step], {"train": context.trainset, "dev": context.devset}
                remedy = "leave the step out, or take optimizer.labels=teacher"
                check_annotations("optimizer.steps", step, known, splits, remedy)
                if split := known.get("subquestions"):
                    apart = replace(split, key="independent hops", given=lambda question: bool(subquestions(question)))
                    remedy = "or take program.ordered_subquestions=true, which learns from hops that depend on others"
                    check_annotations("optimizer.steps", step, {"subquestions": apart}, splits, remedy)
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
            elif step == "self_knowledge" and self.self_knowledge == "knn":
                compiled.models[step] = self._vote(context, train, dev)
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
        measured = ANSWER_PROBABILITY in task.inputs
        if task.step == "self_knowledge":
            compared = self.self_knowledge == "knn"
            pending = list(knowledge_examples(context.program, task, questions, measured=measured, compared=compared))
        elif self.labels == "teacher":
            pending = list(taught_examples(_teacher(context, task.step), task, questions))
        else:
            pending = list(annotated_examples(context, task, questions, every=split == "train"))
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

    def _vote(
        self, context: CompileContext, train: Sequence[TrainingExample], dev: Sequence[TrainingExample]
    ) -> StepModel:
        from hoptimizer.models.small.loading import load_step_model
        from hoptimizer.optimizers.training.knn import train_knn

        folder = context.folder / "self_knowledge"
        encoder = str(self.training.get("base", "minilm"))
        train_knn(self._task(context, "self_knowledge"), train, dev, encoder, self.k, folder)
        return load_step_model(str(folder), "self_knowledge")

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
            if step in _READS:
                chosen["max_tokens"] = _READS[step]
            train_classifier(task, train, dev, ClassifierTrainingConfig(**chosen, calibrate=aim), folder, report)
        else:
            train_generator(task, train, dev, GeneratorTrainingConfig(**chosen), folder, report)
        return load_step_model(str(folder), step)


def _teacher(context: CompileContext, step: str) -> Program:
    """The program with the teacher's language model in the step."""
    teacher = context.program.deepcopy()
    teacher.lms = {step: context.teacher_lm}
    return teacher


def _check_step(program: Program, step: Step) -> None:
    name = type(program).__name__
    if step not in program.step_names:
        raise UserError(f"optimizer.steps: {name} has no step {step!r}; {nearest(step, program.step_names)}")
    if getattr(program, step) is None:
        raise UserError(f"optimizer.steps: {step!r} is switched off in the program; switch it on, or leave it out")
    if step in program.models:
        raise UserError(f"optimizer.steps: program.steps.{step} names a small model for it; leave one of them out")
