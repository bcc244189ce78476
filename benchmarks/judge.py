"""A judge against answers that were marked by hand, beside the metrics that compare words.

    python benchmarks/judge.py [--lm MODEL] [--json]

``marked_answers.jsonl`` has 100 answers to test questions of atlas, each marked right or wrong by hand from the
question and the right answers: 60 that models of 0.5B and 1.5B parameters gave when they had the supporting passages
and were asked for a full sentence, and 40 that they gave without passages and that are no exact matches. A metric says
right where its score is at least one half. Intervals: Wilson's.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import dspy
from dspy.utils.parallelizer import ParallelExecutor
from rich.table import Table
from scipy.stats import binomtest

from hoptimizer.common.concurrency import run_async
from hoptimizer.eval.judge import judge
from hoptimizer.eval.metrics import METRICS
from hoptimizer.models import LMSettings, build_adapter, build_lm
from reporting import benchmark_parser, percent, show, user_mistakes

FILE = Path(__file__).with_name("marked_answers.jsonl")
MODEL = "local/qwen2.5-coder-1.5b-instruct"
WORDS = ("em", "f1", "contains", "efficient_rag_em")


@dataclass(frozen=True)
class Marked:
    """An answer that a person marked.

    Attributes:
        question: what was asked.
        answers: the right ones.
        answer: the one that was given.
        right: whether it is right.
        passages: none; a metric asks for them.
    """

    question: str
    answers: list[str]
    answer: str
    right: bool
    passages: list[str] = field(default_factory=list)


Says = Callable[[Marked], bool]


def by_words(name: str) -> Says:
    """What a metric says."""
    score = METRICS[name].measure

    def says(marked: Marked) -> bool:
        prediction = dspy.Prediction(answer=marked.answer, passages=[], steps=[])
        return (score(marked, prediction) or 0.0) >= 0.5

    return says


def by_judge(lm: dspy.LM) -> Says:
    """What a language model says; an answer on which it gives no verdict counts as wrong."""
    return lambda marked: bool(run_async(judge(lm, marked, marked.answer)).accuracy)


def figures(marked: list[Marked], said: list[bool]) -> dict[str, list[float]]:
    """How often they agree, and which of the two mistakes they make."""

    def share(hits: int, n: int) -> list[float]:
        interval = binomtest(hits, n).proportion_ci(method="wilson")
        return [hits / n, interval.low, interval.high]

    right = [says for one, says in zip(marked, said, strict=True) if one.right]
    wrong = [says for one, says in zip(marked, said, strict=True) if not one.right]
    return {
        "agrees": share(sum(right) + wrong.count(False), len(marked)),
        "right_as_right": share(sum(right), len(right)),
        "wrong_as_wrong": share(wrong.count(False), len(wrong)),
    }


def main() -> None:
    """Measure and print."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--lm", default=MODEL, help="the judge (default: %(default)s)")
    options = parser.parse_args()
    marked = [Marked(**json.loads(line)) for line in FILE.read_text(encoding="utf-8").splitlines()]
    with user_mistakes():
        lm = build_lm(LMSettings(model=options.lm, max_tokens=64))
        ways: dict[str, Says] = {name: by_words(name) for name in WORDS} | {f"judge {options.lm}": by_judge(lm)}
        with dspy.context(adapter=build_adapter()):
            executor = ParallelExecutor(num_threads=8, disable_progress_bar=True)
            rows = {way: figures(marked, executor.execute(says, marked)) for way, says in ways.items()}
    table = Table("", "agrees", "right, said to be right", "wrong, said to be wrong", box=None, header_style="bold")
    for way, row in rows.items():
        table.add_row(way, *(percent(*row[name]) for name in ("agrees", "right_as_right", "wrong_as_wrong")))
    n = {"answers": len(marked), "right": sum(one.right for one in marked)}
    show({**n, "ways": rows}, options.json, table, f"{n['answers']} answers, {n['right']} of them right")


if __name__ == "__main__":
    main()
