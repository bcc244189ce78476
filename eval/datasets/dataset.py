"""Data sets: bundled ones by their name, users' own by their folder."""

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from hoptimizer.common.errors import UserError, unknown
from hoptimizer.common.paths import expanded
from hoptimizer.eval.datasets import folder as folders
from hoptimizer.eval.datasets.question import Question
from hoptimizer.eval.datasets.settings import DataSettings, bundled
from hoptimizer.retrieval.passage import Corpus


@dataclass(frozen=True)
class DataSet:
    """A corpus and the questions that are answered from it.

    Attributes:
        name: the bundled set's name or the folder's.
        folder: where it was read from.
        corpus: what is searched.
        splits: the questions by split (``train``, ``dev``, ``test``); only the splits that the data set has.

    Example:
        >>> from pathlib import Path
        >>> from hoptimizer.eval import DataSet, Question
        >>> from hoptimizer.retrieval import Corpus, Passage
        >>> corpus = Corpus([Passage("curie", "Marie Curie", "She was born in Warsaw.")])
        >>> question = Question(id="1", question="Where was Marie Curie born?", answers=["Warsaw"])
        >>> data = DataSet("physicists", Path("physicists"), corpus, {"dev": [question]})
        >>> data.split("dev", 1)[0].answers
        ['Warsaw']
    """

    name: str
    folder: Path
    corpus: Corpus
    splits: Mapping[str, list[Question]]

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the corpus and every question, in order."""
        sha = hashlib.sha256(self.corpus.digest.encode())
        for name in sorted(self.splits):
            sha.update(f"\n{name}\n".encode())
            for question in self.splits[name]:
                sha.update(question.model_dump_json().encode() + b"\n")
        return sha.hexdigest()

    @property
    def supporting(self) -> dict[str, list[str]]:
        """The ids of the supporting passages, by the question; of questions of the same words, those of all."""
        found: dict[str, list[str]] = defaultdict(list)
        for question in itertools.chain(*self.splits.values()):
            found[question.question] += [id for id in question.passages if id not in found[question.question]]
        return dict(found)

    def split(self, name: str, n: int | None = None) -> list[Question]:
        """Questions of a split.

        Args:
            name: ``train``, ``dev`` or ``test``.
            n: how many, from the first one on; ``None`` is all.

        Raises:
            UserError: the data set has no such split, or fewer than ``n`` questions in it.
        """
        if name not in self.splits:
            have = ", ".join(self.splits) or "passages"
            raise UserError(
                f"data set {self.name!r} has no {name!r} split, only {have}; add {name}.jsonl or use another"
            )
        questions = self.splits[name]
        if n is not None and n > len(questions):
            raise UserError(
                f"data set {self.name!r} has {len(questions)} questions in its {name!r} split, not {n}; "
                f"ask for at most {len(questions)}"
            )
        return questions[:n]


def locate(name: str | Path) -> Path:
    """The folder of a data set: a bundled one's by its name, else the path itself.

    Raises:
        UserError: it is neither a bundled set nor an existing path.
    """
    known = bundled()
    if str(name) in known:
        return known[str(name)]
    if not str(name):
        raise UserError(f"data: expected a data set's folder or a bundled set ({', '.join(known)}), got nothing")
    path = expanded(name)
    if path.exists():
        return path
    if len(path.parts) > 1:
        raise UserError(f"{path}: no such folder; give a data set's folder or a bundled set ({', '.join(known)})")
    raise unknown("bundled data set or folder here", str(name), known)


def load(settings: DataSettings | str) -> DataSet:
    """The data set that the config names, with as many questions of each split as it asks for.

    Raises:
        UserError: there is none, it is malformed (the file, line and field are named), or it is too small.

    Example:
        >>> from hoptimizer.eval import DataSettings, load
        >>> data = load(DataSettings(name="atlas", train=10, dev=5))
        >>> {name: len(questions) for name, questions in data.splits.items()}
        {'train': 10, 'dev': 5, 'test': 200}
    """
    path = locate(settings if isinstance(settings, str) else settings.name)
    if isinstance(settings, str):
        settings = DataSettings(name=settings)
    name = settings.name if path in bundled().values() else path.resolve().name
    other = settings.corpus and expanded(settings.corpus)
    corpus, splits = _read(path, other, name, _state(path), _state(other) if other else ())
    whole = DataSet(name, path, corpus, splits)
    sizes = settings.sizes()
    for split, size in sizes.items():
        if size is not None:
            whole.split(split, size)  # raises where the split is absent or too small
    return DataSet(name, path, corpus, {split: questions[: sizes[split]] for split, questions in splits.items()})


# The cells of a study mostly share their data; a corpus of millions of passages takes minutes to read.
@lru_cache(maxsize=2)
def _read(
    folder: Path, corpus: Path | None, name: str, *states: tuple[object, ...]
) -> tuple[Corpus, dict[str, list[Question]]]:
    """The corpus and the splits of a folder; ``states`` tell whether its files are still those that were read."""
    return folders.read_folder(folder, corpus, name)


def _state(path: Path) -> tuple[object, ...]:
    """What changes where a file, or one in a folder, is written again."""
    try:
        files = [file for file in sorted(path.iterdir()) if file.is_file()] if path.is_dir() else [path]
        states = [file.stat() for file in files]
    except OSError:  # reading it says what is wrong
        return ()
    return tuple((file.name, state.st_mtime_ns, state.st_size) for file, state in zip(files, states, strict=True))


def check(name: str | Path, corpus: Path | None = None, limit: int = 20, checkpoint: str = "minilm") -> folders.Check:
    """Find out what a data set holds, and everything that is wrong with it.

    Args:
        name: a bundled set's name or a folder.
        corpus: a corpus file to read instead of the folder's own.
        limit: the most problems to list; the rest are counted.
        checkpoint: the ColBERT checkpoint that is to read the passages, by which those that it would cut are known.

    Raises:
        UserError: there is no such data set, or no such checkpoint.

    Example:
        >>> from hoptimizer.eval import check
        >>> found = check("atlas")
        >>> found.problems, found.splits["train"].questions, found.corpus.passages
        ([], 200, 1482)
    """
    return folders.check(locate(name), corpus and expanded(corpus), limit, checkpoint)
