"""How well our retrievers retrieve, and how fast the embedded ColBERT checkpoint does beside colbert-ai's own encoder.

    python benchmarks/retrieval.py --data DIR [--recall | --bits | --probes | --encoding] [--json]

DIR holds a folder for each data set that the checkpoint was trained on (``hotpotqa``, ``2wikimultihopqa``,
``musique``), with the published files as ``read_sets`` of ``hoptimizer.optimizers.training.retriever.colbert_data``
reads them. Recall is measured on their dev questions, which the training left out, and for retrievers that were not
trained on any of them, on all questions; ``--recall`` measures nothing else. ``--bits`` measures what compressing
PLAID's vectors costs, and nothing else: on all questions of 2WikiMultihopQA, since the compression alone differs.
``--probes`` measures what is lost where dense retrieval searches some cells alone: on all questions and the passages
of all sets in one corpus. ``--encoding`` measures how fast passages are encoded, and nothing else.
"""

import random
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from timeit import timeit
from typing import Any, Literal, get_args
from unittest.mock import patch

import torch
from rich.box import MARKDOWN
from rich.table import Table

from hoptimizer.common.errors import UserError
from hoptimizer.eval import mean
from hoptimizer.eval.datasets.importers import ExtraPassage
from hoptimizer.eval.datasets.pool import PassagePool
from hoptimizer.eval.datasets.rows import read_rows, require
from hoptimizer.optimizers.training.retriever.colbert_data import QuestionWithContext, RetrievalSet, read_sets
from hoptimizer.retrieval import (
    Corpus,
    DenseSettings,
    Passage,
    RetrieverSettings,
    build_retriever,
)
from hoptimizer.retrieval.colbert.checkpoint import find_checkpoint
from hoptimizer.retrieval.colbert.retriever import index_of
from hoptimizer.retrieval.hybrid import Fusion, fused
from hoptimizer.retrieval.options import RetrieverOptions
from reporting import benchmark_parser, show, user_mistakes

CUTS = (2, 5, 10)
DEPTH = 100
SEED = 7
ROUNDS = 5
BITS: tuple[Literal[8, 4, 2], ...] = (8, 4, 2)
PROBES = (16, 64, 256, 1024)
BASE = "bm25"
SINGLE: dict[str, RetrieverOptions] = {
    BASE: RetrieverSettings(name="bm25"),
    "colbert": RetrieverSettings(),
    "dense": DenseSettings(),
}
TRAINED = "colbert"
# Each is compared with all that it fuses.
PAIRS = (("bm25", "colbert"), ("bm25", "dense"), ("colbert", "dense"))
FUSED = {f"{' + '.join(of)}, by {fusion}": (of, fusion) for of in PAIRS for fusion in get_args(Fusion)}


def measure_recall(one: RetrievalSet) -> list[dict[str, Any]]:
    """Share of the supporting passages among the first 2, 5 and 10, by retriever; and how it differs from others'."""
    asked = one.dev + one.train
    built = {name: build_retriever(settings, one.corpus, progress=report) for name, settings in SINGLE.items()}
    rankings = {name: built[name].search([a.question.question for a in asked], DEPTH) for name in built}
    for name, (of, fusion) in FUSED.items():
        rankings[name] = [fused(each, fusion) for each in zip(*(rankings[member] for member in of), strict=True)]
    untrained = [name for name in rankings if TRAINED not in name]
    parts = {"dev": (len(one.dev), list(rankings)), "all": (len(asked), untrained)}
    figures = []
    for part, (n, names) in parts.items():
        recalls = {name: recall(rankings[name][:n], asked[:n]) for name in names}
        shares: dict[str, dict[int, list[float]]] = dict(recalls)
        for name in names:
            for other in FUSED[name][0] if name in FUSED else () if name == BASE else (BASE,):
                shares[f"{name} - {other}"] = {
                    cut: [c - b for b, c in zip(recalls[other][cut], recalls[name][cut], strict=True)] for cut in CUTS
                }
        estimates = {name: {cut: mean(by_cut[cut]) for cut in CUTS} for name, by_cut in shares.items()}
        figures.append(
            {
                "data": one.name,
                "questions": part,
                "passages": len(one.corpus),
                "n": n,
                "recall": {
                    name: {cut: [e.mean, e.low, e.high] for cut, e in by_cut.items()}
                    for name, by_cut in estimates.items()
                },
            }
        )
    return figures


