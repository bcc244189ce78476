"""From the items of a published data set to questions, with their passages in a pool."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hoptimizer.common.errors import UserError
from hoptimizer.common.progress import Report, silent
from hoptimizer.common.stream import kind
from hoptimizer.common.text import find
from hoptimizer.eval.datasets.hotpotqa import WikiItem
from hoptimizer.eval.datasets.hub import as_published
from hoptimizer.eval.datasets.pool import PassagePool
from hoptimizer.eval.datasets.published_formats import NO_ANSWER, Contexts, Decomposition, Published, with_aliases
from hoptimizer.eval.datasets.question import Question
from hoptimizer.eval.datasets.rows import DataRow, Model, OnProblem, fail, read_rows, require
from hoptimizer.retrieval.passage import Passage

SEEN = 1000
"""After so many items the progress is told: to tell it takes longer than to read one."""

_IDS = ("_id", "id", "qid", "QuestionId", "example_id")
# Answers that stand in many a passage that says nothing of the question.
_NO_EVIDENCE = {"yes", "no", "true", "false", NO_ANSWER}


@dataclass(frozen=True)
class Source:
    """Where items come from.

    Attributes:
        name: what messages call it.
        rows: gives its rows, and calls what it is given with what is wrong with one.
        file: the file, if it is one.
    """

    name: str
    rows: Callable[[OnProblem], Iterator[DataRow]]
    file: Path | None = None

    @classmethod
    def of(cls, file: Path, under: str | None) -> "Source":
        """A file, whose items may be under a key; a parquet file may be one of the hub's."""

        def rows(report: OnProblem) -> Iterator[DataRow]:
            read = read_rows(file, report, under=under, damaged=fail)
            return map(as_published, read) if kind(file) == ".parquet" else read

        return cls(str(file), rows, file)


@dataclass
class Skipped:
    """Bad items that are passed over.

    Attributes:
        count: how many.
        reasons: what was wrong with the first ones, a line each.
        most: reasons that are kept.
    """

    count: int = 0
    reasons: list[str] = field(default_factory=list)
    most: int = 5

    def __call__(self, reason: str) -> None:
        """Count one more."""
        self.count += 1
        if len(self.reasons) < self.most:
            self.reasons.append(reason)


def stop_or_skip(message: str) -> None:
    """The :data:`OnProblem` of an import that stops at the first problem, and says how such items are passed over.

    Raises:
        UserError: always, with ``message``.
    """
    fail(f"{message}, or pass over such items with --skip-bad")


