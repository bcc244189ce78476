"""Training examples of small models: a step's inputs with the right output."""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import dspy

from hoptimizer.common.errors import UserError
from hoptimizer.common.text import Span
from hoptimizer.eval.datasets.question import Question
from hoptimizer.models.small.card import DataSummary, Label
from hoptimizer.optimizers.labels.annotations import holding, supporting
from hoptimizer.retrieval import Corpus, Passage

Output = Label | list[Any]


@dataclass(frozen=True)
class TrainingExample:
    """One decision of a step.

    Attributes:
        inputs: the signature's input fields, passages as texts, and whatever else the small model is given.
        output: the right value of the output field, for a list its texts; for a whole program, the conversations of
            its steps.
        copied: for a step that copies words: the words to copy, each as its input (0 for the first, 1 for the others)
            and its span in that input's text, in characters.
    """

    inputs: dict[str, Any]
    output: Output
    copied: tuple[tuple[int, Span], ...] = ()


@dataclass(frozen=True)
class Task:
    """What a small model learns to do.

    Attributes:
        step: the step's name.
        inputs: the names of the signature's input fields.
        output: the name of its output field.
        labels: the labels of a step that chooses, in the order of the model's logits; with two, the second is the
            positive one. They are empty for a step that writes.
        listed: whether the output is a list of texts.
    """

    step: str
    inputs: tuple[str, ...]
    output: str
    labels: tuple[Label, ...] = ()
    listed: bool = False

    @classmethod
    def of(cls, step: str, signature: type[dspy.Signature]) -> "Task":
        """The task that a signature with one output field of type bool, Literal, str or list[str] describes.

        Of two literals the first is the positive one, since signatures name first what they ask for.

        Args:
            step: the step's name.
            signature: the step's signature.

        Raises:
            UserError: the signature has several output fields, or one of another type.
        """
        inputs, outputs = tuple(signature.input_fields), signature.output_fields
        (name, info), *others = outputs.items()
        if not others:
            kind = info.annotation
            if kind is bool:
                return cls(step, inputs, name, labels=(False, True))
            if get_origin(kind) is Literal:
                return cls(step, inputs, name, labels=tuple(reversed(get_args(kind))))
            if kind in (str, list[str]):
                return cls(step, inputs, name, listed=kind is not str)
        raise UserError(
            f"step {step!r} can't be fine-tuned: its signature needs one output field of type bool, Literal, str or "
            f"list[str], and has {', '.join(f'{n}: {i.annotation}' for n, i in outputs.items())}"
        )


def describe(task: Task, examples: Sequence[TrainingExample]) -> DataSummary:
    """The size, class balance and digest of examples, for the card.

    Args:
        task: the task that the examples belong to.
        examples: the examples.
    """
    parts = ([one.inputs, one.output] + ([one.copied] if one.copied else []) for one in examples)
    lines = (json.dumps(part, ensure_ascii=False) for part in parts)
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    counts = Counter(str(example.output) for example in examples) if task.labels else Counter()
    return DataSummary(n=len(examples), classes=dict(sorted(counts.items())), digest=digest)


def label_places(task: Task, examples: Sequence[TrainingExample]) -> list[int]:
    """The place of each example's label among those of the task."""
    places: dict[object, int] = {label: place for place, label in enumerate(task.labels)}
    return [places[example.output] for example in examples]


def check_labels(task: Task, examples: Sequence[TrainingExample], name: str) -> None:
    """Make sure that the examples of a step that chooses have every label.

    Args:
        task: the task, which has labels.
        examples: the examples to learn from or to score on.
        name: the name of the examples in the error, such as ``train``.

    Raises:
        UserError: no example has some label, or an example has an unknown one.
    """
    given = Counter(example.output for example in examples if not isinstance(example.output, list))
    for label in task.labels:
        if not given[label]:
            raise UserError(
                f"step {task.step!r}: none of the {len(examples)} {name} examples has the label {label!r}; "
                "take more questions, another source of labels, or leave the step out"
            )
    if others := sorted(str(label) for label in given if label not in task.labels):
        raise UserError(f"step {task.step!r}: {name} examples have the label {others[0]!r}; known: {task.labels}")


def relevance_examples(
    questions: Sequence[Question],
    found: Sequence[Sequence[Passage]],
    contexts: Sequence[Sequence[str]],
    corpus: Corpus,
    fields: tuple[str, str] = ("question", "passage"),
    labels: tuple[Label, Label] = (False, True),
) -> list[TrainingExample]:
    """Examples of whether a passage holds a question's answer, from the data set's annotations (RA-ISF, appendix A.2).

    The passages that hold the answer are relevant (:func:`~hoptimizer.optimizers.labels.annotations.holding`); all
    others that support the question, were retrieved for it or were published with it are not. Each of its hops is a
    question, too, since a program's sub-questions resemble them, and only its own passage is relevant to it.

    Args:
        questions: questions with ``passages`` and perhaps ``hops``.
        found: the passages that a retriever found, by question.
        contexts: the ids of the passages that a question was published with, by question.
        corpus: the corpus; passages that were found need not be in it, since a server may hold others.
        fields: the names of the signature's input fields for the question and the passage.
        labels: the labels of irrelevant and relevant passages.
    """
    examples: list[TrainingExample] = []
    for question, ranking, context in zip(questions, found, contexts, strict=True):
        known = {passage.id: passage for passage in ranking}
        ids = list(dict.fromkeys([*supporting(question), *context, *known]))
        asked = [(question.question, holding(question, corpus))]
        asked += [(hop.question, supporting(question, hop)) for hop in question.hops if hop.passage in ids]
        for text, gold in asked:
            for id in ids:
                examples.append(
                    TrainingExample(
                        dict(zip(fields, (text, str(known.get(id) or corpus[id])), strict=True)), labels[id in gold]
                    )
                )
    return examples


def sufficiency_examples(
    asked: str,
    needed: Sequence[Passage],
    found: Sequence[Passage],
    labels: tuple[Label, Label],
    rng: random.Random | None = None,
) -> list[TrainingExample]:
    """Examples of whether passages together suffice to answer a question (RA-ISF, tables 11 and 12).

    Args:
        asked: the question.
        needed: the passages that support it: others suffice only together with all of these.
        found: the passages that a retriever found.
        labels: the labels of passages that do not suffice and of those that do.
        rng: if given, determines the order of the passages in further examples: the found passages with all that are
            needed, and with all but one of these.
    """
    ids = {passage.id for passage in needed}
    sets = [list(found)]
    if rng is not None:
        others = [passage for passage in found if passage.id not in ids]
        for kept in [list(needed), *([p for p in needed if p is not left_out] for left_out in needed)]:
            sets.append([*kept, *others][: max(len(needed), len(found))])
            rng.shuffle(sets[-1])
    return [
        TrainingExample(
            {"question": asked, "retrieved": [str(passage) for passage in shown]},
            labels[ids <= {passage.id for passage in shown}],
        )
        for shown in sets
        if shown
    ]
