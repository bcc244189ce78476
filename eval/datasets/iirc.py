"""IIRC (Ferguson et al., 2020): questions about a paragraph, whose answers need pages that it links to.

The folder of the questions has ``context_articles.json``, the linked pages by their titles in lower case. As IRCoT does
it (Trivedi et al., 2023, appendix A), a passage is a line of a page with more than ten words, and the supporting ones
are those most like what an annotator marked.
"""

import hashlib
import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, model_validator
from rapidfuzz import fuzz

from hoptimizer.common.errors import UserError
from hoptimizer.common.progress import Report, silent
from hoptimizer.common.stream import DAMAGED, JsonStream, MalformedText, opened
from hoptimizer.eval.datasets.pool import PassagePool, Pool
from hoptimizer.eval.datasets.published_formats import NO_ANSWER, Decomposition, Published
from hoptimizer.eval.datasets.question import AnyText, Question, Record, Text
from hoptimizer.eval.datasets.rows import DataRow, fail, read_rows, require

ARTICLES_FILES = ("context_articles.json", "context_articles.json.gz")
"""The published file of the linked pages, which is read where it lies beside the questions."""

_TAG = re.compile(r"<[^<>]*>")
_FEWEST_WORDS = 11
_SEEN = 100  # pages after which the progress is told
_ALIKE = 50  # of 100: a snippet that no paragraph of its page resembles is a passage itself


class IircContext(BaseModel):
    """What an annotator marked as needed: some text of a page, or of the paragraph itself (``main``)."""

    text: AnyText
    passage: Text


class IircSpan(BaseModel):
    """A span of an answer."""

    text: Text


class IircAnswer(BaseModel):
    """An answer: spans, a number, yes or no, or none."""

    type: Literal["span", "value", "binary", "none"]
    answer_spans: list[IircSpan] = []
    answer_value: AnyText = ""

    @model_validator(mode="after")
    def _has_what_its_type_says(self) -> Self:
        if (self.type == "span" and not self.answer_spans) or (
            self.type in ("value", "binary") and not self.answer_value.strip()
        ):
            raise ValueError(f"'answer' is of type {self.type!r}, but has no such answer; correct it")
        return self

    @property
    def text(self) -> str:
        """The answer in one text; several spans are a list in brackets, as :func:`drop_em` reads them."""
        spans = [span.text for span in self.answer_spans] if self.type == "span" else [self.answer_value]
        return spans[0] if len(spans) == 1 else json.dumps(spans, ensure_ascii=False)


class IircItem(Published):
    """A question of IIRC, with the title and text of the paragraph that it is asked about."""

    title: Text
    text: Text
    qid: Text | None = None
    question: Text
    context: list[IircContext]
    answer: IircAnswer

    @classmethod
    def items(cls, fields: dict[str, Any], file: Path | None) -> Iterator[tuple[type[Published], Any]]:
        """The questions of a paragraph."""
        page = {key: fields[key] for key in ("title", "text") if key in fields}
        questions = fields.get("questions")
        for question in questions if isinstance(questions, list) else [{}]:
            yield cls, {**page, **question} if isinstance(question, dict) else question

    @property
    def has_answer(self) -> bool:
        """Whether the pages have the answer."""
        return self.answer.type != "none"

    def convert(self, pool: Pool, decomposition: Decomposition | None) -> Question:
        """The item as a question; the paragraph it is asked about is its ``main`` passage, and a supporting one."""
        main = pool(self.title, self.text)
        gold = [main, *(self._paragraph(context, pool) for context in self.context if context.passage != "main")]
        marked = [(self.title if c.passage == "main" else c.passage, c.text.strip()) for c in self.context]
        facts = [f"{title}: {text}" for title, text in marked if text]
        answer = self.answer.text if self.has_answer else NO_ANSWER
        made = hashlib.sha256(f"{self.title}\n{self.question}".encode()).hexdigest()[:16]
        return Question(
            id=self.qid or made,
            question=self.question,
            answers=[answer],
            passages=list(dict.fromkeys(id for id in gold if id)),
            rationale=" ".join([*facts, f"So the answer is: {answer}."]),
            type=self.answer.type,
            main=main,
        )

    def _paragraph(self, context: IircContext, pool: Pool) -> str | None:
        """The paragraph of the page that has the marked text."""
        paragraphs = pool.titled(context.passage)
        if not paragraphs:
            raise ValueError(f"'context' names {context.passage!r}, which {ARTICLES_FILES[0]} lacks; add the page")
        likeness = [fuzz.partial_ratio(paragraph.text, context.text) for paragraph in paragraphs]
        if max(likeness) < _ALIKE and context.text.strip():
            return pool(paragraphs[0].title, context.text)
        return paragraphs[likeness.index(max(likeness))].id


class Article(Record):
    """A page of ``context_articles.json``."""

    title: Text
    text: AnyText


def pool_articles(path: Path, pool: PassagePool, files: list[Path], report: Report = silent) -> None:
    """Take the linked pages into a corpus, paragraph by paragraph.

    Args:
        path: the published file.
        pool: takes them.
        files: the questions, whose links have the titles in their own case.
        report: hears of the progress.

    Raises:
        UserError: a file is missing, damaged or malformed.
    """
    titles = {title.casefold(): title for file in files for title in _linked(file)}
    try:
        with opened(path) as file:
            pages = JsonStream(file)
            for number, key in enumerate(pages.members(), 1):
                row = DataRow(f"{path}, page {number} ({key})", {"title": key, "text": pages.value()})
                article = require(Article, row)
                paragraphs = [line for line in html.unescape(_TAG.sub("", article.text)).split("\n") if line.strip()]
                long = [line for line in paragraphs if len(line.split()) >= _FEWEST_WORDS]
                for paragraph in long or [" ".join(paragraphs) or article.title]:
                    pool.add(titles.get(article.title.casefold(), article.title), paragraph)
                if number % _SEEN == 0:
                    report("pages", number, 0, "")
            pages.end()
    except MalformedText as error:
        raise UserError(f"{path}:{error.line}: {error}") from None
    except (OSError, *DAMAGED) as error:
        raise UserError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error}); check it") from error


def find_articles(files: list[Path]) -> Path:
    """The published file of the linked pages, in the folder of the questions.

    Raises:
        UserError: it is not there.
    """
    beside = [file.parent / name for file in files for name in ARTICLES_FILES]
    for path in beside:
        if path.is_file():
            return path
    raise UserError(f"{beside[0]}: no such file; put IIRC's linked pages there, or give the file with --corpus")


def _linked(file: Path) -> Iterator[str]:
    """The titles of the pages that the paragraphs of a file link to."""
    for row in read_rows(file, lambda _: None, damaged=fail):
        links = row.fields.get("links")
        for link in links if isinstance(links, list) else []:
            if isinstance(link, dict) and isinstance(link.get("target"), str):
                yield link["target"].strip()
