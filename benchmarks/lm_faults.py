"""What is lost, and what is paid twice, when a language model's server fails on a third of its calls.

    python benchmarks/lm_faults.py [--short] [--json]

A server on this machine fails on 30% of its calls, drawn at random from refusals (429 with and without Retry-After),
500, 502, 503, hangs, dropped connections, answers that are cut off, and answers that are no JSON or of another shape
(``tests/faulty_server.py``). Every program answers 200 questions of atlas over BM25; what the language model says is
scripted. ``--short``: 20 questions.

Exits 1 where a question got no answer, or a call was made again that had been answered.
"""

import contextlib
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from rich.box import MARKDOWN
from rich.table import Table

from hoptimizer import Workbench, load_config
from hoptimizer.eval import evaluate
from hoptimizer.programs import Program
from reporting import benchmark_parser, show, user_mistakes

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from faulty_server import FaultyServer  # the tests' own

PROGRAMS = ("direct", "cot", "rag", "ircot", "ra_isf", "efficient_rag")
QUESTIONS, SHORT = 200, 20
SHARE = 0.3
TIMEOUT = 2.0
RETRIES = 15
_FIELDS = re.compile(r"(?:the field|then) `\[\[ ## (\w+) ## ]]`")


@dataclass(frozen=True)
class Survived:
    """What one program came to.

    Attributes:
        program: its name.
        questions: how many were asked.
        answered: how many of them were answered.
        prompts: distinct calls.
        failed: how many calls the server failed on, by the kind of failure.
        paid_twice: calls that were made again although they had been answered.
        seconds: wall time.
        undisturbed: wall time with the same server when it fails on nothing.
    """

    program: str
    questions: int
    answered: int
    prompts: int
    failed: dict[str, int]
    paid_twice: int
    seconds: float
    undisturbed: float


def scripted(program: Program) -> Callable[[dict[str, Any]], str]:
    """Replies in DSPy's chat prompt format that can be parsed, whatever step asks."""
    values: dict[str, str] = {}
    for _, predictor in program.named_predictors():
        for name, field in predictor.signature.output_fields.items():
            kind = field.annotation
            if get_origin(kind) is Literal:
                values[name] = str(get_args(kind)[0])
            else:
                values[name] = {list[str]: '["Which city is it in?"]', bool: "true", float: "0.5"}.get(kind, "Lyon")

    def reply(body: dict[str, Any]) -> str:
        names = [name for name in _FIELDS.findall(body["messages"][-1]["content"]) if name in values]
        return "\n\n".join(f"[[ ## {name} ## ]]\n{values[name]}" for name in names) + "\n\n[[ ## completed ## ]]"

    return reply


@contextlib.contextmanager
def own_home() -> Iterator[None]:
    """A cache folder without any answers."""
    before = os.environ.get("HOPTIMIZER_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HOPTIMIZER_HOME"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["HOPTIMIZER_HOME"]
            else:
                os.environ["HOPTIMIZER_HOME"] = before


def run(name: str, n: int, share: float) -> tuple[float, FaultyServer, dict[str, float]]:
    """Let a program answer n questions; the seconds that it took, the server, and the metrics."""
    with own_home(), FaultyServer(share=share, hang=2 * TIMEOUT, seconds=0.01) as server:
        words = [f"lm.default.api_base={server.url}", f"lm.default.timeout={TIMEOUT}"]
        words += [f"lm.default.num_retries={RETRIES}", "lm.default=openai/scripted"]
        bench = Workbench(load_config(None, ["data=atlas", f"program={name}", "retriever=bm25", *words]))
        with bench.active():
            program = bench.program()
            server.answer = scripted(program)
            start = time.perf_counter()
            evaluation = evaluate(program, bench.data.split("test", n), max_unanswered=1.0)
            return time.perf_counter() - start, server, evaluation.metrics


def survived(name: str, n: int) -> Survived:
    """One program, undisturbed and with a server that fails."""
    undisturbed, _, _ = run(name, n, share=0.0)
    seconds, server, metrics = run(name, n, share=SHARE)
    prompts = Counter(json.dumps(body["messages"]) for body in server.bodies)
    answered = len(server.bodies) - sum(server.failed.values())
    return Survived(
        program=name,
        questions=n,
        answered=n - int(metrics["unanswered"] + metrics["failures"]),
        prompts=len(prompts),
        failed=dict(sorted(server.failed.items())),
        paid_twice=answered - len(prompts),
        seconds=seconds,
        undisturbed=undisturbed,
    )


def main() -> None:
    """Measure and print; exits 1 where anything was lost or paid twice."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--short", action="store_true", help=f"{SHORT} questions instead of {QUESTIONS}")
    options = parser.parse_args()
    with user_mistakes():
        rows = [survived(name, SHORT if options.short else QUESTIONS) for name in PROGRAMS]
    header = ("program", "questions", "answered", "distinct calls", "failures", "paid twice", "time", "undisturbed")
    table = Table(*header, box=MARKDOWN)
    for row in rows:
        counts = (row.questions, row.answered, row.prompts, sum(row.failed.values()), row.paid_twice)
        table.add_row(row.program, *map(str, counts), f"{row.seconds:.0f} s", f"{row.undisturbed:.0f} s")
    kinds = Counter[str]()
    for row in rows:
        kinds.update(row.failed)
    injected = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
    show({"faults": [asdict(row) for row in rows], "injected": kinds}, options.json, table, f"injected: {injected}")
    sys.exit(int(any(row.answered < row.questions or row.paid_twice for row in rows)))


if __name__ == "__main__":
    main()
