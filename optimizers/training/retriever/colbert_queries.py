"""The queries that the embedded ColBERT checkpoint is trained on."""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hoptimizer.eval.datasets.question import Question
from hoptimizer.optimizers.training.retriever.colbert_data import QuestionWithContext
from hoptimizer.retrieval import Passage

_SPAN = (4, 12)  # words


@dataclass(frozen=True)
class TrainingQuery:
    """A query to train on.

    Attributes:
        text: the text of the query.
        positives: the ids of the passages that the query must find.
        ignored: the ids of passages that count neither as positives nor as negatives.
        weight: the weight of the query in the loss.
        asked: whether the query is a question of the data set as it was published.
    """

    text: str
    positives: frozenset[str]
    ignored: frozenset[str] = frozenset()
    weight: float = 1.0
    asked: bool = False


def batch_queries(
    batch: Sequence[QuestionWithContext], passages: Mapping[str, Passage], draw: random.Random
) -> list[TrainingQuery]:
    """The queries of a training step.

    They are of four kinds: the questions; the questions of their hops; the questions with the titles of other passages
    in the place of their own, since the names in a question matter more than its topic; and pairs of phrases from two
    passages, so that every passage is searched for, and no part of a query is neglected.

    Args:
        batch: the questions of the step.
        passages: the passages of the step by id, including those that support the questions.
        draw: the random number generator.
    """
    queries = []
    for asked in batch:
        question = asked.question
        gold = frozenset(question.passages)
        queries.append(TrainingQuery(question.question, gold, asked=True))
        queries.extend(
            TrainingQuery(hop.question, frozenset({hop.passage}), gold - {hop.passage}, 0.5)
            for hop in question.hops
            if hop.passage
        )
        if renamed := _renamed(question, passages, draw):
            queries.append(renamed)
        queries.append(_pair(passages, draw))
    return queries


def _renamed(question: Question, passages: Mapping[str, Passage], draw: random.Random) -> TrainingQuery | None:
    """The question with the titles that it names replaced by those of other passages, which are then its positives."""
    named = [id for id in question.passages if passages[id].bare_title.lower() in question.question.lower()]
    others = [id for id, passage in passages.items() if passage.title and id not in question.passages]
    if not named or len(others) < len(named):
        return None
    text, positives = question.question, set()
    for id, other in zip(named, draw.sample(others, len(named)), strict=True):
        title = passages[other].bare_title
        text = re.sub(re.escape(passages[id].bare_title), title.replace("\\", "\\\\"), text, flags=re.IGNORECASE)
        positives.add(other)
    return TrainingQuery(text, frozenset(positives))


def _pair(passages: Mapping[str, Passage], draw: random.Random) -> TrainingQuery:
    chosen = draw.sample(list(passages), 2)
    text = draw.choice([" ", ", ", " and ", " or "]).join(_words_of(passages[id], draw) for id in chosen)
    return TrainingQuery(text, frozenset(chosen), weight=0.5)


def _words_of(passage: Passage, draw: random.Random) -> str:
    """A passage's title, or some consecutive words of its text."""
    words = passage.text.split()
    if passage.title and draw.random() < 0.5:
        return passage.bare_title
    length = draw.randint(*_SPAN)
    start = draw.randrange(max(1, len(words) - length))
    return " ".join(words[start : start + length])
