"""Labels that EfficientRAG's models learn from: for each hop its query, its passage and the passage's useful words.

Labels come from a data set's annotations or from a teacher (:mod:`hoptimizer.optimizers.labels.synthesis`), in the same
format.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from hoptimizer.common.paths import write_whole
from hoptimizer.common.text import Span, find, folded, words
from hoptimizer.eval.datasets.question import Question, Record, Text
from hoptimizer.eval.datasets.rows import read_rows, require
from hoptimizer.retrieval import Corpus, Passage

Tag = Literal["continue", "finish"]


class HopLabel(Record):
    """One hop of a question.

    Attributes:
        query: the query that finds its passage: the question, or the next query after an earlier hop.
        passage: the id of the passage.
        text: the passage as the models read it.
        useful: the phrases of the text that the query asks for, in their order.
        tag: ``continue`` where a further query is made with these phrases, else ``finish``.
        after: the hop, from 0, whose useful phrases the query was made with; ``None`` where the query is the question.
        asked: the hop as a question of its own, where known.
    """

    query: Text
    passage: Text
    text: Text
    useful: list[Text]
    tag: Tag
    after: int | None = Field(default=None, ge=0)
    asked: Text | None = None

    @property
    def spans(self) -> list[Span]:
        """The spans of all occurrences of the useful phrases in the text, in characters."""
        return sorted({span for phrase in self.useful for span in find(self.text, phrase)})


class LabelledQuestion(Record):
    """A question with its hops.

    Attributes:
        id: the question's id.
        question: the question's text.
        hops: the hops, each after the one that its query was made with; empty where the question could not be
            labelled.
        failure: the reason why the question could not be labelled.
    """

    id: Text
    question: Text
    hops: list[HopLabel] = Field(default_factory=list)
    failure: Text | None = None


def read_labels(file: Path) -> list[LabelledQuestion]:
    """The labelled questions of a file of JSON lines.

    Args:
        file: the file.

    Raises:
        UserError: the file can't be read, or a row of it is not a labelled question.
    """
    return [require(LabelledQuestion, row) for row in read_rows(file)]


def write_labels(labels: Iterable[LabelledQuestion], file: Path) -> None:
    """Write labelled questions as JSON lines, the whole file or nothing.

    Args:
        labels: the labelled questions.
        file: the file, whose folder is created where it is missing.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, "".join(one.model_dump_json() + "\n" for one in labels))


def annotated(question: Question, corpus: Corpus) -> LabelledQuestion:
    """A question's labels from its annotations.

    If the question has hops, a hop's answer is the useful phrase of its passage, and a hop whose question names the
    answer of an earlier hop comes after that hop. If it has none, its supporting passages are linked by their titles: a
    passage that names the title of another one leads to it.

    Args:
        question: the question.
        corpus: the corpus with its passages.
    """
    hops = list(_by_hops(question, corpus)) or list(_by_titles(question, corpus))
    failure = None if hops else "neither hops nor supporting passages"
    return LabelledQuestion(id=question.id, question=question.question, hops=hops, failure=failure)


def _by_hops(question: Question, corpus: Corpus) -> Iterator[HopLabel]:
    """The labels of a question whose hops all name their passages; none otherwise.

    ``sources[i]`` is the hop, from 0, whose answer the question of hop ``i`` names: the last such one before it, or
    ``None`` where the question itself finds the passage. A hop is then searched for with what the query of its source
    still asks, without the words that only the source needed, and the source's answer.
    """
    passages = [hop.passage for hop in question.hops if hop.passage]
    if len(passages) < len(question.hops):
        return
    queries: list[str] = []
    sources = [
        next((i for i in reversed(range(number)) if find(hop.question, question.hops[i].answer)), None)
        for number, hop in enumerate(question.hops)
    ]
    for number, (hop, after) in enumerate(zip(question.hops, sources, strict=True)):
        query = question.question
        if after is not None:
            open = " ".join(question.hops[i].question for i in _from(number, sources))
            query = next_query(queries[after], question.hops[after].answer, open)
        queries.append(query)
        text = str(corpus[passages[number]])
        useful = [hop.answer] if find(text, hop.answer) else []
        yield HopLabel(
            query=query,
            passage=passages[number],
            text=text,
            useful=useful,
            tag="continue" if number in sources else "finish",
            after=after,
            asked=hop.question,
        )


def _by_titles(question: Question, corpus: Corpus) -> Iterator[HopLabel]:
    """The labels of a question by its supporting passages alone.

    Passages are put in order, those that the question names first. ``sources[i]`` is the first passage before the
    ``i``-th whose text names its title: what is useful there is that title.
    """
    passages = [corpus[id] for id in question.passages]
    asked = set(folded(question.question).split())

    def named(passage: Passage) -> bool:
        return bool(find(question.question, passage.bare_title))

    # Passages that the question names come first, then those that share the most words with it.
    passages.sort(key=lambda p: (not named(p), -len(asked & set(folded(str(p)).split()))))
    sources: list[int | None] = []
    for number, passage in enumerate(passages):
        leading = [i for i in range(number) if find(str(passages[i]), passage.bare_title)]
        sources.append(None if named(passage) or not leading else leading[0])
    queries: list[str] = []
    for number, (passage, source) in enumerate(zip(passages, sources, strict=True)):
        text, title = str(passage), passage.bare_title
        found = [passages[i].bare_title for i, before in enumerate(sources) if before == number]
        useful = found or [answer for answer in question.answers[:1] if find(text, answer)]
        query = question.question
        if source is not None:
            query = next_query(queries[source], title, " ".join(str(passages[i]) for i in _from(number, sources)))
        queries.append(query)
        tag: Tag = "continue" if found else "finish"
        yield HopLabel(query=query, passage=passage.id, text=text, useful=useful, tag=tag, after=source)


def _from(hop: int, sources: list[int | None]) -> list[int]:
    """A hop and all hops that depend on it."""
    reached = [hop]
    for number in range(hop + 1, len(sources)):
        if sources[number] in reached:
            reached.append(number)
    return reached


def next_query(query: str, known: str, open: str) -> str:
    """The words of a query that are still open, followed by what is known (section 3.2, next-hop question filtering).

    Args:
        query: the query of the hop before.
        known: the words that this hop found.
        open: the questions of the hops that are still to come, or their passages where they have none; words of the
            query that do not occur in it are dropped.
    """
    return " ".join([*(query[start:end] for start, end in kept_words(query, known, open)), known])


def kept_words(query: str, known: str, following: str) -> list[Span]:
    """The spans of those words of a query that occur in a following text, and not in what is known.

    Args:
        query: the query.
        known: what is known.
        following: the following text.
    """
    pending = set(folded(following).split()) - set(folded(known).split())
    return [(start, end) for start, end in words(query) if folded(query[start:end]) in pending]
