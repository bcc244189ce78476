"""Published formats of open-domain questions: Natural Questions (Kwiatkowski et al., 2019) and TriviaQA (Joshi et al.,
2017) as they are published, and lines of a question and its answers as NQ-open (Lee et al., 2019) has them.
"""

import hashlib
import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import parse_qs, urlparse

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from hoptimizer.common.paths import is_within
from hoptimizer.eval.datasets.pool import Pool, plain
from hoptimizer.eval.datasets.published_formats import NO_ANSWER, Decomposition, Published, with_aliases
from hoptimizer.eval.datasets.question import AnyText, Question, Text

_TAG = re.compile(r"<[^<>]*>")


class OpenItem(Published):
    """A question with its answers, without paragraphs."""

    question: Text
    answer: Annotated[list[Text], Field(min_length=1)]

    def convert(self, pool: Pool, decomposition: Decomposition | None) -> Question:
        """The item as a question; its id is made of its words."""
        id = hashlib.sha256("\n".join([self.question, *self.answer]).encode()).hexdigest()[:16]
        return Question(id=id, question=self.question, answers=list(dict.fromkeys(self.answer)))


class NqSpan(BaseModel):
    """Tokens of a page, by their numbers: -1 where there are none."""

    start_token: int
    end_token: int
    top_level: bool = True


class NqAnnotation(BaseModel):
    """What one annotator found."""

    long_answer: NqSpan
    short_answers: list[NqSpan] = []
    yes_no_answer: str = "NONE"


class NqToken(BaseModel):
    """A token of a page in the whole format; its bytes are those of the page's HTML."""

    token: AnyText
    html_token: bool
    start_byte: int = 0
    end_byte: int = 0


class NqItem(Published):
    """An item of Natural Questions, whole or simplified: a page, and what annotators marked in it.

    Its paragraphs are the page's candidates for long answers that lie in no other one; the supporting ones are those
    that were marked. Its answers are the short answers and yes or no; an item with a long answer alone has none.
    """

    id: Annotated[Text, BeforeValidator(str)] = Field(alias="example_id")
    question: Text = Field(alias="question_text")
    annotations: Annotated[list[NqAnnotation], Field(min_length=1)]
    candidates: list[NqSpan] = Field(default=[], alias="long_answer_candidates")
    title: AnyText = Field(default="", alias="document_title")
    url: AnyText = Field(default="", alias="document_url")
    text: AnyText = Field(default="", alias="document_text")
    tokens: list[NqToken] = Field(default=[], alias="document_tokens")
    html: AnyText = Field(default="", alias="document_html")

    @classmethod
    def items(cls, fields: dict[str, Any], file: Path | None) -> Iterator[tuple[type[Published], Any]]:
        """The row, as an item of Natural Questions or of NQ-open."""
        yield (OpenItem if "question" in fields else cls), fields

    @model_validator(mode="after")
    def _has_its_page(self) -> Self:
        if not self.text and not self.tokens:
            raise ValueError("'document_text' or 'document_tokens' is missing; add it")
        count = len(self.tokens) or self.text.count(" ") + 1
        short = (span for annotation in self.annotations for span in annotation.short_answers)
        for span in (*short, *(annotation.long_answer for annotation in self.annotations)):
            if span.end_token > count:
                raise ValueError(f"'annotations' has token {span.end_token}, but the page has only {count} tokens")
        return self

    @property
    def has_answer(self) -> bool:
        """Whether an annotator found a short answer, or yes or no."""
        return any(a.short_answers or a.yes_no_answer in ("YES", "NO") for a in self.annotations)

    def convert(self, pool: Pool, decomposition: Decomposition | None) -> Question:
        """The item as a question."""
        words = [(t.token, t.html_token) for t in self.tokens] or [
            (token, token.startswith("<") and token.endswith(">")) for token in self.text.split(" ")
        ]
        query = parse_qs(urlparse(html.unescape(self.url)).query)
        title = html.unescape(self.title) or query.get("title", [""])[0].replace("_", " ")
        page = self.html.encode()
        ids = {
            (span.start_token, span.end_token): pool(title, self._written(span, words, page))
            for span in self.candidates
            if span.top_level
        }
        marked = [annotation.long_answer.start_token for annotation in self.annotations]
        gold = [id for (start, end), id in ids.items() if id and any(start <= place < end for place in marked)]
        answers = [self._written(span, words, page) for a in self.annotations for span in a.short_answers]
        answers += [a.yes_no_answer.lower() for a in self.annotations if a.yes_no_answer in ("YES", "NO")]
        return Question(
            id=self.id,
            question=self.question,
            answers=with_aliases([], answers) or [NO_ANSWER],
            passages=list(dict.fromkeys(gold)),
        )

    def _written(self, span: NqSpan, words: list[tuple[str, bool]], page: bytes) -> str:
        """The text of some tokens: as the page has it, or with its punctuation put back in place."""
        if page and self.tokens and 0 <= span.start_token < span.end_token:
            start, end = self.tokens[span.start_token].start_byte, self.tokens[span.end_token - 1].end_byte
            return plain(html.unescape(_TAG.sub(" ", page[start:end].decode("utf-8", "ignore"))))
        text = " ".join(word for word, is_tag in words[max(span.start_token, 0) : span.end_token] if not is_tag)
        text = re.sub(r"``\s*|\s*''", '"', html.unescape(text))
        text = re.sub(r" (?=[,.;:!?%)\]}]|'s\b|n't\b)", "", text)
        return re.sub(r"(?<=[(\[{$]) ", "", text)


