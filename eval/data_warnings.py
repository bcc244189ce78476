"""What is no error in a data set, and still makes its figures worse, or better than they ought to be."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from hoptimizer.common.errors import UserError
from hoptimizer.common.paths import home
from hoptimizer.common.stream import TABLES, kind
from hoptimizer.common.text import folded
from hoptimizer.eval.chunking import read_tokenizer
from hoptimizer.eval.datasets.question import Question
from hoptimizer.models.folder import read_settings
from hoptimizer.retrieval.encoders.cut import cut_warning
from hoptimizer.retrieval.passage import Corpus, Passage

MOST_PASSAGES = 50_000
"""Passages of a larger corpus that are looked at: the first ones."""

# Tokens that a ColBERT checkpoint reads of a passage, itself, its mark and the ends included, unless it says another
# number; and how many of them are not the passage's.
_READ = 256
_MARKS = 3
_EXAMPLES = 3
_VERDICTS = {"yes", "no", "true", "false", "unknown", "unanswerable"}
_BATCH = 1000


def warnings_of(corpus: Corpus, splits: Mapping[str, Sequence[Question]], checkpoint: str) -> list[str]:
    """As :func:`find_warnings`; and a line where lengths had to be left out.

    Args:
        corpus: of the data set.
        splits: its questions.
        checkpoint: the name of a ColBERT checkpoint, as :func:`checkpoint_folder` takes it.

    Raises:
        UserError: the checkpoint can't be had.
    """
    folder = checkpoint_folder(checkpoint)
    found = find_warnings(corpus, splits, folder)
    if len(corpus) and folder is None:
        found.append(
            "the lengths of passages were not checked, for the tokenizer of all-minilm-l6-v2 is not here: "
            "hop models pull all-minilm-l6-v2, or name another one with --checkpoint"
        )
    return found


def find_warnings(
    corpus: Corpus, splits: Mapping[str, Sequence[Question]], checkpoint: Path | None = None
) -> list[str]:
    """Passages that a retriever would cut, questions in two splits, and answers that no passage holds.

    Args:
        corpus: of the data set.
        splits: its questions.
        checkpoint: the folder of a ColBERT checkpoint, whose tokens count; ``None`` leaves lengths out.

    Returns:
        a line for each kind of problem that there is.
    """
    passages = [passage for passage, _ in zip(corpus, range(MOST_PASSAGES), strict=False)]
    some = f" of the first {MOST_PASSAGES} looked at" if len(corpus) > MOST_PASSAGES else ""
    found = [*_leaks(splits)]
    if passages:
        found += _answers_nowhere(passages, splits, some)
    if checkpoint and passages:
        found += _cut(passages, checkpoint, some)
    return found


def unread_files(folder: Path, names: Sequence[str]) -> list[str]:
    """A line where a data set's folder has files of rows that are none of the data set's.

    Args:
        folder: of the data set, there or not.
        names: of the files that are read, without their suffixes.
    """
    files = sorted(path for path in folder.glob("[!.]*") if kind(path) in TABLES and path.is_file())
    others = [path.name for path in files if path.name.partition(".")[0] not in names]
    if not others:
        return []
    return [f"{_some(others)}: not read, for a data set's files are called {', '.join(names)}; rename or move them"]


def _leaks(splits: Mapping[str, Sequence[Question]]) -> list[str]:
    """Questions of one split that another one has too, whatever the order of their words."""
    places: dict[str, tuple[str, str]] = {}
    leaked: list[str] = []
    repeated: list[str] = []
    for split, questions in splits.items():
        for question in questions:
            key = " ".join(sorted(folded(question.question).split())) or question.question
            first, id = places.setdefault(key, (split, question.id))
            if first != split:
                leaked.append(f"{id} of {first} and {question.id} of {split}")
            elif id != question.id:
                repeated.append(f"{id} and {question.id} of {split}")
    lines = []
    if leaked:
        lines.append(
            f"leakage: {len(leaked)} questions stand in two splits, so that scores are too good ({_some(leaked)}); "
            "keep each in one"
        )
    if repeated:
        lines.append(f"{len(repeated)} questions are asked twice in one split ({_some(repeated)}); remove one of each")
    return lines


def _answers_nowhere(passages: Sequence[Passage], splits: Mapping[str, Sequence[Question]], some: str) -> list[str]:
    wanted = {folded(answer) for questions in splits.values() for q in questions for answer in q.answers} - {""}
    lengths: dict[str, set[int]] = defaultdict(set)  # of the answers that begin with a word
    for answer in wanted:
        lengths[answer.partition(" ")[0]].add(answer.count(" ") + 1)
    held = set[str]()
    for passage in passages:
        words = folded(str(passage)).split(" ")
        parts = (" ".join(words[at : at + n]) for at, word in enumerate(words) for n in lengths.get(word, ()))
        held.update(part for part in parts if part in wanted)
    lines = []
    for split, questions in splits.items():
        asked = [q for q in questions if not {folded(answer) for answer in q.answers} & _VERDICTS]
        missing = [q.id for q in asked if held.isdisjoint(map(folded, q.answers))]
        if missing:
            lines.append(
                f"{split}: the answers of {len(missing)} of {len(questions)} questions stand in no passage{some} "
                f"({_some(missing)}); a reader can only guess them, or they are written otherwise"
            )
    return lines


def _cut(passages: Sequence[Passage], checkpoint: Path, some: str) -> list[str]:
    most = read_at_most(checkpoint)
    try:
        tokenizer = read_tokenizer(checkpoint / "tokenizer.json")
    except ValueError as error:
        raise UserError(
            f"{checkpoint}: no tokenizer.json that can be read ({error}); take another checkpoint"
        ) from error
    long: list[str] = []
    for start in range(0, len(passages), _BATCH):
        # A token has a character at least.
        batch = [passage for passage in passages[start : start + _BATCH] if len(str(passage)) > most - _MARKS]
        read = tokenizer.encode_batch_fast([str(passage) for passage in batch], add_special_tokens=False)
        lengths = [len(one.ids) + _MARKS for one in read]
        long += [f"{p.id}: {length}" for p, length in zip(batch, lengths, strict=True) if length > most]
    if not long:
        return []
    return [cut_warning(f"{len(long)} of {len(passages)} passages{some}", most, _some(long))]


def checkpoint_folder(name: str) -> Path | None:
    """The folder of a checkpoint's tokenizer; of the embedded one, ``None`` where it was never fetched: a check loads
    no models.

    Args:
        name: ``minilm``, a hub id or a folder.

    Raises:
        UserError: it can't be had.
    """
    if name == "minilm":
        folder = home() / "models" / "all-minilm-l6-v2"
        return folder if (folder / "tokenizer.json").is_file() else None
    from hoptimizer.retrieval.encoders.model_files import SAFE_FILES, local_folder  # brings the hub's client

    return local_folder(name, "--checkpoint", "minilm", allow=[*SAFE_FILES, "artifact.metadata"])


def read_at_most(checkpoint: Path) -> int:
    """Tokens that a ColBERT checkpoint reads of a passage.

    Args:
        checkpoint: its folder, in colbert-ai's layout or PyLate's.

    Raises:
        UserError: a file of it can't be read.
    """
    for name, key in (("artifact.metadata", "doc_maxlen"), ("config_sentence_transformers.json", "document_length")):
        if (file := checkpoint / name).is_file():
            value = read_settings(file).get(key)
            if isinstance(value, int):
                return value
    return _READ


def _some(names: Sequence[str]) -> str:
    more = f", and {len(names) - _EXAMPLES} more" if len(names) > _EXAMPLES else ""
    return ", ".join(names[:_EXAMPLES]) + more