def recall(rankings: Sequence[list[Passage]], questions: Sequence[QuestionWithContext]) -> dict[int, list[float]]:
    """For each cut, every question's recall of its supporting passages."""
    gold = [set(asked.question.passages) for asked in questions]
    return {
        cut: [len(g & {p.id for p in ranking[:cut]}) / len(g) for g, ranking in zip(gold, rankings, strict=True)]
        for cut in CUTS
    }


def measure_agreement(corpus: Corpus, queries: list[str]) -> dict[str, Any]:
    """How much of the exact index' top 10 is in PLAID's, and how long each takes for a query."""
    found, seconds = {}, {}
    for index in ("exact", "plaid"):
        retriever = build_retriever(RetrieverSettings(index=index), corpus, progress=report)
        retriever.search(queries[:2], 10)
        start = time.perf_counter()
        found[index] = retriever.search(queries, 10)
        seconds[index] = (time.perf_counter() - start) / len(queries)
    shared = mean(shares(found["exact"], found["plaid"]))
    return {
        "passages": len(corpus),
        "n": len(queries),
        "agreement@10": [shared.mean, shared.low, shared.high],
        "seconds_per_query": seconds,
    }


def shares(exact: Sequence[list[Passage]], other: Sequence[list[Passage]]) -> list[float]:
    """Of each ranking of the exact index, the share that another index found."""
    return [len({p.id for p in a} & {p.id for p in b}) / len(a) for a, b in zip(exact, other, strict=True)]


def measure_bits(one: RetrievalSet) -> dict[str, Any]:
    """By the bits of a dimension: PLAID's share of the exact index' top 10, its recall less exact's, its bytes."""
    asked = one.dev + one.train

    def size(settings: RetrieverSettings) -> int:
        folder, _ = index_of(settings, one.corpus, find_checkpoint(settings.checkpoint))
        return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())

    others = [RetrieverSettings(index="plaid", bits=bits) for bits in BITS]
    figures = beside_exact(RetrieverSettings(index="exact"), dict(zip(BITS, others, strict=True)), asked, one.corpus)
    for row, settings in zip(figures["others"], others, strict=True):
        row["bytes"] = size(settings)
    return figures


def measure_probes(sets: Sequence[RetrievalSet]) -> dict[str, Any]:
    """By the cells that are searched: the share of the exact index' top 10, recall less exact's, seconds."""
    asked = [question for one in sets for question in one.dev + one.train]
    passages = {passage.id: passage for one in sets for passage in one.corpus}
    corpus = Corpus(list(passages.values()), "all")
    others = {probes: DenseSettings(index="ivf", probes=probes) for probes in PROBES}
    return beside_exact(DenseSettings(index="exact"), others, asked, corpus)


def beside_exact(
    exact: RetrieverOptions,
    others: Mapping[int, RetrieverOptions],
    asked: Sequence[QuestionWithContext],
    corpus: Corpus,
) -> dict[str, Any]:
    """What indexes find of what an exact one does, by a number that tells them apart."""
    queries = [a.question.question for a in asked]

    def ranked(settings: RetrieverOptions) -> tuple[list[list[Passage]], float]:
        retriever = build_retriever(settings, corpus, progress=report)
        retriever.search(queries[:2], max(CUTS))
        start = time.perf_counter()
        found = [ranking for query in queries for ranking in retriever.search([query], max(CUTS))]
        return found, (time.perf_counter() - start) / len(queries)

    best, exact_seconds = ranked(exact)
    recalls = recall(best, asked)
    rows = []
    for number, settings in others.items():
        rankings, seconds = ranked(settings)
        agreement = mean(shares(best, rankings))
        lost = {
            cut: mean([b - a for a, b in zip(recalls[cut], found, strict=True)])
            for cut, found in recall(rankings, asked).items()
        }
        rows.append(
            {
                "number": number,
                "seconds_per_query": seconds,
                "agreement@10": [agreement.mean, agreement.low, agreement.high],
                "recall - exact's": {cut: [e.mean, e.low, e.high] for cut, e in lost.items()},
            }
        )
    return {
        "passages": len(corpus),
        "n": len(asked),
        "exact's recall": {cut: mean(values).mean for cut, values in recalls.items()},
        "exact seconds": exact_seconds,
        "others": rows,
    }


