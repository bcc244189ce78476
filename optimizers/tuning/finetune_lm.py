"""Fine-tuning of the language model itself, on all steps of a program that it takes (``dspy.BootstrapFinetune``)."""

import os
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Annotated, Any, Literal

import dspy
from dspy.clients.openai import OpenAIProvider
from dspy.clients.utils_finetune import TrainDataFormat
from pydantic import Field

from hoptimizer.common.errors import UserError
from hoptimizer.common.options import Positive
from hoptimizer.common.paths import write_whole
from hoptimizer.common.urls import without_secrets
from hoptimizer.eval.datasets.question import Question
from hoptimizer.models.engine.engine import is_local
from hoptimizer.models.failures import one_line
from hoptimizer.models.lm import is_tuned, tuned, with_prompt_format
from hoptimizer.models.settings import PromptFormat
from hoptimizer.optimizers.labels.annotations import annotations, check_annotations
from hoptimizer.optimizers.labels.conversations import StepConversation, bootstrapped, conversations, replayed
from hoptimizer.optimizers.optimizer import CompileContext, Optimizer
from hoptimizer.optimizers.teacher import check_threshold
from hoptimizer.programs import Program

if TYPE_CHECKING:
    from hoptimizer.optimizers.training.loop import TrainingProgress

LabelSource = Literal["annotations", "bootstrap"]
Share = Annotated[float, Field(ge=0, le=1)]


class BootstrapFinetune(Optimizer):
    """The program with a language model that is fine-tuned for its steps, without demonstrations.

    The model is ``lm.default``, or, if a variant is compiled further, that variant's tuned model. It learns from
    conversations in the form in which the program will send them, of every step that it takes and that has examples.
    The epoch that is best on the conversations of dev is kept. Steps with a model of their own keep it. Everything is
    kept in the context's folder, from which a compile that was killed is resumed.

    Args:
        labels: the source of the conversations. ``annotations``: the program runs with its steps taken as the data
            set's annotations say; a step that depends on what the model itself knows is not annotated, and keeps the
            model that it has. ``bootstrap``: runs of the teacher that scored well, on ``lm.teacher`` or otherwise the
            program's own models.
        metric_threshold: the least score of a run that is learned from.
        questions: the number of train questions to learn from, drawn at random; by default all.
        prompt_format: the prompt format of all local models of the program; by default, where the model that is trained
            is one, that model's.
        epochs: the number of passes over the examples; this option and the following ones are for local models only,
            since the provider of another model sets them itself, and are by default those of the training config.
        learning_rate: the peak of the learning rate.
        batch: the number of conversations per update.
        max_tokens: the number of tokens to which conversations are cut, at the front.
        lora: the rank of adapters that are trained in place of all weights; 0 trains all weights.
    """

    def __init__(
        self,
        labels: LabelSource = "annotations",
        metric_threshold: Share = 0.8,
        questions: Positive | None = None,
        prompt_format: PromptFormat | None = None,
        epochs: Positive | None = None,
        learning_rate: Annotated[float, Field(gt=0)] | None = None,
        batch: Positive | None = None,
        max_tokens: Annotated[int, Field(ge=8)] | None = None,
        lora: Annotated[int, Field(ge=0)] | None = None,
    ) -> None:
        self.labels = labels
        self.metric_threshold = metric_threshold
        self.questions = questions
        self.prompt_format = prompt_format
        sizes = {"epochs": epochs, "batch": batch, "max_tokens": max_tokens, "lora": lora}
        chosen = {"learning_rate": learning_rate, **sizes}
        self.training = {key: value for key, value in chosen.items() if value is not None}

    def check(self, context: CompileContext) -> None:
        if self.questions is not None and self.questions > len(context.trainset):
            raise UserError(
                f"optimizer.questions: {self.questions} of {len(context.trainset)} train questions; take fewer"
            )
        lm = _student(context.program)
        _check_tunable(lm)
        if self.training and not is_local(lm):
            key = next(iter(self.training))
            raise UserError(f"optimizer.{key}: the provider of {lm.model} decides on it; leave it out")
        steps = self._steps(context.program)
        if self.labels == "annotations":
            known, splits = annotations(context.program), {"train": context.trainset, "dev": context.devset}
            for step in steps:
                check_annotations(
                    "optimizer.labels=annotations", step, known[step], splits, "or take optimizer.labels=bootstrap"
                )
        else:
            check_threshold(context, self.metric_threshold)

    def compile(self, context: CompileContext) -> Program:
        self.check(context)
        learn = context.trainset
        if self.questions is not None:
            learn = random.Random(context.seed).sample(list(learn), self.questions)
        train = self._collect(context, "train", learn)
        # A provider is sent no dev conversations.
        dev = self._collect(context, "dev", context.devset) if is_local(_student(context.program)) else []
        lm = self._fine_tune(context, train, dev)
        compiled = self._in_format(context.program)
        steps = sorted({row["step"] for row in train})
        for step in steps:
            compiled.lms[step] = lm
            getattr(compiled, step).demos = []
        if compiled.neighbours:
            compiled.neighbours = compiled.neighbours.without(steps)
        return compiled

    def _steps(self, program: Program) -> list[str]:
        """The names of the steps that the language model takes and can learn.

        Raises:
            UserError: there are none.
        """
        lm, known = _student(program), annotations(program)
        taken = [
            step
            for step, _ in program.named_predictors()
            if step not in program.models and program.lms.get(step, dspy.settings.lm) is lm
        ]
        steps = [step for step in taken if self.labels == "bootstrap" or step in known]
        if not steps:
            raise UserError(
                f"optimizer: {lm.model} takes no step of the program that it could learn by "
                f"optimizer.labels={self.labels}; leave lm.STEP out where it should"
            )
        return steps

    def _format_of(self, program: Program) -> PromptFormat:
        """The prompt format that the model is trained on."""
        lm = _student(program)
        own: PromptFormat = lm.prompt_format if is_local(lm) else "chat"
        return self.prompt_format or program.prompt_format or own

    def _in_format(self, program: Program) -> Program:
        """A copy of the program in the prompt format that the model is trained on."""
        copied = program.deepcopy()
        if is_local(_student(program)):
            copied.prompt_format = self._format_of(program)
        return copied

    def _collect(self, context: CompileContext, split: str, questions: Sequence[Question]) -> list[StepConversation]:
        prompt_format = self._format_of(context.program)
        steps, lm = self._steps(context.program), with_prompt_format(_student(context.program), prompt_format)
        if self.labels == "annotations":
            take = replayed(replace(context, program=self._in_format(context.program)), steps)
        else:
            own = prompt_format if is_local(_student(context.program)) else self.prompt_format
            take = bootstrapped(context, questions, steps, own, self.metric_threshold)
        rows = conversations(context, split, questions, take, lm)
        if not rows:
            raise UserError(self._nothing(context, split, len(questions)))
        counts = "".join(f", {step} {n}" for step, n in sorted(Counter(row["step"] for row in rows).items()))
        context.listener.progress(f"lm: examples from {split}, {len(rows)} in all{counts}", len(rows), len(rows), "")
        return rows

    def _nothing(self, context: CompileContext, split: str, n: int) -> str:
        if self.labels == "annotations":
            asked = getattr(context.program, "self_knowledge", None)
            hint = ", or program.self_knowledge=false where the model takes all for known" if asked else ""
            return f"optimizer.labels=annotations: the {n} {split} questions led to no step to learn; take more{hint}"
        teacher = context.teacher_lm or dspy.settings.lm
        return (
            f"optimizer.metric_threshold={self.metric_threshold:g}: {teacher.model} answered none of the {n} {split} "
            "questions that well; lower it, take more questions, another lm.teacher or optimizer.labels=annotations"
        )

    def _fine_tune(
        self, context: CompileContext, train: Sequence[StepConversation], dev: Sequence[StepConversation]
    ) -> dspy.LM:
        """The tuned language model.

        The name of a model that a provider trained is kept in a file, and so is that of OpenAI's job: a resumed compile
        does not train it again.
        """
        lm = _student(context.program)
        if is_local(lm):
            return tuned(lm, self._train(context, lm, train, dev))
        kept = context.folder / "lm.txt"
        if not kept.exists():
            write_whole(kept, self._train(context, lm, train, dev))
        return tuned(lm, kept.read_text(encoding="utf-8"))

    def _train(
        self, context: CompileContext, lm: dspy.LM, train: Sequence[StepConversation], dev: Sequence[StepConversation]
    ) -> str:
        """The name of the tuned model."""
        from hoptimizer.optimizers.training.loop import reporting  # imported here, since it imports torch

        report = reporting(context.listener, "lm")
        # Progress is shown by this thread, so that of the training's thread is passed on through a queue.
        told: SimpleQueue[TrainingProgress | None] = SimpleQueue()
        options: dict[str, Any] | None = None
        if is_local(lm):
            options = {"folder": context.folder / "lm", "dev": _messages(dev), "report": told.put, "seed": context.seed}
            options |= {"templated": self._format_of(context.program) != "plain", **self.training}
        lm.kill()  # frees the model's memory, as DSPy's own optimizer does
        context.listener.progress("lm: training", 0, 0, "")
        trained, job = lm, context.folder / "job.txt"
        if isinstance(lm.provider, OpenAIProvider):
            from hoptimizer.optimizers.tuning.openai_jobs import KeptJobProvider  # imports its client

            trained = lm.copy(provider=KeptJobProvider(job))
        training = trained.finetune(_messages(train), TrainDataFormat.CHAT, options)
        training.add_done_callback(lambda _: told.put(None))
        try:
            while progress := told.get():
                report(progress)
        finally:
            if not training.done():
                training.cancel()
                if not getattr(training, "provider_job_id", None):  # it has none any more
                    job.unlink(missing_ok=True)
        return _model(lm, training.result())


