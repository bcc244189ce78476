"""Questions with supporting passages and distractors, read from the published files of multi-hop data sets."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from hoptimizer.common.errors import UserError
from hoptimizer.eval.datasets.importers import FORMATS, ExtraPassage
from hoptimizer.eval.datasets.pool import PassagePool
from hoptimizer.eval.datasets.published_formats import Decomposition
from hoptimizer.eval.datasets.question import Question
from hoptimizer.eval.datasets.rows import read_rows, require
from hoptimizer.retrieval import Corpus

# The formats whose questions come with distractors.
_SETS = ("2wikimultihopqa", "hotpotqa", "musique")
_DATA_FILES = ("*.json", "*.jsonl")


@dataclass(frozen=True)
class QuestionWithContext:
    """A question with the ids of the passages that it was published with.

    Attributes:
        question: the question.
        context: the ids of the passages, supporting ones and distractors.
    """

    question: Question
    context: list[str]


@dataclass(frozen=True)
class RetrievalSet:
    """A data set to train or measure a retriever on.

    Attributes:
        name: the name of its format.
        corpus: the pooled contexts of all its questions, and the extra corpus where there is one.
        train: the questions to learn from.
        dev: the questions that are held out from training.
    """

    name: str
    corpus: Corpus
    train: list[QuestionWithContext]
    dev: list[QuestionWithContext]


class _NotedPool:
    """A pool that notes which paragraphs it is given."""

    def __init__(self, pool: PassagePool) -> None:
        self._pool = pool
        self.titled, self.paragraphs = pool.titled, pool.paragraphs
        self.ids: list[str] = []

    def __call__(self, title: str, text: str) -> str | None:
        if id := self._pool.add(title, text):
            self.ids.append(id)
        return id


def read_sets(data: Path) -> list[RetrievalSet]:
    """Read every data set below a folder, and divide its questions into train and dev by a fixed rule.

    In the order of the SHA-256 of their ids, the first 100 questions are dev, or 40 percent where that is fewer.

    Args:
        data: a folder with a folder for one or more formats (``hotpotqa``, ``2wikimultihopqa``, ``musique``), each
            with ``train*`` files, and perhaps ``*decompositions*`` files (of 2WikiMultihopQA) and ``corpus*`` files
            with more passages.

    Raises:
        UserError: there is no folder of a format, or a file is malformed.
    """
    sets = [_read_set(data / name, name) for name in _SETS if (data / name).is_dir()]
    if not sets:
        raise UserError(f"{data}: no folder {' or '.join(_SETS)} in it; give the folder that holds them")
    return sets


def _read_set(folder: Path, name: str) -> RetrievalSet:
    files = sorted(file for pattern in _DATA_FILES for file in folder.glob(pattern))
    chains = {
        entry.id: entry
        for file in files
        if "decompositions" in file.stem
        for entry in (require(Decomposition, row) for row in read_rows(file))
    }
    pool = PassagePool()
    asked = []
    for file in (f for f in files if f.stem.startswith("train") and "decompositions" not in f.stem):
        for row in read_rows(file):
            item = require(FORMATS[name], row)
            noted = _NotedPool(pool)
            question = item.convert(noted, chains.get(str(row.fields.get("_id")))) if item.has_answer else None
            if question:
                asked.append(QuestionWithContext(question, noted.ids))
    for file in (f for f in files if f.stem.startswith("corpus")):
        for row in read_rows(file):
            extra = require(ExtraPassage, row)
            pool.add(extra.title, extra.text)
    if not asked:
        raise UserError(f"{folder}: no train*.json or train*.jsonl with questions in it; put the published file there")
    asked.sort(key=lambda a: hashlib.sha256(a.question.id.encode()).digest())
    held_out = min(100, len(asked) * 2 // 5)
    return RetrievalSet(name, Corpus(list(pool), name), asked[held_out:], asked[:held_out])
