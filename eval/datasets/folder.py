"""The folder a data set lives in: reading, writing, checking and starting one.

``corpus.jsonl`` holds ``id, title, text``; ``train.jsonl``, ``dev.jsonl`` and ``test.jsonl`` hold questions. Each may
be JSON, CSV, TSV or parquet, and compressed. Without a corpus, programs that don't search can answer the questions.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from filelock import FileLock
from pydantic import BaseModel

from hoptimizer.common.errors import UserError
from hoptimizer.common.paths import draft_of, home
from hoptimizer.common.stream import TABLE_SUFFIXES
from hoptimizer.eval.data_warnings import unread_files, warnings_of
from hoptimizer.eval.datasets.corpus_file import read_corpus
from hoptimizer.eval.datasets.question import Hop, Question
from hoptimizer.eval.datasets.rows import DataRow, OnProblem, fail, is_new, misspelt, own_file, parse, read_rows
from hoptimizer.eval.datasets.settings import free_data_folder
from hoptimizer.retrieval.passage import Corpus, Passage

SPLITS = ("train", "dev", "test")


class SplitFigures(BaseModel):
    """What a split holds. Means are over the questions that have such annotations, and ``None`` where none has."""

    questions: int
    types: dict[str, int]
    with_passages: int
    mean_passages: float | None
    with_hops: int
    mean_hops: float | None
    with_rationale: int


class CorpusFigures(BaseModel):
    """What a corpus holds; words are separated by spaces."""

    passages: int
    mean_words: float
    max_words: int


class Check(BaseModel):
    """What a check of a data set found.

    Attributes:
        splits: figures of each split, of what could be read.
        corpus: figures of the corpus.
        problems: a line for each problem that is listed; it names the file, the line and what to do.
        more_problems: how many further problems there are.
        warnings: a line for each kind of thing that is no error, and still spoils scores.

    Example:
        >>> from pathlib import Path
        >>> from hoptimizer.eval import Check, check
        >>> _ = Path("dev.jsonl").write_text('{"id": "1", "question": "Where?", "answers": []}')
        >>> found: Check = check(".")
        >>> found.problems
        ["dev.jsonl:1: 'answers' must be at least one entry, but is []; correct it"]
    """

    splits: dict[str, SplitFigures]
    corpus: CorpusFigures
    problems: list[str]
    more_problems: int = 0
    warnings: list[str] = []


def read_folder(
    folder: Path, corpus: Path | None = None, name: str | None = None, report: OnProblem = fail
) -> tuple[Corpus, dict[str, list[Question]]]:
    """The corpus and the splits of a data set's folder.

    Args:
        folder: the data set's folder.
        corpus: a corpus file to read instead of the folder's own.
        name: what messages call the corpus; the folder's name by default.
        report: called with each problem; by default the first one is raised.

    Raises:
        UserError: a problem was found, and ``report`` is the default.
    """
    name = name or folder.resolve().name
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "does not exist"
        report(f"{folder}: {what}; give a data set's folder, or start one with: hop data new {folder}")
        return Corpus([], name), {}
    corpus_path = corpus or _find(folder, "corpus", report)
    passages = read_corpus(corpus_path, name, report) if corpus_path else Corpus([], name)
    # Without a corpus every supporting passage would be reported as unknown.
    known = passages if len(passages) else None
    splits: dict[str, list[Question]] = {}
    ids: dict[str, str] = {}
    for split in SPLITS:
        if path := _find(folder, split, report):
            splits[split] = _read_questions(path, known, ids, report)
    asked = (question for questions in splits.values() for question in questions)
    if corpus_path is None and any(q.passages or any(hop.passage for hop in q.hops) for q in asked):
        report(
            f"{folder}: questions name supporting passages, but there is no corpus.jsonl; add one with the fields id, "
            "title and text, or set data.corpus"
        )
    if not splits and known is None:  # passages alone can be indexed, and served
        report(f"{folder}: no train.jsonl, dev.jsonl or test.jsonl (nor .csv, .tsv, .json, .parquet); add one")
    return passages, splits


def read_passages(path: Path) -> Corpus:
    """The corpus of a data set's folder, which need have no questions, or of a file of passages.

    Args:
        path: the folder or the file.

    Raises:
        UserError: it has none, or is malformed.
    """
    corpus = _find(path, "corpus", fail) if path.is_dir() else path
    if corpus is None:
        raise UserError(f"{path}: no corpus.jsonl in it; make one by: hop data import --docs {path} --out DIR")
    return read_corpus(corpus, path.resolve().name)


def _find(folder: Path, stem: str, report: OnProblem) -> Path | None:
    found = [path for suffix in TABLE_SUFFIXES if (path := folder / f"{stem}{suffix}").is_file()]
    if len(found) > 1:
        report(f"{folder}: both {found[0].name} and {found[1].name}; keep one of them")
    return own_file(found[0], report) if found else None


def _read_questions(path: Path, known: Corpus | None, ids: dict[str, str], report: OnProblem) -> list[Question]:
    questions: list[Question] = []
    rows = 0
    for row in read_rows(path, report):
        rows += 1
        if line := misspelt(Question, row):
            report(line)
            continue
        question = parse(Question, row, report)
        if question and is_new(question.id, row, ids, report):
            if known is not None:
                _check_passages(question, row, known, report)
            questions.append(question)
    if not rows:
        report(f"{path}: no questions in it; add some or remove the file")
    return questions


def _check_passages(question: Question, row: DataRow, known: Corpus, report: OnProblem) -> None:
    cited = [(f"passages[{number}]", id) for number, id in enumerate(question.passages)]
    cited += [(f"hops[{number}].passage", hop.passage) for number, hop in enumerate(question.hops) if hop.passage]
    for key, id in cited:
        if id not in known:
            report(f"{row.place}: {key!r} is {id!r}, which the corpus lacks; add the passage or correct the id")
    if question.main and question.main not in known and question.main not in known.pages:
        report(
            f"{row.place}: 'main' is {question.main!r}, neither a passage's id nor a page's title in the corpus; "
            "add the page or correct it"
        )


def check(folder: Path, corpus: Path | None = None, limit: int = 20, checkpoint: str = "minilm") -> Check:
    """Find out what a data set's folder holds, and everything that is wrong with it.

    Args:
        folder: the data set's folder.
        corpus: a corpus file to read instead of the folder's own.
        limit: the most problems to list; the rest are counted.
        checkpoint: the ColBERT checkpoint that is to read the passages.

    Raises:
        UserError: the checkpoint can't be had.
    """
    problems: list[str] = []
    read, splits = read_folder(folder, corpus, report=problems.append)
    words = [len(passage.text.split()) for passage in read]
    warnings = [*unread_files(folder, (*SPLITS, "corpus")), *warnings_of(read, splits, checkpoint)]
    if words and not splits:
        warnings.append("no questions (train, dev or test.jsonl): passages alone can only be indexed and served")
    return Check(
        splits={name: _figures(questions) for name, questions in splits.items()},
        corpus=CorpusFigures(
            passages=len(words), mean_words=round(fmean(words), 1) if words else 0.0, max_words=max(words, default=0)
        ),
        problems=problems[:limit],
        more_problems=max(0, len(problems) - limit),
        warnings=warnings,
    )


def _figures(questions: list[Question]) -> SplitFigures:
    passages = [len(question.passages) for question in questions if question.passages]
    hops = [len(question.hops) for question in questions if question.hops]
    return SplitFigures(
        questions=len(questions),
        types=dict(Counter(question.type for question in questions if question.type).most_common()),
        with_passages=len(passages),
        mean_passages=round(fmean(passages), 2) if passages else None,
        with_hops=len(hops),
        mean_hops=round(fmean(hops), 2) if hops else None,
        with_rationale=sum(question.rationale is not None for question in questions),
    )


def write_folder(out: Path, corpus: Iterable[Passage], splits: Mapping[str, Iterable[Question]]) -> None:
    """Write a data set's folder, whole or not at all; passages and questions are taken one by one.

    Raises:
        UserError: ``out`` exists and isn't empty, or can't be written.
    """
    out = free_data_folder(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with _alone(out), draft_of(out) as draft:
            passages = ({"id": p.id, "title": p.title, "text": p.text} for p in corpus)
            if not _write_rows(draft / "corpus.jsonl", passages):
                (draft / "corpus.jsonl").unlink()
            for name, questions in splits.items():
                _write_rows(draft / f"{name}.jsonl", (q.model_dump(exclude_defaults=True) for q in questions))
            if free_data_folder(out).is_dir():
                out.rmdir()  # not every system replaces folders
            draft.replace(out)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror or error}); choose another folder") from error


def _write_rows(file: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Write rows as JSON lines, and say how many."""
    count = 0
    with file.open("w", encoding="utf-8", newline="\n") as lines:
        for row in rows:
            lines.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return count