def _model(lm: dspy.LM, result: dspy.LM | Exception) -> str:
    """The name of the model that DSPy's training job ended with.

    Raises:
        UserError: a provider's training failed; the error of a local training is raised as it is.
    """
    if isinstance(result, dspy.LM):
        return result.model
    if is_local(lm) or isinstance(result, UserError):
        raise result
    raise UserError(f"{lm.model} could not be fine-tuned: {one_line(result)}; see the provider's account") from result


def _messages(rows: Sequence[StepConversation]) -> list[dict[str, Any]]:
    return [{"messages": row["messages"]} for row in rows]


def _student(program: Program) -> dspy.LM:
    """The language model that is fine-tuned: one of the program that was tuned before, or else the default one."""
    return next((lm for lm in program.lms.values() if is_tuned(lm)), dspy.settings.lm)


def _check_tunable(lm: dspy.LM) -> None:
    provider = getattr(lm, "provider", None)
    if provider is None or not provider.finetunable:
        raise UserError(f"lm.default: {lm.model} can't be fine-tuned by DSPy; take a local/ model or one of OpenAI's")
    if isinstance(provider, OpenAIProvider):
        # DSPy would send the examples to OpenAI with the environment's key, wherever the model is served.
        if server := lm.kwargs.get("api_base"):
            raise UserError(
                f"lm.default: DSPy can't fine-tune {lm.model} at {without_secrets(server)}; take a local/ model"
            )
        if "OPENAI_API_KEY" not in os.environ:
            raise UserError(f"lm.default: fine-tuning {lm.model} takes OPENAI_API_KEY from the environment; set it")
