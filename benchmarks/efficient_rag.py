"""How fast a trained EfficientRAG retrieves, and what its reading saves against reading ten passages.

    python benchmarks/efficient_rag.py [--run ID] [--split test] [--read] [--beside N] [--json] [CONFIG] [KEY=VALUE]

ID is a variant that `hop compile program=efficient_rag optimizer=train_tagger` made; without it, program.steps names
the small models. The time is that of all rounds of all questions, asked together as the runner asks them, over their
number. Beside it stands what the forward passes alone take: the labeler's and the filter's over the same pairs, and the
retriever's encoder over the same queries. With --read, the answers are scored too, and compared with those of `rag`
with ten passages and the same prompts, as are the prompt tokens that each reads. With --beside, the first N questions
are retrieved for one at a time, and likewise by ITER-RETGEN in three rounds and by self-ask, which the language model
leads: the seconds of each up to the end of its last search, what comes after it left out (aims: a fifth and a tenth).
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import dspy
import torch
from rich.pretty import Pretty

from hoptimizer.cli.screen.options import config_of
from hoptimizer.common.errors import UserError
from hoptimizer.compiled import program_of
from hoptimizer.eval import statistics
from hoptimizer.eval.datasets.question import Question
from hoptimizer.eval.runner import Evaluation, evaluate
from hoptimizer.models.engine.limits import best_of
from hoptimizer.models.small.encoder import AlignedPair, TextPair
from hoptimizer.models.small.labeler import Labeler, QueryFilter
from hoptimizer.models.small.tagger import tag
from hoptimizer.programs import RAG, EfficientRAG, IterRetGen, Program, SelfAsk, StepRecord
from hoptimizer.tracking.tracker import Tracker
from hoptimizer.workbench import Workbench
from reporting import benchmark_parser, show, user_mistakes

ROUNDS = 3
RAG_PASSAGES = 10


class Kept:
    """Wraps a function over batches, and keeps what it was given."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.given: list[list[Any]] = []

    def __call__(self, batch: Sequence[Any], *others: Any) -> Any:  # noqa: ANN401 - whatever the function gives
        self.given.append(list(batch))
        return self.function(batch, *others)


def retrieval(program: EfficientRAG, questions: Sequence[Question], workers: int) -> dict[str, float]:
    """Scores and times of the retrieval alone."""
    retriever = program.retriever
    assert retriever is not None  # this program always has one
    models = [model for model in program.models.values() if isinstance(model, Labeler | QueryFilter)]
    tagged, search = [Kept(model._tag) for model in models], Kept(retriever.search)
    times = []
    with contextlib.ExitStack() as patches:
        patches.enter_context(patch.object(program, "reader", None))
        patches.enter_context(patch.object(retriever, "search", search))
        for model, function in zip(models, tagged, strict=True):
            patches.enter_context(patch.object(model, "_tag", function))
        evaluate(program, questions[:4], workers=workers)  # threads and kernels are set up
        for _ in range(ROUNDS):
            for function in (*tagged, search):
                function.given.clear()
            start = time.perf_counter()
            evaluation = evaluate(program, questions, workers=workers)
            times.append(time.perf_counter() - start)
    limit = sum(forward(model, function.given) for model, function in zip(models, tagged, strict=True))
    encoder = getattr(retriever, "_encoder", None)
    if encoder is not None:
        limit += best_of(lambda: [encoder.queries(batch) for batch in search.given], ROUNDS)
    names = ("recall", "passages", "model_calls", "retrievals", "iterations")
    return {
        **{name: evaluation.metrics[name] for name in names},
        "ms": 1e3 * min(times) / len(questions),
        "forward_ms": 1e3 * limit / len(questions),
    }


def forward(model: Labeler | QueryFilter, batches: Sequence[Sequence[TextPair]]) -> float:
    """Seconds that the model's forward passes take over batches that were tokenized before."""
    aligned: list[list[AlignedPair]] = [model._tokenizer.aligned(batch) for batch in batches]
    return best_of(lambda: [tag(model._model, model._tokenizer, batch) for batch in aligned], ROUNDS)


def reading(program: Program, questions: Sequence[Question], lm: dspy.LM, workers: int) -> tuple[Evaluation, float]:
    """Scores with the answers, and prompt tokens per question."""
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


def beside(bench: Workbench, program: EfficientRAG, questions: Sequence[Question]) -> dict[str, Any]:
    """Seconds a question of the program's retrieval, and of those that a language model leads; and their recall."""
    bench.lms["default"].cache = False
    programs: dict[str, Program] = {
        "efficient_rag": program,
        "iter_retgen": IterRetGen(bench.retriever, k=program.k, rounds=3),
        "self_ask": SelfAsk(bench.retriever, k=program.k),
    }
    seconds, figures = dict[str, list[float]](), dict[str, Any]()
    with patch.object(program, "reader", None):
        for name, one in programs.items():
            evaluate(one, questions[-1:], workers=1)  # threads and kernels are set up
            bench.retriever.forget()
            evaluation = evaluate(one, questions, workers=1)
            seconds[name] = [searching(row.steps) for row in evaluation.rows]
            ratios = [ours / theirs for ours, theirs in zip(seconds["efficient_rag"], seconds[name], strict=True)]
            ratio = statistics.mean(ratios)
            figures[name] = {
                "seconds": statistics.mean(seconds[name]).mean,
                "recall": evaluation.metrics["recall"],
                "ours_over_it": [ratio.mean, ratio.low, ratio.high],
            }
    return figures


def searching(steps: Sequence[StepRecord]) -> float:
    """Seconds from the start of a question to the end of its last search, and of what small models did with that."""
    return max(step.ended for step in steps if step.kind != "lm") - min(step.ended - step.seconds for step in steps)


def scores(evaluation: Evaluation) -> dict[str, float]:
    """The scores of answers, and the passages and calls that they took."""
    return {name: evaluation.metrics[name] for name in ("em", "f1", "recall", "passages", "lm_calls")}


def main() -> None:
    """Measure and print."""
    parser = benchmark_parser(__doc__)
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="a config file, and settings that win over it and the run's"
    )
    parser.add_argument("--run", metavar="ID", help="the variant's MLflow run")
    parser.add_argument("--split", default="test", help="the questions (default: test)")
    parser.add_argument("--read", action="store_true", help="compare the answers too")
    parser.add_argument("--beside", type=int, metavar="N", help="retrieve for N questions by other programs, too")
    options = parser.parse_args()
    with user_mistakes():
        run_id, config = config_of(options.run, options.overrides)
        bench = Workbench(config)
        questions = bench.data.split(options.split)
        tracker = Tracker(config.tracking.uri, config.experiment) if run_id else None
        with bench.active():
            program = program_of(bench, tracker, run_id)
            if not isinstance(program, EfficientRAG):
                raise UserError(f"program.name: expected efficient_rag, got {config.program.name}; give program.name")
            if options.read and program.reader is None:
                raise UserError("program.reader: expected a reader, whose answers --read compares, got none")
            figures: dict[str, Any] = {"n": len(questions), "threads": torch.get_num_threads()}
            figures["retrieval"] = retrieval(program, questions, config.workers)
            if options.read:
                figures["answers"] = answers(bench, program, questions)
            if options.beside:
                figures["beside"] = beside(bench, program, questions[: options.beside])
    show(figures, options.json, Pretty(figures))


if __name__ == "__main__":
    main()
