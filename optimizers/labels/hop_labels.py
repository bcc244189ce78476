"""Labels that EfficientRAG's models learn from: for each hop its query, its passage and the passage's useful words.

Labels come from a data set's annotations or from a teacher (:mod:`hoptimizer.optimizers.labels.synthesis`), in the same
format.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from hoptimizer.common.paths import write_whole
from hoptimizer.common.text import Span, find, folded, words
from hoptimizer.eval.datasets.question import Hop, Question, Record, Text
from hoptimizer.eval.datasets.rows import read_rows, require
from hoptimizer.optimizers.labels.decomposition import apart
from hoptimizer.optimizers.labels.hop_order import HopOrder, hop_order
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
        after: the hops, from 0, whose useful phrases the query was made with, in their order; the query takes the place
            of the last one's query. Empty where the query is the question.
        asked: the hop as a question of its own, where known.
    """

    query: Text
    passage: Text
    text: Text
    useful: list[Text]
    tag: Tag
    after: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)
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
        hops: the hops, each after those that its query was made with; empty where the question could not be labelled.
        passages: the ids of passages that support the question besides those of hops.
        failure: the reason why the question could not be labelled.
    """

    id: Text
    question: Text
    hops: list[HopLabel] = Field(default_factory=list)
    passages: list[Text] = Field(default_factory=list)
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


def annotated(question: Question, corpus: Corpus, merged: bool = False) -> LabelledQuestion:
    """A question's labels from its annotations.

    If the question has hops, a hop's answer is the useful phrase of its passage, and a hop whose question names the
    answers of earlier hops comes after these: its query has the words of all of them. If it has none, its supporting
    passages are linked by their titles: a passage that names the title of another one leads to it.

    Args:
        question: the question.
        corpus: the corpus with its passages.
        merged: whether a round has one query for all its hops, as with ``program.queries=query``.
    """
    hops = list(_by_hops(question, corpus, merged)) or list(_by_titles(question, corpus, merged))
    failure = None if hops else "neither hops nor supporting passages"
    others = [id for id in question.passages if id not in {hop.passage for hop in hops}]
    return LabelledQuestion(id=question.id, question=question.question, hops=hops, passages=others, failure=failure)


def _by_hops(question: Question, corpus: Corpus, merged: bool) -> Iterator[HopLabel]:
    """The labels of a question whose hops all name their passages; none otherwise."""
    passages = [hop.passage for hop in question.hops if hop.passage]
    if len(passages) < len(question.hops):
        return
    needs = [_named(question.hops, number) for number in range(len(question.hops))]
    order = hop_order(needs, merged)
    hops = [question.hops[number] for number in order.hops]
    queries = _queries(
        question.question, order, lambda source, _: [hops[source].answer], [hop.question for hop in hops]
    )
    needed = {need for wanted in needs for need in wanted}
    for place, (number, hop) in enumerate(zip(order.hops, hops, strict=True)):
        text = str(corpus[passages[number]])
        yield HopLabel(
            query=queries[place],
            passage=passages[number],
            text=text,
            useful=[hop.answer] if find(text, hop.answer) else [],
            tag="continue" if number in needed else "finish",
            after=order.after[place],
            asked=hop.question,
        )


def _named(hops: Sequence[Hop], number: int) -> list[int]:
    """The hops before a hop whose answers its question names.

    Of several with one answer it is the last, and an answer within another one that is named ("York" in "New York") is
    not named itself.
    """
    text = apart(hops[number].question)
    last = {folded(hop.answer): before for before, hop in enumerate(hops[:number])}
    spans = {before: find(text, apart(hops[before].answer)) for before in last.values()}
    named = []
    for before, own in spans.items():
        others = [span for other, some in spans.items() if other != before for span in some]
        if any(not any(_within(span, other) for other in others) for span in own):
            named.append(before)
    return named


def _within(span: Span, other: Span) -> bool:
    return other[0] <= span[0] and span[1] <= other[1] and span != other


def _by_titles(question: Question, corpus: Corpus, merged: bool) -> Iterator[HopLabel]:
    """The labels of a question by its supporting passages alone.

    Passages are put in order, those that the question names first. ``needs[i]`` has the first passage before the
    ``i``-th whose text names its title: what is useful there is that title.
    """
    passages = [corpus[id] for id in question.passages]
    asked = set(folded(question.question).split())

    def named(passage: Passage) -> bool:
        return bool(find(question.question, passage.bare_title))

    # Passages that the question names come first, then those that share the most words with it.
    passages.sort(key=lambda p: (not named(p), -len(asked & set(folded(str(p)).split()))))
    needs: list[list[int]] = []
    for number, passage in enumerate(passages):
        leading = [i for i in range(number) if find(str(passages[i]), passage.bare_title)]
        needs.append([] if named(passage) else leading[:1])
    order = hop_order(needs, merged)
    titles = [[passages[i].bare_title for i, wanted in enumerate(needs) if hop in wanted] for hop in order.hops]

    def words_for(source: int, place: int) -> list[str]:
        return titles[source] if merged else [passages[order.hops[place]].bare_title]

    queries = _queries(question.question, order, words_for, [str(passages[hop]) for hop in order.hops])
    for place, hop in enumerate(order.hops):
        text, found = str(passages[hop]), titles[place]
        yield HopLabel(
            query=queries[place],
            passage=passages[hop].id,
            text=text,
            useful=found or [answer for answer in question.answers[:1] if find(text, answer)],
            tag="continue" if found else "finish",
            after=order.after[place],
        )


def _queries(
    question: str, order: HopOrder, words_for: Callable[[int, int], list[str]], following: Sequence[str]
) -> list[str]:
    """The query of each hop, by place: what the query before it still asks, and the words that others found.

    Args:
        question: the question.
        order: the order of the hops.
        words_for: gives the words that a hop found, and that the query of another hop is made with, by their places.
        following: by place, the hop as a question of its own, or its passage.
    """
    queries: list[str] = []
    for place, after in enumerate(order.after):
        if not after:
            queries.append(question)
            continue
        before = queries[after[-1]]
        known = " ".join(unknown_to(before, [phrase for source in after for phrase in words_for(source, place)]))
        queries.append(next_query(before, known, " ".join(following[at] for at in order.open[place])))
    return queries


def unknown_to(query: str, phrases: Iterable[str]) -> list[str]:
    """The phrases, each once, that a query does not name yet; all of them where it names all.

    Args:
        query: the query.
        phrases: the phrases that were found.
    """
    each = list(dict.fromkeys(phrases))
    return [phrase for phrase in each if not find(query, phrase)] or each


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