def _alone(out: Path) -> FileLock:
    """A lock on the making of a folder; its file is not beside the folder, which is the user's."""
    locks = home() / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    return FileLock(locks / f"{hashlib.sha256(os.fsencode(out.resolve())).hexdigest()[:32]}.lock")


def new(out: Path) -> None:
    """Start a data set's folder: four passages and a question per split, to be replaced by the user's own.

    Args:
        out: the folder to make.

    Raises:
        UserError: ``out`` exists and isn't empty, or can't be written.

    Example:
        >>> from pathlib import Path
        >>> from hoptimizer.eval import new
        >>> new(Path("bridges"))
        >>> sorted(file.name for file in Path("bridges").iterdir())
        ['corpus.jsonl', 'dev.jsonl', 'test.jsonl', 'train.jsonl']
    """
    corpus = [
        Passage("harbour-bridge", "Harbour Bridge", "The Harbour Bridge was designed by Ines Moreau."),
        Passage("ines-moreau", "Ines Moreau", "Ines Moreau was an engineer, born in Lyon in 1871."),
        Passage("old-mill", "Old Mill", "The Old Mill was restored by Karl Brandt."),
        Passage("karl-brandt", "Karl Brandt", "Karl Brandt was a carpenter who grew up in Bergen."),
    ]
    bridge = Question(
        id="bridge-designer-birthplace",
        question="In which city was the designer of the Harbour Bridge born?",
        answers=["Lyon"],
        passages=["harbour-bridge", "ines-moreau"],
        hops=[
            Hop(question="Who designed the Harbour Bridge?", answer="Ines Moreau", passage="harbour-bridge"),
            Hop(question="In which city was Ines Moreau born?", answer="Lyon", passage="ines-moreau"),
        ],
        rationale="The Harbour Bridge was designed by Ines Moreau. Ines Moreau was born in Lyon. The answer is: Lyon.",
        type="bridge",
    )
    mill = Question(
        id="mill-restorer-home",
        question="Where did the restorer of the Old Mill grow up?",
        answers=["Bergen", "Bergen, Norway"],
        passages=["old-mill", "karl-brandt"],
        type="bridge",
    )
    year = Question(
        id="bridge-designer-birth-year",
        question="In which year was the designer of the Harbour Bridge born?",
        answers=["1871"],
        passages=["harbour-bridge", "ines-moreau"],
        type="bridge",
    )
    write_folder(out, corpus, {"train": [bridge], "dev": [mill], "test": [year]})
