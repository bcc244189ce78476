"""Training examples of EfficientRAG's labeler and filter, with mined negatives and copies of refilled questions."""

import random
from collections import defaultdict
from collections.abc import Sequence

from hoptimizer.common.text import Span, find, folded, words
from hoptimizer.models.small.card import TERMINATE
from hoptimizer.optimizers import searches
from hoptimizer.optimizers.labels.examples import Task, TrainingExample
from hoptimizer.optimizers.labels.hop_labels import HopLabel, LabelledQuestion, kept_words, unknown_to
from hoptimizer.retrieval import Corpus, Passage, Retriever

CONTINUE, FINISH = "continue", "finish"


def labeler_task(finish: bool) -> Task:
    """The labeler's task: its inputs, and the tags that it chooses from.

    Args:
        finish: whether a last hop has a tag of its own.
    """
    labels = (TERMINATE, CONTINUE, FINISH) if finish else (TERMINATE, CONTINUE)
    return Task("labeler", ("query", "passage"), "tag", labels)


FILTER_TASK = Task("filter", ("query", "known"), "next_query")


def labeler_examples(
    labels: Sequence[LabelledQuestion], retriever: Retriever, negatives: int, finish: bool
) -> list[TrainingExample]:
    """Examples of passages that a query keeps, with their useful words, and of passages that it does not keep.

    The passages of a question's other hops are no negatives of a query: although the query does not ask for them, they
    are useful to the question.

    Args:
        labels: the labelled questions.
        retriever: finds the hard negatives, the most similar passages that do not support the question (section 3.2).
        negatives: the number of hard negatives per query.
        finish: whether a last hop has a tag of its own.
    """
    positive = [
        TrainingExample(
            {"query": hop.query, "passage": hop.text},
            hop.tag if finish else CONTINUE,
            copied=tuple((1, span) for span in hop.spans),
        )
        for one in labels
        for hop in one.hops
    ]
    asked = [(query, one) for one in labels for query in dict.fromkeys(hop.query for hop in one.hops)]
    wanted = [query for query, _ in asked]
    found = searches.found(retriever, wanted, 2 * negatives + 2) if negatives else [[] for _ in asked]
    negative = [
        TrainingExample({"query": query, "passage": str(passage)}, TERMINATE)
        for (query, one), passages in zip(asked, found, strict=True)
        for passage in _strangers(one, passages)[:negatives]
    ]
    return positive + negative


def _strangers(one: LabelledQuestion, passages: Sequence[Passage]) -> list[Passage]:
    gold = {*one.passages, *(hop.passage for hop in one.hops)}
    return [passage for passage in passages if passage.id not in gold]


def filter_examples(labels: Sequence[LabelledQuestion], by_span: bool = True) -> list[TrainingExample]:
    """Examples of the words of a query, and of what is known, that make the next query.

    A hop that comes after several others is given the words of all of them.

    Args:
        labels: the labelled questions.
        by_span: whether each useful phrase of a passage makes a query of its own, as with ``program.queries=span``.
    """
    examples = []
    for one in labels:
        pairs: dict[tuple[str, str, str], None] = {}  # hops of one round may share their query
        for hop in one.hops:
            if not hop.after:
                continue
            query = one.hops[hop.after[-1]].query
            phrases = [p for source in hop.after for p in one.hops[source].useful if find(hop.query, p)]
            alone = by_span and len(hop.after) == 1
            known = phrases if alone else [" ".join(unknown_to(query, phrases))] * bool(phrases)
            pairs |= dict.fromkeys((query, some, hop.query) for some in known)
        for query, some, following in pairs:
            kept = _kept(query, some, following)
            examples.append(TrainingExample({"query": query, "known": some}, following, copied=kept))
    return examples


def _kept(query: str, known: str, following: str) -> tuple[tuple[int, Span], ...]:
    return (*((0, span) for span in kept_words(query, known, following)), *((1, span) for span in words(known)))


def refilled(labels: Sequence[LabelledQuestion], corpus: Corpus, copies: int, seed: int) -> list[LabelledQuestion]:
    """Copies of questions that ask the same about other passages.

    Two hops ask the same where their questions differ only by the title of their passage ("Who directed …?"). In a
    copy, each hop that the question itself finds is replaced by another hop that asks the same, both in the question
    and in the labels. Each later hop, whose query names what it looks for, is replaced in the same way.

    Args:
        labels: the labelled questions.
        corpus: the corpus with the passages and their titles.
        copies: the number of copies per question.
        seed: determines the hops that are filled in.
    """
    rng = random.Random(seed)
    alike: dict[str, list[HopLabel]] = defaultdict(list)
    for one in labels:
        for hop in one.hops:
            if template := _template(hop, corpus):
                alike[template].append(hop)
    copied = (_refill(one, alike, corpus, f"{one.id}-{number}", rng) for one in labels for number in range(copies))
    return [one for one in copied if one]


def _template(hop: HopLabel, corpus: Corpus) -> str | None:
    """A hop's question with a gap for its passage's title.

    It is ``None`` where the question does not name the title, or the hop has no useful words.
    """
    if not hop.asked or not hop.useful:
        return None
    filled = _replaced(hop.asked, corpus[hop.passage], "\x00")
    return None if filled is None else " ".join(folded(part) for part in filled.split("\x00"))


def _replaced(text: str, passage: Passage, by: str) -> str | None:
    """A text with another name in the place of a passage's title; ``None`` where it does not name the title."""
    for title in dict.fromkeys((passage.title, passage.bare_title)):
        if spans := find(text, title):
            start, end = spans[0]
            # A closing bracket is no part of a word, and so not of the span: it is removed with the title.
            closing = title.endswith(")") and text[end : end + 1] == ")"
            return text[:start] + by + text[end + closing :]
    return None


def _refill(
    one: LabelledQuestion, alike: dict[str, list[HopLabel]], corpus: Corpus, id: str, rng: random.Random
) -> LabelledQuestion | None:
    """One copy; ``None`` where nothing of the question can be replaced."""
    question = one.question
    taken: list[tuple[HopLabel, HopLabel, str]] = []  # the hop, the hop whose passage it gets, and its query
    for hop in one.hops:
        others = [other for other in alike.get(_template(hop, corpus) or "", ()) if other.passage != hop.passage]
        if not others:
            continue
        other = rng.choice(others)
        instead = corpus[other.passage]
        name = instead.title if rng.random() < 0.5 else instead.bare_title
        filled = _replaced(question if not hop.after else hop.query, corpus[hop.passage], name)
        if filled is None:
            continue
        if not hop.after:
            question = filled
        taken.append((hop, other, filled))
    if not taken:
        return None
    hops = [
        other.model_copy(update={"query": question if not hop.after else filled, "tag": hop.tag, "after": []})
        for hop, other, filled in taken
    ]
    # The question goes on naming the passages of the hops that stay as they are.
    named = [*one.passages, *(hop.passage for hop in one.hops if all(hop is not replaced for replaced, _, _ in taken))]
    return LabelledQuestion(id=id, question=question, hops=hops, passages=named)
