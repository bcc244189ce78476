"""Questions with their supporting passages and distractors, from the published files of multi-hop data sets."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from hoptimizer.common.errors import UserError
from hoptimizer.eval.datasets.importers import ExtraPassage, PassagePool
from hoptimizer.eval.datasets.published_formats import FORMATS, Decomposition
from hoptimizer.eval.datasets.question import Question
from hoptimizer.eval.datasets.rows import read_rows, require
from hoptimizer.retrieval import Corpus

# The formats whose questions come with distractors.
_SETS = ("2wikimultihopqa", "hotpotqa", "musique")
_DATA_FILES = ("*.json", "*.jsonl")


@dataclass(frozen=True)
class QuestionWithContext:
    """A question, and the ids of the passages that it was published with."""

    question: Question
    context: list[str]


@dataclass(frozen=True)
class RetrievalSet:
    """A data set to train or measure a retriever on.

    Attributes:
        name: of its format.
        corpus: the pooled contexts of all its questions, and the extra corpus where there is one.
        train: questions to learn from.
        dev: questions that nothing learns from.
    """

    name: str
    corpus: Corpus
    train: list[QuestionWithContext]
    dev: list[QuestionWithContext]


def read_sets(data: Path) -> list[RetrievalSet]:
    """Read every data set below a folder, its questions divided by a fixed rule.

    The rule: in the order of their id's SHA-256, the first 100 questions, or 40 percent where that is fewer, are dev.

    Args:
        data: holds a folder for a format (``hotpotqa``, ``2wikimultihopqa``, ``musique``) or several, and in it
            ``train*`` files, and perhaps ``*decompositions*`` (2WikiMultihopQA's) and ``corpus*`` with more passages.

    Raises:
        UserError: no such folder is there, or a file is malformed.
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
            context: list[str] = []

            def pooled(title: str, text: str, context: list[str] = context) -> str | None:
                if id := pool.add(title, text):
                    context.append(id)
                return id

            question = require(FORMATS[name], row).convert(pooled, chains.get(str(row.fields.get("_id"))))
            if question:
                asked.append(QuestionWithContext(question, context))
    for file in (f for f in files if f.stem.startswith("corpus")):
        for row in read_rows(file):
            extra = require(ExtraPassage, row)
            pool.add(extra.title, extra.text)
    if not asked:
        raise UserError(f"{folder}: no train*.json or train*.jsonl with questions in it; put the published file there")
    asked.sort(key=lambda a: hashlib.sha256(a.question.id.encode()).digest())
    held_out = min(100, len(asked) * 2 // 5)
    return RetrievalSet(name, Corpus(list(pool.passages.values()), name), asked[held_out:], asked[:held_out])