def measure_encoding(texts: list[str]) -> dict[str, Any]:
    """Seconds that the same passages take our encoder, its model's forward passes alone, and colbert-ai's encoder, with
    the same checkpoint."""
    from colbert.indexing.collection_encoder import CollectionEncoder
    from colbert.infra import ColBERTConfig
    from colbert.modeling.checkpoint import Checkpoint

    from hoptimizer.models.engine.loading import quiet_loading
    from hoptimizer.retrieval.colbert.encoder import ColBERTEncoder

    checkpoint = find_checkpoint("minilm")
    ours = ColBERTEncoder(checkpoint)
    with patch.object(ours, "vectors", wraps=ours.vectors) as vectors:
        list(ours.passages(texts))
    batches = [call.args[0] for call in vectors.call_args_list]

    @torch.inference_mode()
    def forward() -> None:
        for batch in batches:
            ours.model(batch.ids, attention_mask=batch.mask)

    with quiet_loading():
        config = ColBERTConfig.from_existing(ours.config, ColBERTConfig(index_bsize=64))
        theirs = CollectionEncoder(config, Checkpoint(str(checkpoint.folder), colbert_config=config, verbose=0))
        ways = {
            "ours": lambda: list(ours.passages(texts)),
            "forward": forward,
            "colbert-ai": lambda: theirs.encode_passages(texts),
        }
        seconds = [{name: timeit(way, number=1) for name, way in ways.items()} for _ in range(ROUNDS)]
    return {
        "passages": len(texts),
        "seconds": seconds,
        "colbert-ai / ours": spread(one["colbert-ai"] / one["ours"] for one in seconds),
        "forward / ours": spread(one["forward"] / one["ours"] for one in seconds),
    }


def spread(values: Iterable[float]) -> list[float]:
    """The median, the lowest and the highest of some figures."""
    each = sorted(values)
    return [median(each), each[0], each[-1]]


def extra_corpus(folder: Path) -> Corpus:
    """The passages of a data set's ``corpus*`` file."""
    pool = PassagePool()
    for file in sorted(folder.glob("corpus*.json*")):
        for row in read_rows(file):
            extra = require(ExtraPassage, row)
            pool.add(extra.title, extra.text)
    if not len(pool):
        raise UserError(f"{folder}: no corpus*.json or corpus*.jsonl in it, which PLAID is measured on")
    return Corpus(list(pool), folder.name)


def report(done: int, total: int) -> None:
    """Show how far an index is."""
    sys.stderr.write(f"\rencoding {done}/{total} " + ("\n" if done == total else ""))


def recall_tables(figures: dict[str, Any]) -> list[Table]:
    """For each data set, the recall of each retriever, and how it differs from others'."""
    tables = []
    for one in figures["recall"]:
        title = f"{one['data']}, {one['questions']} questions: n = {one['n']}, {one['passages']:,} passages"
        table = Table("retriever", *(f"recall@{cut}" for cut in CUTS), title=title, box=MARKDOWN)
        for name, by_cut in one["recall"].items():
            table.add_row(name, *(f"{m:.3f} [{low:.3f}, {high:.3f}]" for m, low, high in by_cut.values()))
        tables.append(table)
    return tables


