"""Fine-tuning of EfficientRAG's two models for a data set (Zhuang et al., 2024, sections 3.2 and 3.3)."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from hoptimizer.common.errors import UserError
from hoptimizer.eval.datasets.question import Question
from hoptimizer.models.small.base import SmallModel
from hoptimizer.optimizers.labels.annotations import ANNOTATIONS, check_annotations, supporting
from hoptimizer.optimizers.labels.hop_labels import LabelledQuestion, annotated, write_labels
from hoptimizer.optimizers.optimizer import CompileContext, Optimizer
from hoptimizer.programs import EfficientRAG, Program

Positive = Annotated[int, Field(ge=1)]


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
        recall_weight: the weight of recall relative to precision in the dev score.
        epochs: the most passes over the examples.
        learning_rate: the peak of the learning rate.
        batch: the number of examples per update.
        max_tokens: the number of tokens to which a query and a passage are cut together; in the filter, a query and
            what is known.
    """

    def __init__(
        self,
        labels: Literal["annotations", "teacher"] = "annotations",
        base: Annotated[str, Field(min_length=1)] | None = None,
        negatives: Annotated[int, Field(ge=0)] = 6,
        copies: Annotated[int, Field(ge=0)] = 0,
        finish: bool = True,
        ranked: bool = True,
        recall_weight: Annotated[float, Field(gt=0)] = 2.0,
        epochs: Positive = 4,
        learning_rate: Annotated[float, Field(gt=0)] = 3e-4,
        batch: Positive = 32,
        max_tokens: Annotated[int, Field(ge=16)] = 128,
    ) -> None:
        self.labels = labels
        self.base = base
        self.negatives = negatives
        self.copies = copies
        self.finish = finish
        self.ranked = ranked
        self.recall_weight = recall_weight
        self.training = {
            "epochs": epochs,
            "learning_rate": learning_rate,
            "batch": batch,
            "max_tokens": max_tokens,
        }

    def check(self, context: CompileContext) -> None:
        if not isinstance(context.program, EfficientRAG):
            raise UserError("optimizer.name=train_tagger: it is for program.name=efficient_rag; take that program")
        if self.labels == "teacher" and context.teacher_lm is None:
            raise UserError("optimizer.labels=teacher: there is no teacher; name one, as in lm.teacher=MODEL")
        splits, tags = {"train": context.trainset, "dev": context.devset}, {"tag": ANNOTATIONS["tag"]}
        check_annotations("optimizer=train_tagger", "labeler", tags, splits, "or take another program")

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
        if self.labels == "teacher":
            from hoptimizer.optimizers.labels.synthesis import synthesize

            found = synthesize(supported, context, file, stage)
        else:
            found = [annotated(question, context.corpus) for question in supported]
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
        from hoptimizer.optimizers.training.loop import reporting
        from hoptimizer.optimizers.training.tagger import TaggerTrainingConfig, train_tagger

        examples, judged = filter_examples(train), filter_examples(dev)
        start = self._start(context, "filter")
        config = TaggerTrainingConfig(**_origin(start, self.base), seed=context.seed, **self.training)
        folder = context.folder / "filter"
        # Without dev examples the epoch is chosen on the train examples.
        report = reporting(context.listener, "filter")
        train_tagger(
            FILTER_TASK, examples, judged or examples, config, folder, report, start=start.folder if start else None
        )
        return _load(folder, "filter")

    def _train_labeler(
        self,
        context: CompileContext,
        program: Program,
        train: Sequence[LabelledQuestion],
        dev: Sequence[LabelledQuestion],
    ) -> SmallModel:
        from hoptimizer.optimizers.labels.tagger_examples import labeler_examples, labeler_task, refilled
        from hoptimizer.optimizers.training.loop import reporting
        from hoptimizer.optimizers.training.retrieval_dev_score import RetrievalEvaluator
        from hoptimizer.optimizers.training.tagger import TaggerTrainingConfig, train_tagger

        retriever = context.program.retriever
        if retriever is None:
            raise TypeError("efficient_rag retrieves: give it a retriever")
        context.listener.progress("mining hard negatives", 0, 0, "")
        more = refilled(train, context.corpus, self.copies, context.seed)
        examples = labeler_examples([*train, *more], retriever, self.negatives, self.finish)
        judged = labeler_examples(dev, retriever, self.negatives, self.finish)
        task = labeler_task(self.finish)
        start = self._start(context, "labeler")
        config = TaggerTrainingConfig(**_origin(start, self.base), seed=context.seed, **self.training)
        questions = [question for question in context.devset if supporting(question)]
        evaluator = RetrievalEvaluator(
            program, questions, task, config, self.recall_weight, self.ranked, context.workers
        )
        folder = context.folder / "labeler"
        report = reporting(context.listener, "labeler")
        train_tagger(task, examples, judged, config, folder, report, evaluator, start.folder if start else None)
        return _load(folder, "labeler")

    def _start(self, context: CompileContext, step: str) -> SmallModel | None:
        """The program's own model of a step, where the training is to start from it."""
        own = context.program.models.get(step)
        return own if self.base is None and isinstance(own, SmallModel) else None


def _origin(start: SmallModel | None, base: str | None) -> dict[str, str]:
    """The fields of a training config that name the model that training starts from, whatever folder that is in."""
    if start is None:
        return {"base": base or "minilm"}
    return {"base": start.card.base, "start": hashlib.sha256(start.card.model_dump_json().encode()).hexdigest()}


def _load(folder: Path, step: str) -> SmallModel:
    from hoptimizer.models.small.loading import load_step_model

    return load_step_model(str(folder), step)
