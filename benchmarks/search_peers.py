"""Exact search among token vectors: our index beside numpy's products and, where it is installed, maxsim-cpu.

    python benchmarks/search_peers.py [--passages 1000 10000 100000] [--dim 128] [--rounds 5] [--json]

The vectors are made up: of length 1, 20 to 60 of them a passage, 32 a query, near a few directions as those of real
tokens are. Ours is read from its files, rounded to whole numbers of 8 bits, and scored again in full where that could
matter; numpy and maxsim-cpu (`pip install maxsim-cpu`) hold all vectors in fp32 and score them all.
Each finds the best ten passages of one query and of 64, in turn, and all must find the same; what takes more than a
second for one is not asked 64. Beside them stands the limit: the products of the whole numbers alone. With vectors of
384 numbers, those of the embedded checkpoint, maxsim-cpu 0.1.0 brings the process down, and is left out.
"""

import functools
import importlib
import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.box import MARKDOWN
from rich.table import Table

from hoptimizer.common.errors import UserError
from hoptimizer.eval import mean
from hoptimizer.retrieval.colbert.encoder import PassageTokenEncoder
from hoptimizer.retrieval.colbert.exact import ExactIndex
from hoptimizer.retrieval.colbert.rounded import round_vectors
from hoptimizer.retrieval.encoders.windows import EncodedWindow
from reporting import benchmark_parser, load, show, user_mistakes

TOKENS, QUERY = (20, 60), 32
PEERS_DIM = 128  # what maxsim-cpu takes
DIRECTIONS, SPREAD = 512, 0.8
WIDTHS = (1, 64)
SEED = 7
K = 10
TOO_SLOW = 1000.0  # milliseconds a query
OURS, NUMPY, PEER, LIMIT = "ours", "numpy", "maxsim-cpu", "products alone"
# Of the best passages, so many may differ where two scores are as good as equal in fp16.
LEAST_SHARED = 0.99

Found = list[list[int]]
Search = Callable[[list[torch.Tensor]], Found]


@dataclass(frozen=True)
class Speed:
    """How fast one engine is.

    Attributes:
        passages: how many are searched.
        queries: how many at once.
        engine: whose.
        ms: milliseconds a query, the mean of all rounds with its 95% interval.
        times_ours: how many times as long as ours it takes, likewise.
    """

    passages: int
    queries: int
    engine: str
    ms: tuple[float, float, float]
    times_ours: tuple[float, float, float]


class MadeUp(PassageTokenEncoder):
    """Gives passages made-up vectors.

    Args:
        passages: how many.
        dim: length of a vector.

    Attributes:
        device: where the search is.
        made: the vectors of each passage, fp16 of shape ``(tokens, dim)``.
    """

    def __init__(self, passages: int, dim: int) -> None:
        self.dim = dim
        self._draw = torch.Generator().manual_seed(SEED)
        self.device = torch.device("cpu")
        self._directions = torch.randn(DIRECTIONS, dim, generator=self._draw)
        lengths = torch.randint(TOKENS[0], TOKENS[1] + 1, (passages,), generator=self._draw).tolist()
        self.made = [self.some(length) for length in lengths]

    def some(self, count: int) -> torch.Tensor:
        """So many vectors."""
        near = self._directions[torch.randint(DIRECTIONS, (count,), generator=self._draw)]
        far = torch.randn(count, self.dim, generator=self._draw)
        return torch.nn.functional.normalize(near + SPREAD * far, dim=-1).half()

    @property
    def texts(self) -> list[str]:
        """Passages: their numbers, as long as they have tokens, since passages are encoded by length."""
        return [f"{number:0{len(vectors)}}" for number, vectors in enumerate(self.made)]

    def window(self, texts: list[str]) -> EncodedWindow[list[torch.Tensor]]:
        """The vectors of passages."""
        return EncodedWindow([(list(range(len(texts))), [self.made[int(text)] for text in texts])])


def by_numpy(vectors: NDArray[np.float32], starts: NDArray[np.int64], queries: list[torch.Tensor]) -> Found:
    """The best passages by products of all vectors with each query."""
    found = []
    for query in queries:
        scores = np.maximum.reduceat(vectors @ query.numpy().T, starts, axis=0).sum(axis=1)
        found.append(best(scores))
    return found


def by_maxsim_cpu(passages: list[NDArray[np.float32]], queries: list[torch.Tensor]) -> Found:
    """The best passages by maxsim-cpu."""
    peer = importlib.import_module("maxsim_cpu")
    return [best(np.asarray(peer.maxsim_scores_variable(query.numpy(), passages))) for query in queries]