def exact_table(figures: dict[str, Any], number: str) -> Table:
    """What indexes keep of the exact one, and what each takes."""
    ours = ", ".join(f"{share:.3f} at {cut}" for cut, share in figures["exact's recall"].items())
    table = Table(
        number,
        "MB",
        "ms a query",
        "exact's top 10",
        *(f"recall@{cut} - exact's" for cut in CUTS),
        title=f"{figures['n']} questions, {figures['passages']} passages; exact's recall: {ours}; "
        f"{1000 * figures['exact seconds']:.1f} ms a query",
        box=MARKDOWN,
    )
    for row in figures["others"]:
        cells = [row["agreement@10"], *row["recall - exact's"].values()]
        shown = [f"{m:.3f} [{low:.3f}, {high:.3f}]" for m, low, high in cells]
        size = f"{row['bytes'] / 1e6:.0f}" if "bytes" in row else "–"
        table.add_row(str(row["number"]), size, f"{1000 * row['seconds_per_query']:.1f}", *shown)
    return table


def plaid_line(plaid: dict[str, Any]) -> str:
    """What there is to say of PLAID."""
    shared, low, high = plaid["agreement@10"]
    times = ", ".join(f"{index} {1000 * s:.0f} ms" for index, s in plaid["seconds_per_query"].items())
    return (
        f"PLAID has {shared:.3f} [{low:.3f}, {high:.3f}] of exact's top 10 "
        f"({plaid['n']} queries, {plaid['passages']} passages; a query takes {times})"
    )


def encoding_line(encoding: dict[str, Any]) -> str:
    """What there is to say of encoding."""
    times, share = encoding["colbert-ai / ours"], [100 * one for one in encoding["forward / ours"]]
    ours = median(one["ours"] for one in encoding["seconds"])
    return (
        f"Encoding {encoding['passages']} passages: {ours:.1f} s (median of {ROUNDS}); colbert-ai's encoder takes "
        f"{times[0]:.1f} [{times[1]:.1f}, {times[2]:.1f}] times as long (aim 5), and the model's forward passes alone "
        f"{share[0]:.0f} [{share[1]:.0f}, {share[2]:.0f}]% of it (aim 70)"
    )


def main() -> None:
    """Measure and print."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets' folders")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--recall", action="store_true", help="measure recall alone")
    only.add_argument("--bits", action="store_true", help="measure PLAID's bits alone")
    only.add_argument("--probes", action="store_true", help="measure dense retrieval's cells alone")
    only.add_argument("--encoding", action="store_true", help="measure the speed of encoding alone")
    options = parser.parse_args()
    with user_mistakes():
        sets = read_sets(options.data)
        if options.recall:
            recalls = {"recall": [figures for one in sets for figures in measure_recall(one)]}
            return show(recalls, options.json, *recall_tables(recalls))
        if options.probes:
            probes = measure_probes(sets)
            return show(probes, options.json, exact_table(probes, "probes"))
        wiki = next((one for one in sets if one.name == "2wikimultihopqa"), None)
        if wiki is None:
            raise UserError(f"{options.data}: no folder 2wikimultihopqa in it, which PLAID is measured on")
        if options.bits:
            bits = measure_bits(wiki)
            return show(bits, options.json, exact_table(bits, "bits"))
        corpus = extra_corpus(options.data / wiki.name)
        passages: list[Passage] = random.Random(SEED).sample(corpus.passages, min(640, len(corpus)))
        encoding = measure_encoding([str(p) for p in passages])
        if options.encoding:
            return show(encoding, options.json, encoding_line(encoding))
        figures: dict[str, Any] = {
            "recall": [part for one in sets for part in measure_recall(one)],
            "plaid": measure_agreement(corpus, [a.question.question for a in wiki.train + wiki.dev]),
            "encoding": encoding,
        }
    lines = plaid_line(figures["plaid"]), encoding_line(figures["encoding"])
    show(figures, options.json, *recall_tables(figures), *lines)


if __name__ == "__main__":
    main()