class TriviaAnswer(BaseModel):
    """The answer of a TriviaQA item. Its normalized forms say nothing that the others do not."""

    Value: Text
    Aliases: list[AnyText] = []
    HumanAnswers: list[AnyText] = []


class TriviaPage(BaseModel):
    """A page of Wikipedia, or one that a search of the web found: its text is in a file of the evidence folder."""

    Title: AnyText = ""
    Filename: AnyText = ""
    text: AnyText = ""


class TriviaItem(Published):
    """An item of TriviaQA's ``qa/*.json``, or a line of a question and its answers.

    Its paragraphs are the pages of the folder ``evidence`` beside ``qa``, if it is there. Those with an answer in them
    count as supporting, as in the paper (section 3.2, distant supervision).
    """

    under = "Data"

    id: Text = Field(alias="QuestionId")
    question: Text = Field(alias="Question")
    answer: TriviaAnswer = Field(alias="Answer")
    entity_pages: list[TriviaPage] = Field(default=[], alias="EntityPages")
    search_results: list[TriviaPage] = Field(default=[], alias="SearchResults")

    @classmethod
    def items(cls, fields: dict[str, Any], file: Path | None) -> Iterator[tuple[type[Published], Any]]:
        """The row, as an item of TriviaQA with the texts of its pages, or as a question with its answers."""
        if "question" in fields:
            yield OpenItem, fields
            return
        evidence = file.absolute().parent.parent / "evidence" if file else None
        if evidence and evidence.is_dir():
            fields = dict(fields)
            for key, folder in (("EntityPages", "wikipedia"), ("SearchResults", "web")):
                if isinstance(pages := fields.get(key), list):
                    fields[key] = [_with_text(page, evidence / folder) for page in pages]
        yield cls, fields

    @property
    def has_answer(self) -> bool:
        """Whether the answer is told; the hub's test split has "<unk>" in its place."""
        return self.answer.Value != "<unk>"

    def convert(self, pool: Pool, decomposition: Decomposition | None) -> Question:
        """The item as a question."""
        answers = with_aliases([self.answer.Value], [*self.answer.Aliases, *self.answer.HumanAnswers])
        # Answers may begin or end in signs, as "Oliver!" does, where a word boundary would be none.
        one = re.compile(r"(?<!\w)(" + "|".join(re.escape(answer.casefold()) for answer in answers) + r")(?!\w)")
        pages = [(page, pool(page.Title, page.text)) for page in (*self.entity_pages, *self.search_results)]
        gold = [id for page, id in pages if id and one.search(plain(page.text).casefold())]
        return Question(id=self.id, question=self.question, answers=answers, passages=list(dict.fromkeys(gold)))


def _with_text(page: Any, folder: Path) -> Any:  # noqa: ANN401 - whatever the file has
    name = page.get("Filename") if isinstance(page, dict) else None
    if not isinstance(name, str) or not name or not is_within(folder, name) or not (folder / name).is_file():
        return page
    return {**page, "text": (folder / name).read_text(encoding="utf-8", errors="replace")}
