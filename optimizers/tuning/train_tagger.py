"""Fine-tuning of EfficientRAG's two models for a data set (Zhuang et al., 2024, sections 3.2 and 3.3)."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from hoptimizer.common.errors import UserError
from hoptimizer.common.options import Positive
from hoptimizer.eval.datasets.question import Question
from hoptimizer.models.small.base import SmallModel
from hoptimizer.optimizers.labels.annotations import ANNOTATIONS, check_annotations, supporting
from hoptimizer.optimizers.labels.examples import Task, TrainingExample
from hoptimizer.optimizers.labels.hop_labels import LabelledQuestion, annotated, write_labels
from hoptimizer.optimizers.optimizer import CompileContext, Optimizer
from hoptimizer.programs import EfficientRAG, Program

if TYPE_CHECKING:
    from hoptimizer.optimizers.training.tagger import DevScore, TaggerTrainingConfig

Tokens = Annotated[int, Field(ge=16)]

_BASE = "minilm"
# Fewer dev questions than this say little of an epoch or a threshold.
_FEW = 20


class TrainTagger(Optimizer):
    """A labeler and a filter for ``efficient_rag``, with which its retrieval calls no language model.

    The labeler's epoch and threshold are those with which the program retrieves best on dev. Everything is kept in the
    context's folder, from which a compile that was killed is resumed.

    Args:
        labels: the source of the useful words of a passage. ``annotations``: the data set's hops, or where it has none,
            its supporting passages; ``teacher``: ``lm.teacher``, which reads the supporting passages.
        base: the encoder that is fine-tuned: a name of the weights store, a folder or a Hub id; by default the
            program's own labeler and filter where it has them, else ``minilm``.
        negatives: the number of hard negatives per query.
        copies: the number of copies per question that ask the same about other passages.
        finish: whether a last hop has a tag of its own, after which the search ends.
        ranked: whether a passage's rank in the search counts, by as much as fits dev best.
        recall_weight: the weight of recall relative to precision in the program's dev score, by which the labeler's
            epoch and threshold are chosen; ``None`` for the epoch with the best F1 of tags and tokens, and no threshold
            but the likeliest tag.
        epochs: the most passes over the examples.
        learning_rate: the peak of the learning rate.
        batch: the number of examples per update.
        labeler_tokens: the number of tokens to which a query and a passage are cut together.
        filter_tokens: the number of tokens to which a query and what is known are cut together.

    The preset ``paper`` has the settings of the paper, and of its published code where the paper leaves them open.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {
            "labels": "teacher",
            "base": "microsoft/deberta-v3-large",
            "negatives": 1,
            "copies": 0,
            "finish": False,
            "ranked": False,
            "recall_weight": None,
            "epochs": 2,
            "learning_rate": 5e-6,
            "batch": 32,
            "labeler_tokens": 384,
            "filter_tokens": 128,
        }
    }

    def __init__(
        self,
        labels: Literal["annotations", "teacher"] = "annotations",
        base: Annotated[str, Field(min_length=1)] | None = None,
        negatives: Positive = 6,
        copies: Annotated[int, Field(ge=0)] = 0,
        finish: bool = True,
        ranked: bool = True,
        recall_weight: Annotated[float, Field(gt=0)] | None = 2.0,
        epochs: Positive = 4,
        learning_rate: Annotated[float, Field(gt=0)] = 3e-4,
        batch: Positive = 32,
        labeler_tokens: Tokens = 384,
        filter_tokens: Tokens = 128,
    ) -> None:
        self.labels = labels
        self.base = base
        self.negatives = negatives
        self.copies = copies
        self.finish = finish
        self.ranked = ranked
        self.recall_weight = recall_weight
        self.tokens = {"labeler": labeler_tokens, "filter": filter_tokens}
        self.training = {"epochs": epochs, "learning_rate": learning_rate, "batch": batch}

    def check(self, context: CompileContext) -> None:
        if not isinstance(context.program, EfficientRAG):
            raise UserError("optimizer.name=train_tagger: it is for program.name=efficient_rag; take that program")
        if self.labels == "teacher" and context.teacher_lm is None:
            raise UserError(
                "optimizer.labels=teacher: there is no teacher; name one, as in lm.teacher=MODEL, or take "
                "optimizer.labels=annotations"
            )
        if self.ranked and self.recall_weight is None:
            raise UserError(
                "optimizer.ranked: what a rank counts is fitted with the program's dev score, which recall_weight=null "
                "leaves out; set optimizer.ranked=false, or a number for optimizer.recall_weight"
            )
        splits, tags = {"train": context.trainset, "dev": context.devset}, {"tag": ANNOTATIONS["tag"]}
        check_annotations("optimizer=train_tagger", "labeler", tags, splits, "or take another program")
        steps = ["labeler", *(["filter"] if context.program.filter is not None else [])]
        if not all(self._start(context, step) for step in steps):
            from hoptimizer.optimizers.training.tagger import check_encoder

            check_encoder(self.base or _BASE)

    def compile(self, context: CompileContext) -> Program:
        compiled = context.program.deepcopy()
        train = self.gather(context, "train", context.trainset)
        dev = self.gather(context, "dev", context.devset)
        if not any(hop.tag == "continue" for one in train for hop in one.hops):
            raise UserError(
                f"optimizer.name=train_tagger: none of the {len(train)} labelled train questions has a hop that leads "
                "to another, so there is nothing to learn; take questions of several hops, or program.name=rag"
            )
        if compiled.filter is not None:
            compiled.models["filter"] = self._train_filter(context, train, dev)
        compiled.models["labeler"] = self._train_labeler(context, compiled, train, dev)
        return compiled

    def gather(self, context: CompileContext, split: str, questions: Sequence[Question]) -> list[LabelledQuestion]:
        """The labels of a split, which are written to the context's folder.

        Questions that can't be labelled are counted and skipped.

        Args:
            context: the compile.
            split: ``train`` or ``dev``.
            questions: the questions of the split.

        Raises:
            UserError: no question could be labelled.
        """
        file = context.folder / f"labels-{split}.jsonl"
        stage = f"labels of {split}"
        supported = [question for question in questions if supporting(question)]
        merged = context.program.queries == "query"
        if self.labels == "teacher":
            from hoptimizer.optimizers.labels.synthesis import synthesize

            found = synthesize(supported, context, file, stage, merged)
        else:
            found = [annotated(question, context.corpus, merged) for question in supported]
            write_labels(found, file)
        labels = [one for one in found if one.hops]
        failures = Counter(one.failure for one in found if one.failure)
        for reason, count in failures.most_common():
            context.listener.progress(
                f"{stage}: {count} of {len(found)} questions skipped: {reason}", count, len(found), ""
            )
        if not labels:
            raise UserError(
                f"optimizer.labels={self.labels}: none of the {len(found)} {split} questions could be labelled "
                f"({failures.most_common(1)[0][0]}); take more questions or another source of labels"
            )
        context.listener.progress(f"{stage}: {len(labels)} questions", len(labels), len(labels), "")
        return labels

    def _train_filter(
        self, context: CompileContext, train: Sequence[LabelledQuestion], dev: Sequence[LabelledQuestion]
    ) -> SmallModel:
        from hoptimizer.optimizers.labels.tagger_examples import FILTER_TASK, filter_examples

        by_span = context.program.queries == "span"
        examples, judged = filter_examples(train, by_span), filter_examples(dev, by_span)
        if not examples:
            raise UserError(
                "optimizer train_tagger: in no train question the passage of an earlier hop has the words that a later "
                "one needs, so the filter has nothing to learn from; take more questions, or program.filter=false"
            )
        # Without dev examples the epoch is chosen on the train examples.
        return self._train(context, FILTER_TASK, examples, judged or examples)

    def _train_labeler(
        self,
        context: CompileContext,
        program: Program,
        train: Sequence[LabelledQuestion],
        dev: Sequence[LabelledQuestion],
    ) -> SmallModel:
        from hoptimizer.optimizers.labels.tagger_examples import labeler_examples, labeler_task, refilled
        from hoptimizer.optimizers.training.retrieval_dev_score import RetrievalEvaluator

        retriever = context.program.retriever
        if retriever is None:
            raise TypeError("efficient_rag retrieves: give it a retriever")
        context.listener.progress("mining hard negatives", 0, 0, "")
        more = refilled(train, context.corpus, self.copies, context.seed)
        examples = labeler_examples([*train, *more], retriever, self.negatives, self.finish)
        judged = labeler_examples(dev, retriever, self.negatives, self.finish)
        task = labeler_task(self.finish)
        if self.recall_weight is None:
            return self._train(context, task, examples, judged)
        questions = [question for question in context.devset if supporting(question)]
        if len(questions) < _FEW:
            few = f"labeler: epoch and threshold rest on {len(questions)} dev questions alone; take {_FEW} or more"
            context.listener.progress(few, 0, 0, "")
        config = self._config(context, task.step)
        evaluator = RetrievalEvaluator(
            program, questions, task, config, self.recall_weight, self.ranked, context.workers
        )
        return self._train(context, task, examples, judged, evaluator)

    def _train(
        self,
        context: CompileContext,
        task: Task,
        examples: Sequence[TrainingExample],
        judged: Sequence[TrainingExample],
        dev_score: "DevScore | None" = None,
    ) -> SmallModel:
        from hoptimizer.models.small.loading import load_step_model
        from hoptimizer.optimizers.training.loop import reporting
        from hoptimizer.optimizers.training.tagger import train_tagger

        start = self._start(context, task.step)
        folder = context.folder / task.step
        train_tagger(
            task,
            examples,
            judged,
            self._config(context, task.step),
            folder,
            reporting(context.listener, task.step),
            dev_score,
            start.folder if start else None,
            lambda remark: context.listener.progress(f"{task.step}: {remark}", 0, 0, ""),
        )
        return load_step_model(str(folder), task.step)

    def _config(self, context: CompileContext, step: str) -> "TaggerTrainingConfig":
        from hoptimizer.optimizers.training.tagger import TaggerTrainingConfig

        origin = _origin(self._start(context, step), self.base)
        return TaggerTrainingConfig(**origin, seed=context.seed, max_tokens=self.tokens[step], **self.training)

    def _start(self, context: CompileContext, step: str) -> SmallModel | None:
        """The program's own model of a step, where the training is to start from it."""
        own = context.program.models.get(step)
        return own if self.base is None and isinstance(own, SmallModel) else None


def _origin(start: SmallModel | None, base: str | None) -> dict[str, str]:
    """The fields of a training config that name the model that training starts from, whatever folder that is in."""
    if start is None:
        return {"base": base or _BASE}
    return {"base": start.card.base, "start": hashlib.sha256(start.card.model_dump_json().encode()).hexdigest()}
