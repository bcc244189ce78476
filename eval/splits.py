"""How the questions of a source are divided into splits."""

import logging
import math
import random
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from hoptimizer.common.errors import UserError, unknown
from hoptimizer.common.text import folded
from hoptimizer.eval.datasets.folder import SPLITS
from hoptimizer.eval.datasets.question import Question

DEFAULT_SIZES: Mapping[str, float] = {"train": 0.8, "dev": 0.1, "test": 0.1}

_log = logging.getLogger(__name__)


def parse_sizes(text: str) -> dict[str, float]:
    """Sizes of the splits from a line such as ``train=0.8,dev=0.2`` or ``train=400,dev=60,test=40``.

    Raises:
        UserError: it is written otherwise; numbers are judged when they are used.
    """
    try:
        pairs = [part.split("=") for part in text.split(",")]
        sizes = {name.strip(): float(size) for name, size in pairs}
    except ValueError:
        raise UserError(f"split {text!r} is not understood; write it as train=0.8,dev=0.1,test=0.1") from None
    if len(sizes) < len(pairs):
        raise UserError(f"split {text!r} names a split twice; give each one size")
    return sizes


def check_splits(sources: Sequence[Sequence[str]], sizes: Mapping[str, float], also: Sequence[str] = ()) -> None:
    """Make sure that files are given for splits that there are, one for each, and sizes that can be had for no others.

    Args:
        sources: the splits of each file; none where a file alone is given.
        sizes: by split.
        also: what files can be given for besides splits, as often as one likes.

    Raises:
        UserError: otherwise.
    """
    named = [split for splits in sources for split in splits]
    for split in named:
        if split not in (*SPLITS, *also):
            raise unknown("split", split, (*SPLITS, *also))
        if named.count(split) > 1 and split not in also:
            raise UserError(f"the split {split!r} is given twice; give it one file")
    for split in sizes if named else ():
        if split not in named:
            raise UserError(f"split sizes name {split!r}, for which no file is given; add one or leave the size out")
    for splits in sources:
        check_sizes({split: size for split, size in sizes.items() if split in splits or not splits}, math.inf)


def divided(
    questions: list[Question], splits: tuple[str, ...], sizes: Mapping[str, float], seed: int
) -> dict[str, list[Question]]:
    """The questions of one source by the splits that it is for.

    Args:
        questions: all of them.
        splits: one, all of the source unless there is a size for it; several, in equal shares or as sizes say; none,
            where the sizes name them, by default in shares of 80, 10 and 10 percent.
        sizes: of any splits, as of :func:`divide`.
        seed: of the draw.

    Raises:
        UserError: as of :func:`divide`; or some of several splits have a size, and others none.
    """
    if not splits:
        return divide(questions, sizes or DEFAULT_SIZES, seed)
    own = {split: sizes[split] for split in splits if split in sizes}
    if len(splits) == 1 and not own:
        return {splits[0]: questions}
    if own and len(own) < len(splits):
        raise UserError(f"split sizes {_written(own)}: give one for each of {' and '.join(splits)}")
    return divide(questions, own or dict.fromkeys(splits, 1 / len(splits)), seed)


def divide(questions: Sequence[Question], sizes: Mapping[str, float], seed: int) -> dict[str, list[Question]]:
    """Questions drawn at random into splits; those that the sizes leave over are dropped, and counted in the log.

    Questions that differ in case and punctuation alone stay together, in the split of the one that is drawn first,
    which may then have a few more.

    Args:
        questions: all of them.
        sizes: by split, all shares (at most 1, together at most 1) or all numbers of questions, as 1 of several is.
        seed: of the draw.

    Raises:
        UserError: an unknown split, or sizes that can't be had.
    """
    shares = check_sizes(sizes, len(questions))
    alike: dict[str, list[Question]] = {}
    for question in random.Random(seed).sample(list(questions), len(questions)):
        alike.setdefault(folded(question.question) or question.question, []).append(question)
    drawn = [question for group in alike.values() for question in group]
    ends = [0, *accumulate(len(group) for group in alike.values())]
    splits: dict[str, list[Question]] = {}
    start, bound = 0, 0.0
    for split in (name for name in SPLITS if name in sizes):
        bound += sizes[split] * len(questions) if shares else sizes[split]
        end = ends[bisect_left(ends, round(bound))]  # rounding the bounds, so that shares of 1 leave nobody out
        splits[split] = drawn[start:end]
        start = end
        if not splits[split]:
            raise UserError(
                f"split sizes {_written(sizes)} leave {split!r} of {len(questions)} questions empty; give others with "
                "--sizes, as numbers of questions or as shares"
            )
    if start < len(questions):
        _log.warning("split sizes %s leave out %d of %d questions", _written(sizes), len(drawn) - start, len(drawn))
    return splits


def check_sizes(sizes: Mapping[str, float], count: float) -> bool:
    """Whether the sizes of splits are shares; they are numbers of questions otherwise.

    Args:
        sizes: by split.
        count: of the questions that there are; infinite where that is not known yet.

    Raises:
        UserError: an unknown split, or sizes that can't be had.
    """
    if strange := set(sizes) - set(SPLITS):
        raise unknown("split", strange.pop(), SPLITS)
    if none := [split for split, size in sizes.items() if size <= 0]:
        raise UserError(f"split sizes {_written(sizes)}: each must be above 0; leave {none[0]!r} out, or raise it")
    # "train=1" takes all, but "train=1,dev=1" can only mean a question each.
    shares = all(size <= 1 for size in sizes.values()) and (len(sizes) < 2 or min(sizes.values()) < 1)
    if not shares and not all(size >= 1 and size % 1 == 0 for size in sizes.values()):
        raise UserError(f"split sizes {_written(sizes)} must all be shares up to 1 or all be numbers of questions")
    if shares and sum(sizes.values()) > 1 + 1e-9:
        raise UserError(f"split sizes {_written(sizes)} are shares of more than the whole, which is 1; lower them")
    if not shares and sum(sizes.values()) > count:
        raise UserError(f"split sizes {_written(sizes)} take more than the {count} questions there are; lower them")
    return shares


def _written(sizes: Mapping[str, float]) -> str:
    return ",".join(f"{name}={size:g}" for name, size in sizes.items())


def named_splits(
    name: str, splits: Collection[str], given: Path | str | Mapping[str, Path | str]
) -> list[tuple[tuple[str, ...], str]]:
    """Those of a data set's splits on the hub that a user names, each with ours that it is divided among.

    Args:
        name: of the data set, for messages.
        splits: what the hub calls them.
        given: one of them, or several by ours (``dev+test`` for one that is divided among these).

    Raises:
        UserError: the hub has no such split.

    Example:
        >>> from hoptimizer.eval.splits import named_splits
        >>> named_splits("hub:owner/name", ["train", "validation"], {"dev+test": "validation"})
        [(('dev', 'test'), 'validation')]
    """
    by_ours = given if isinstance(given, Mapping) else {"": given}
    for split in map(str, by_ours.values()):
        if split not in splits:
            raise unknown(f"split of {name}", split, splits)
    return [(tuple(ours.split("+")) if ours else (), str(split)) for ours, split in by_ours.items()]