def products(numbers: torch.Tensor, queries: list[torch.Tensor]) -> Found:
    """Nothing but the products of whole numbers, a part at a time that stays in the cache."""
    for query in queries:
        columns = round_vectors(query)[0].T.contiguous()
        for rows in numbers.split(2048):
            torch._int_mm(rows, columns)
    return []


def best(scores: NDArray[np.float32]) -> list[int]:
    """The places of the largest scores."""
    return np.argpartition(-scores, K)[:K].tolist()


def shared(one: Found, other: Found) -> float:
    """The share of the best passages that both found."""
    return sum(len({*a} & {*b}) for a, b in zip(one, other, strict=True)) / (K * len(one))


def engines(made_up: MadeUp, folder: Path) -> dict[str, Search]:
    """All of them, by name."""
    ExactIndex.write(folder, made_up, made_up.texts, ExactIndex.SETTINGS, lambda done, total: None)
    index = ExactIndex(folder, made_up, made_up.texts)  # type: ignore[arg-type] # it asks for the device and the dimension alone
    vectors = np.concatenate([one.float().numpy() for one in made_up.made])
    lengths = np.array([len(one) for one in made_up.made])
    ends = lengths.cumsum()
    passages = [vectors[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    numbers = torch.cat([round_vectors(one)[0] for one in made_up.made])
    found: dict[str, Search] = {
        OURS: lambda queries: [[place for place, _ in ranking] for ranking in index.search(queries, K)],
        NUMPY: functools.partial(by_numpy, vectors, ends - lengths),
    }
    if made_up.dim == PEERS_DIM and importlib.util.find_spec("maxsim_cpu"):
        found[PEER] = functools.partial(by_maxsim_cpu, passages)
    if torch.cpu._is_vnni_supported():
        found[LIMIT] = functools.partial(products, numbers)
    return found


def measure(passages: int, dim: int, rounds: int) -> list[Speed]:
    """The speed of each engine, with one query and with several.

    Raises:
        UserError: they do not find the same.
    """
    made_up, speeds = MadeUp(passages, dim), list[Speed]()
    with tempfile.TemporaryDirectory() as folder:
        each = engines(made_up, Path(folder))
        for width in WIDTHS:
            # Several queries of an engine that takes seconds for one would take hours, and tell nothing new.
            slow = {one.engine for one in speeds if one.passages == passages and one.ms[0] > TOO_SLOW}
            each = {name: search for name, search in each.items() if name not in slow}
            took: dict[str, list[float]] = {name: [] for name in each}
            for number in range(rounds + 1):
                queries = [made_up.some(QUERY).float() for _ in range(width)]
                found = {}
                for name, search in each.items():
                    begin = time.perf_counter()
                    found[name] = search(queries)
                    if number:  # the first round reads files and makes threads
                        took[name].append(1000 * (time.perf_counter() - begin) / width)
                for name in (NUMPY, PEER):
                    if name in found and (share := shared(found[OURS], found[name])) < LEAST_SHARED:
                        raise UserError(f"{passages} passages: ours found only {share:.3f} of what {name} finds")
            for name, ms in took.items():
                middle = mean(ms)
                ratio = mean([theirs / ours for theirs, ours in zip(ms, took[OURS], strict=True)])
                intervals = (middle.mean, middle.low, middle.high), (ratio.mean, ratio.low, ratio.high)
                speeds.append(Speed(passages, width, name, *intervals))
                sys.stderr.write(f"{speeds[-1]}\n")
    return speeds


def main() -> None:
    """Measure and print."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--passages", type=int, nargs="+", default=[1000, 10_000, 100_000], metavar="N")
    parser.add_argument("--dim", type=int, default=PEERS_DIM, help=f"length of a vector (default: {PEERS_DIM})")
    parser.add_argument("--rounds", type=int, default=5, help="(default: 5)")
    options = parser.parse_args()
    with user_mistakes():
        speeds = [speed for passages in options.passages for speed in measure(passages, options.dim, options.rounds)]
    columns = ("passages", "queries at once", "engine", "ms a query", "times ours")
    title = f"best {K}, {options.dim} numbers a vector, {options.rounds} rounds, load {load():.1f}"
    table = Table(*columns, title=title, box=MARKDOWN)
    for one in speeds:
        cells = [f"{m:.2f} [{low:.2f}, {high:.2f}]" for m, low, high in (one.ms, one.times_ours)]
        table.add_row(f"{one.passages:,}", str(one.queries), one.engine, *cells)
    figures = {"load": load(), "dim": options.dim, "rounds": options.rounds}
    show(figures | {"speeds": [asdict(one) for one in speeds]}, options.json, table)


if __name__ == "__main__":
    main()
