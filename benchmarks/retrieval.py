"""How well our retrievers retrieve, and how fast the embedded ColBERT checkpoint does beside colbert-ai's own encoder.

    python benchmarks/retrieval.py --data DIR [--recall] [--json]

DIR holds a folder for each data set that the checkpoint was trained on (``hotpotqa``, ``2wikimultihopqa``,
``musique``), with the published files as ``read_sets`` of ``hoptimizer.optimizers.training.retriever.colbert_data``
reads them. Recall is measured on their dev questions, which the training left out; ``--recall`` measures nothing else.
"""

import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
    HybridSettings,
    Passage,
    Retriever,
    RetrieverSettings,
    build_retriever,
)
from hoptimizer.retrieval.settings import RetrieverOptions
from reporting import benchmark_parser, show, user_mistakes

CUTS = (2, 5, 10)
SEED = 7
# The first is what the others are compared with.
RETRIEVERS: dict[str, RetrieverOptions] = {
    "bm25": RetrieverSettings(name="bm25"),
    "colbert": RetrieverSettings(),
    "dense": DenseSettings(),
    "hybrid of bm25, colbert": HybridSettings(of=("bm25", "colbert")),
    "hybrid of bm25, dense": HybridSettings(of=("bm25", "dense")),
}


def measure_recall(one: RetrievalSet) -> dict[str, Any]:
    """Share of the supporting passages among the first 2, 5 and 10, by retriever; and how it differs from BM25's."""
    questions = one.dev
    figures: dict[str, Any] = {"data": one.name, "passages": len(one.corpus), "n": len(questions)}
    recalls: dict[str, dict[int, list[float]]] = {}
    base, *_ = RETRIEVERS
    for name, settings in RETRIEVERS.items():
        recalls[name] = recall(build_retriever(settings, one.corpus, progress=report), questions)
        for cut in CUTS:
            estimate = mean(recalls[name][cut])
            figures[f"{name}@{cut}"] = [estimate.mean, estimate.low, estimate.high]
            if name == base:
                continue
            gain = mean([c - b for b, c in zip(recalls[base][cut], recalls[name][cut], strict=True)])
            figures[f"{name} - {base}@{cut}"] = [gain.mean, gain.low, gain.high]
    return figures


def recall(retriever: Retriever, questions: Sequence[QuestionWithContext]) -> dict[int, list[float]]:
    """For each cut, every question's recall of its supporting passages."""
    found = retriever.search([asked.question.question for asked in questions], max(CUTS))
    gold = [set(asked.question.passages) for asked in questions]
    return {
        cut: [len(g & {p.id for p in ranking[:cut]}) / len(g) for g, ranking in zip(gold, found, strict=True)]
        for cut in CUTS
    }


def measure_agreement(corpus: Corpus, queries: list[str]) -> dict[str, Any]:
    """How much of the exact index' top 10 is in PLAID's, and how long each takes for a query."""
    found, seconds = {}, {}
    for index in ("exact", "plaid"):
        retriever = build_retriever(RetrieverSettings(index=index), corpus, progress=report)
        retriever.search(queries[:2], 10)
        start = time.perf_counter()
        found[index] = [{p.id for p in ranking} for ranking in retriever.search(queries, 10)]
        seconds[index] = (time.perf_counter() - start) / len(queries)
    shared = mean([len(a & b) / len(a) for a, b in zip(found["exact"], found["plaid"], strict=True)])
    return {
        "passages": len(corpus),
        "n": len(queries),
        "agreement@10": [shared.mean, shared.low, shared.high],
        "seconds_per_query": seconds,
    }


def measure_encoding(texts: list[str]) -> dict[str, Any]:
    """Seconds that the same passages take our encoder and colbert-ai's, with the same checkpoint."""
    from colbert.indexing.collection_encoder import CollectionEncoder
    from colbert.infra import ColBERTConfig
    from colbert.modeling.checkpoint import Checkpoint

    from hoptimizer.models.engine.loading import quiet_loading
    from hoptimizer.retrieval.colbert.checkpoint import find_checkpoint
    from hoptimizer.retrieval.colbert.encoder import ColBERTEncoder

    checkpoint = find_checkpoint("minilm")
    ours = ColBERTEncoder(checkpoint)
    with quiet_loading():
        config = ColBERTConfig.from_existing(ours.config, ColBERTConfig(index_bsize=64))
        theirs = CollectionEncoder(config, Checkpoint(str(checkpoint.folder), colbert_config=config, verbose=0))
        list(ours.passages(texts[:64]))
        start = time.perf_counter()
        list(ours.passages(texts))
        between = time.perf_counter()
        theirs.encode_passages(texts)
        end = time.perf_counter()
    return {
        "passages": len(texts),
        "ours_seconds": between - start,
        "colbert_ai_seconds": end - between,
        "ratio": (end - between) / (between - start),
    }


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


def recall_table(figures: dict[str, Any]) -> Table:
    """The recall of each retriever, and how it differs from the first's."""
    table = Table("data", "passages", "n", "retriever", *(f"recall@{cut}" for cut in CUTS))
    for one in figures["recall"]:
        base, *others = RETRIEVERS
        for name in (*RETRIEVERS, *(f"{name} - {base}" for name in others)):
            cells = [f"{m:.3f} [{low:.3f}, {high:.3f}]" for m, low, high in (one[f"{name}@{cut}"] for cut in CUTS)]
            table.add_row(one["data"], str(one["passages"]), str(one["n"]), name, *cells)
    return table


def speed_lines(figures: dict[str, Any]) -> tuple[str, str]:
    """What there is to say of PLAID and of encoding."""
    plaid, encoding = figures["plaid"], figures["encoding"]
    shared, low, high = plaid["agreement@10"]
    times = ", ".join(f"{index} {1000 * s:.0f} ms" for index, s in plaid["seconds_per_query"].items())
    agreement = (
        f"PLAID has {shared:.3f} [{low:.3f}, {high:.3f}] of exact's top 10 "
        f"({plaid['n']} queries, {plaid['passages']} passages; a query takes {times})"
    )
    speed = (
        f"Encoding {encoding['passages']} passages: ours {encoding['ours_seconds']:.1f} s, "
        f"colbert-ai's {encoding['colbert_ai_seconds']:.1f} s, {encoding['ratio']:.1f} times as long"
    )
    return agreement, speed


def main() -> None:
    """Measure and print."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets' folders")
    parser.add_argument("--recall", action="store_true", help="measure recall alone")
    options = parser.parse_args()
    with user_mistakes():
        sets = read_sets(options.data)
        if options.recall:
            recalls = {"recall": [measure_recall(one) for one in sets]}
            return show(recalls, options.json, recall_table(recalls))
        wiki = next((one for one in sets if one.name == "2wikimultihopqa"), None)
        if wiki is None:
            raise UserError(f"{options.data}: no folder 2wikimultihopqa in it, which PLAID is measured on")
        corpus = extra_corpus(options.data / wiki.name)
        passages: list[Passage] = random.Random(SEED).sample(corpus.passages, min(640, len(corpus)))
        figures = {
            "recall": [measure_recall(one) for one in sets],
            "plaid": measure_agreement(corpus, [a.question.question for a in wiki.train + wiki.dev]),
            "encoding": measure_encoding([str(p) for p in passages]),
        }
    show(figures, options.json, recall_table(figures), *speed_lines(figures))


if __name__ == "__main__":
    main()
