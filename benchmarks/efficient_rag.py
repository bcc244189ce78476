"""How fast a trained EfficientRAG retrieves, and what its reading saves against reading ten passages.

    python benchmarks/efficient_rag.py [--run ID] [--split test] [--read] [--json] [KEY=VALUE]...

ID is a variant that `hop compile program=efficient_rag optimizer=train_tagger` made; without it, program.steps names
the small models. The time is that of all rounds of all questions, asked together as the runner asks them, over their
number; beside it what the forward passes alone take: the labeler's and the filter's over the same pairs, and the
retriever's encoder over the same queries. With --read, the answers too, beside those of `rag` with ten passages and the
same prompts, and the prompt tokens that each reads.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import dspy
import torch
from rich.console import Console

from hoptimizer.cli.options import config_of_run, read_words
from hoptimizer.common.errors import UserError
from hoptimizer.compiled import restore, variant_of
from hoptimizer.eval import statistics
from hoptimizer.eval.datasets.question import Question
from hoptimizer.eval.runner import Evaluation, evaluate
from hoptimizer.models.small.encoder import AlignedPair
from hoptimizer.models.small.tagger import tag
from hoptimizer.programs import RAG, EfficientRAG, Program
from hoptimizer.tracking.tracker import Tracker
from hoptimizer.workbench import Workbench

ROUNDS = 3
RAG_PASSAGES = 10


class Kept:
    """Wraps a function over batches, and keeps what it was given."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function, self.given = function, []

    def __call__(self, batch: Sequence[Any], *others: Any) -> Any:  # noqa: ANN401 - whatever the function gives
        self.given.append(list(batch))
        return self.function(batch, *others)


def retrieval(program: EfficientRAG, questions: Sequence[Question], workers: int) -> dict[str, float]:
    """Scores and times of the retrieval alone."""
    reader, program.reader = program.reader, None
    kept = {name: Kept(program.models[name]._tag) for name in ("labeler", "filter") if name in program.models}
    for name, function in kept.items():
        program.models[name]._tag = function
    search = program.retriever.search = Kept(program.retriever.search)
    evaluate(program, questions[:4], workers=workers)  # threads and kernels are set up
    times = []
    for _ in range(ROUNDS):
        for function in (*kept.values(), search):
            function.given.clear()
        start = time.perf_counter()
        evaluation = evaluate(program, questions, workers=workers)
        times.append(time.perf_counter() - start)
    limit = sum(forward(program.models[name], function.given) for name, function in kept.items())
    encoder = getattr(program.retriever, "_encoder", None)
    if encoder is not None:
        limit += clock(lambda: [encoder.queries(batch) for batch in search.given])
    program.reader = reader
    names = ("recall", "passages", "model_calls", "retrievals", "iterations")
    return {
        **{name: evaluation.metrics[name] for name in names},
        "ms": 1e3 * min(times) / len(questions),
        "forward_ms": 1e3 * limit / len(questions),
    }


def forward(model: Any, batches: Sequence[Sequence[Any]]) -> float:  # noqa: ANN401 - a labeler or a filter
    """Seconds that the model's forward passes take over batches that were tokenized before."""
    aligned: list[list[AlignedPair]] = [model._tokenizer.aligned(batch) for batch in batches]
    return clock(lambda: [tag(model._model, model._tokenizer, batch) for batch in aligned])


def clock(work: Callable[[], Any]) -> float:
    """Seconds of the fastest of several times."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def reading(program: Program, questions: Sequence[Question], lm: dspy.LM, workers: int) -> tuple[Evaluation, float]:
    """Scores with the answers, and prompt tokens a question."""
    lm.history.clear()
    evaluation = evaluate(program, questions, workers=workers)
    return evaluation, sum(entry["usage"]["prompt_tokens"] for entry in lm.history) / len(questions)


def answers(bench: Workbench, program: EfficientRAG, questions: Sequence[Question]) -> dict[str, Any]:
    """Answers of the program and of retrieving once, and their difference."""
    rag = RAG(bench.retriever, k=RAG_PASSAGES)
    rag.reader, rag.prompt_format = program.reader, program.prompt_format
    lm = bench.lms["default"]
    lm.cache = False
    ours, tokens = reading(program, questions, lm, bench.config.workers)
    theirs, rag_tokens = reading(rag, questions, lm, bench.config.workers)
    paired = statistics.compare(theirs.scores("f1"), ours.scores("f1"), seed=bench.config.seed)
    return {
        "efficient_rag": {**scores(ours), "prompt_tokens": tokens},
        "rag": {**scores(theirs), "prompt_tokens": rag_tokens},
        "f1_difference": [paired.difference, paired.low, paired.high],
        "tokens_ratio": tokens / rag_tokens,
    }


def scores(evaluation: Evaluation) -> dict[str, float]:
    """The scores of answers, and the passages and calls that they took."""
    return {name: evaluation.metrics[name] for name in ("em", "f1", "recall", "passages", "lm_calls")}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="settings that win over the run's")
    parser.add_argument("--run", help="the variant's MLflow run")
    parser.add_argument("--split", default="test", help="the questions")
    parser.add_argument("--read", action="store_true", help="compare the answers too")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    try:
        config = config_of_run(arguments.run, arguments.words) if arguments.run else read_words(arguments.words)
        bench = Workbench(config)
        questions = bench.data.split(arguments.split)
        with bench.active():
            if arguments.run:
                state = Tracker(config.tracking.uri, config.experiment).load_state(arguments.run)
                program = restore(bench, state, variant_of(arguments.run))
            else:
                program = bench.program()
            figures: dict[str, Any] = {"n": len(questions), "threads": torch.get_num_threads()}
            figures["retrieval"] = retrieval(program, questions, config.workers)
            if arguments.read:
                figures["answers"] = answers(bench, program, questions)
    except UserError as error:
        sys.exit(str(error))
    if arguments.json:
        print(json.dumps(figures))
    else:
        Console().print(figures)


if __name__ == "__main__":
    main()
