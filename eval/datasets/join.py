"""Several data sets as one, to compile one program for all of them; and one corpus as several, a machine for each."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from hoptimizer.common.errors import UserError
from hoptimizer.eval.datasets.dataset import DataSet, load
from hoptimizer.eval.datasets.folder import write_folder
from hoptimizer.eval.datasets.question import Question
from hoptimizer.eval.datasets.settings import free_data_folder
from hoptimizer.retrieval.passage import Corpus, Passage


@dataclass(frozen=True)
class Share:
    """What is taken of a data set.

    Attributes:
        data: the data set.
        train: questions of its train split, drawn at random; ``None`` for all.
    """

    data: DataSet
    train: int | None = None


def join(shares: Sequence[Share], *, dev: int | None = None, test: int | None = None, seed: int = 0) -> DataSet:
    """One data set of several: their corpora together, and questions of each.

    The ids of questions start with the name of their data set; a passage keeps its id, unless another data set has a
    passage of that id with another text.

    Args:
        shares: the data sets, each of another name.
        dev: questions of each dev split, from the first one on; ``None`` for all.
        test: likewise.
        seed: of the draw, and of the order of the train questions.

    Raises:
        UserError: two data sets have one name, or one has no such split or too few questions in it.

    Example:
        >>> from hoptimizer.eval.datasets.dataset import load
        >>> from hoptimizer.eval.datasets.join import Share, join
        >>> joined = join([Share(load("atlas"), train=3)], dev=1, test=1, seed=7)
        >>> [len(questions) for questions in joined.splits.values()], joined.split("dev")[0].id.startswith("atlas-")
        ([3, 1, 1], True)
    """
    rng = random.Random(seed)
    passages: dict[str, Passage] = {}
    splits: dict[str, list[Question]] = {"train": [], "dev": [], "test": []}
    names = [share.data.name for share in shares]
    for share in shares:
        name = share.data.name
        if names.count(name) > 1:
            raise UserError(f"{name}: two data sets have this name; rename the folder of one")
        renamed = {}
        for passage in share.data.corpus:
            known = passages.get(passage.id)
            id = f"{name}-{passage.id}" if known not in (None, passage) else passage.id
            renamed[passage.id] = id
            passages[id] = Passage(id, passage.title, passage.text)
        train = list(share.data.split("train"))
        rng.shuffle(train)
        chosen = {
            "train": train[: len(share.data.split("train", share.train))],
            "dev": share.data.split("dev", dev),
            "test": share.data.split("test", test),
        }
        for split, questions in chosen.items():
            splits[split] += [_renamed(question, name, renamed) for question in questions]
    rng.shuffle(splits["train"])
    return DataSet(" and ".join(names), Path(), Corpus(list(passages.values())), splits)


def join_folders(
    sets: Mapping[str, int | None], out: Path, *, dev: int | None = None, test: int | None = None, seed: int = 0
) -> DataSet:
    """Write the data set that :func:`join` makes.

    Args:
        sets: by data set (a folder, or a bundled set's name) how many train questions; ``None`` for all.
        out: the folder to make.
        dev: as of :func:`join`, like ``test`` and ``seed``.

    Raises:
        UserError: as :func:`join`; or the folder exists and isn't empty.
    """
    free_data_folder(out)
    joined = join([Share(load(name), train) for name, train in sets.items()], dev=dev, test=test, seed=seed)
    write_folder(out, joined.corpus, joined.splits)
    return joined


def divide(data: DataSet, parts: int, out: Path) -> list[Path]:
    """Divide a corpus into data sets of its passages alone, equally many in each but for one.

    Args:
        data: the data set; its questions stay where they are.
        parts: how many to make.
        out: the folder that gets them, as ``part-0`` and so on.

    Returns:
        their folders.

    Raises:
        UserError: the corpus has fewer passages, or the folder exists and isn't empty.

    Example:
        >>> from pathlib import Path
        >>> from hoptimizer.eval.datasets.dataset import load
        >>> from hoptimizer.eval.datasets.join import divide
        >>> [part.name for part in divide(load("atlas"), 2, Path("atlas-parts"))]
        ['part-0', 'part-1']
    """
    total = len(data.corpus)
    if total < parts:
        raise UserError(f"--parts {parts}: {data.name} has {total} passages; give no more parts")
    free_data_folder(out)
    passages, folders = iter(data.corpus), []
    for number in range(parts):
        folders.append(out / f"part-{number}")
        size = (number + 1) * total // parts - number * total // parts
        write_folder(folders[-1], islice(passages, size), {})
    return folders


def _renamed(question: Question, name: str, renamed: Mapping[str, str]) -> Question:
    hops = [hop.model_copy(update={"passage": hop.passage and renamed[hop.passage]}) for hop in question.hops]
    passages = [renamed[id] for id in question.passages]
    main = question.main and renamed.get(question.main, question.main)  # the title of a page stays as it is
    new = {"id": f"{name}-{question.id}", "passages": passages, "hops": hops, "main": main}
    return question.model_copy(update=new)