@dataclass
class PublishedReader:
    """Reads items of one format, and sees to it that ids are unique across all that it reads.

    Attributes:
        item: the format.
        pool: takes the paragraphs.
        report: called with what is wrong with an item; where it returns, the item is left out.
        chains: 2WikiMultihopQA's decompositions, by the ids of their questions.
        aliases: 2WikiMultihopQA's names of its answers, by their ids.
        unanswerable: what answers questions that have no answer; ``None`` leaves them out.
        progress: hears of the progress.
        without_answer: items that have no answer.
        contexts: items without annotations, whose paragraphs were taken.
    """

    item: type[Published]
    pool: PassagePool
    report: OnProblem = fail
    chains: Mapping[str, Decomposition] = field(default_factory=dict)
    aliases: Mapping[str, list[str]] = field(default_factory=dict)
    unanswerable: str | None = None
    progress: Report = silent
    without_answer: int = 0
    contexts: int = 0
    _places: dict[str, str] = field(default_factory=dict)

    def read(self, source: Source, *, unlabelled: bool = False) -> list[Question]:
        """The questions of a source.

        Args:
            source: where the items come from.
            unlabelled: whether items may lack their annotations: their paragraphs are taken, and they are no questions.
                None of them need be one.

        Raises:
            UserError: it can't be read, there is no question in it, or an item is bad and :attr:`report` raises.
        """
        questions: list[Question] = []
        before, unanswered = self.contexts, self.without_answer
        for number, (place, item, fields) in enumerate(self._items(source), 1):
            if number % SEEN == 0:
                self.progress("questions", number, 0, source.name)
            if unlabelled and item.unlabelled and "answer" not in fields:
                self._take_contexts(place, item.unlabelled, fields)
            elif question := self._question(place, item, fields):
                questions.append(question)
        if not questions and self.contexts == before and not (unlabelled and self.without_answer > unanswered):
            raise UserError(f"{source.name}: no questions with an answer in it; give another file")
        return questions

    def read_contexts(self, source: Source) -> None:
        """Take the paragraphs of a source's items alone.

        Raises:
            UserError: as :meth:`read`, or items of this format have no paragraphs.
        """
        for number, (place, item, fields) in enumerate(self._items(source), 1):
            if number % SEEN == 0:
                self.progress("contexts", number, 0, source.name)
            if item.unlabelled is None:
                raise UserError(f"{source.name}: items of this format have no contexts to take; leave the file out")
            self._take_contexts(place, item.unlabelled, fields)

    def _items(self, source: Source) -> Iterator[tuple[str, type[Published], Any]]:
        for row in source.rows(self.report):
            for item, fields in self.item.items(row.fields, source.file):
                id = next((fields[key] for key in _IDS if fields.get(key)), None) if isinstance(fields, dict) else None
                yield row.place + (f" ({id})" if id else ""), item, fields

    def _take_contexts(self, place: str, model: type[Contexts], fields: Any) -> None:  # noqa: ANN401 - of any file
        if contexts := self._parse(model, place, fields):
            self.contexts += 1
            for title, text in contexts.texts():
                self.pool(title, text)

    def _parse(self, model: type[Model], place: str, fields: Any) -> Model | None:  # noqa: ANN401 - of any file
        try:
            return require(model, DataRow(place, fields))
        except UserError as error:
            self.report(str(error))
            return None

    def _question(self, place: str, item: type[Published], fields: Any) -> Question | None:  # noqa: ANN401 - of any file
        parsed = self._parse(item, place, fields)
        if parsed is None:
            return None
        if not parsed.has_answer and self.unanswerable is None:
            self.without_answer += 1
            return None
        try:
            question = parsed.convert(self.pool, self.chains.get(str(fields.get("_id"))))
        except ValueError as error:
            self.report(f"{place}: {error}")
            return None
        if question is None or not parsed.has_answer:
            self.without_answer += 1
        if question and not parsed.has_answer:
            # MuSiQue-Full has each question twice, with one id: with an answer to find, and without.
            new = {"id": f"{question.id}-unanswerable", "answers": [self.unanswerable], "hops": [], "rationale": None}
            question = question.model_copy(update=new)
        elif question and isinstance(parsed, WikiItem) and (names := self.aliases.get(parsed.answer_id or "")):
            question = question.model_copy(update={"answers": with_aliases(question.answers, names)})
        return question and self._new(question, place, parsed.marked)

    def _new(self, question: Question, place: str, marked: Sequence[str] = ()) -> Question | None:
        """The question, its passages those of the pool, if there was none of its id."""
        if first := self._places.get(question.id):
            self.report(f"{place}: the same id stands at {first} already; remove one of the items")
            return None
        self._places[question.id] = place
        return with_passages(question, self.pool, marked)


def with_passages(question: Question, pool: PassagePool, marked: Sequence[str] = ()) -> Question:
    """A question whose annotations name passages, where its paragraphs were divided.

    Of a supporting paragraph those passages are supporting that hold an answer of the question or of a hop, the title
    of another supporting one, or a sentence that the data set marks; all, if none does. A hop's passage is the first
    that holds its answer.

    Args:
        question: its annotations name paragraphs.
        pool: has what became of them.
        marked: the sentences that the data set marks.
    """
    main = question.main
    cited = dict.fromkeys([*question.passages, *(hop.passage for hop in question.hops), main])
    parts = {id: pool.parts(id) for id in cited if id}
    if all(len(passages) == 1 for passages in parts.values()):
        return question
    answers = {*question.answers, *(hop.answer for hop in question.hops)} - _NO_EVIDENCE
    passages: list[str] = []
    for id in question.passages:
        names = {parts[other][0].bare_title for other in question.passages} - {parts[id][0].bare_title}
        passages += _that_hold(answers | names | set(marked), parts[id])
    hops = [
        hop.model_copy(update={"passage": hop.passage and _that_hold({hop.answer}, parts[hop.passage])[0]})
        for hop in question.hops
    ]
    if main:
        main = parts[main][0].id if len(parts[main]) == 1 else parts[main][0].title
    return question.model_copy(update={"passages": list(dict.fromkeys(passages)), "hops": hops, "main": main})


def _that_hold(phrases: set[str], passages: list[Passage]) -> list[str]:
    """The ids of the passages that have one of the phrases; of all, if none has."""
    holding = [passage.id for passage in passages if any(find(passage.text, phrase) for phrase in phrases)]
    return holding or [passage.id for passage in passages]
