"""What small models learn from: a step's inputs with the output that is right."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import dspy

from hoptimizer.common.errors import UserError
from hoptimizer.common.text import Span
from hoptimizer.eval.datasets.question import Question
from hoptimizer.models.small.card import DataSummary, Label
from hoptimizer.optimizers.labels.annotations import supporting
from hoptimizer.retrieval import Corpus, Passage

Output = Label | list[Any]


@dataclass(frozen=True)
class TrainingExample:
    """One decision of a step.

    Attributes:
        inputs: the signature's input fields, passages as texts; and what else a small model is told.
        output: what the output field should be, of a step that writes a list its texts; of a whole program, the
            conversations of its steps.
        copied: of a step that copies words: which of its first input (0) and of the others (1), and where they stand.
    """

    inputs: dict[str, Any]
    output: Output
    copied: tuple[tuple[int, Span], ...] = ()


@dataclass(frozen=True)
class Task:
    """What a small model is to do.

    Attributes:
        step: the step's name.
        inputs: names of the signature's input fields.
        output: name of its output field.
        labels: of a step that chooses, in the order of the model's logits; of two, the second is the positive one.
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

        The positive one of two literals is the first: signatures name what they ask for first.

        Raises:
            UserError: the signature has another number or type of output fields.
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
    """Size, balance and digest of examples, for the card."""
    parts = ([one.inputs, one.output] + ([one.copied] if one.copied else []) for one in examples)
    lines = (json.dumps(part, ensure_ascii=False) for part in parts)
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    counts = Counter(str(example.output) for example in examples) if task.labels else Counter()
    return DataSummary(n=len(examples), classes=dict(sorted(counts.items())), digest=digest)


def check_labels(task: Task, examples: Sequence[TrainingExample], name: str) -> None:
    """Make sure that a step which chooses can be learned.

    Args:
        task: with labels.
        examples: what to learn from or to be scored on.
        name: what the error calls them.

    Raises:
        UserError: a label is missing, or strange.
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
    hops: bool = True,
) -> list[TrainingExample]:
    """Whether passages support a question, from the data set's annotations (RA-ISF, appendix A.2).

    A question's supporting passages are relevant, whatever else was retrieved for it or published with it is not.
    Its hops are questions as well, whose own passage is the relevant one among the question's.

    Args:
        questions: annotated with ``passages`` and perhaps ``hops``.
        found: what a retriever found for each question.
        contexts: ids of the passages that each question was published with.
        corpus: holds them all.
        fields: the signature's input fields for question and passage.
        labels: for irrelevant and relevant.
        hops: whether to learn from the hops too, which decomposed questions resemble.
    """
    examples: list[TrainingExample] = []
    for question, ranking, context in zip(questions, found, contexts, strict=True):
        ids = list(dict.fromkeys([*supporting(question), *context, *(passage.id for passage in ranking)]))
        asked = [(question.question, supporting(question))]
        asked += [(hop.question, supporting(question, hop)) for hop in question.hops if hops and hop.passage in ids]
        for text, gold in asked:
            for id in ids:
                examples.append(
                    TrainingExample(dict(zip(fields, (text, str(corpus[id])), strict=True)), labels[id in gold])
                )
    return examples
