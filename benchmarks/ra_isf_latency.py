"""How close RA-ISF comes to the time of its longest chain of dependent calls.

    python benchmarks/ra_isf_latency.py [--json]

One question at a time on a fixed-latency LM, a stand-in whose every call takes 100 ms and whose answers are scripted,
with k = 5. Calls that don't depend on each other should cost no time of their own: the wall time of a question over
the length of its chain × 100 ms is at most 1.15.
"""

import asyncio
import json
import re
import statistics
import sys
import time
from typing import Any

import dspy
from dspy.utils import DummyLM
from rich.table import Table

from hoptimizer.programs import RAISF
from hoptimizer.programs.record import counts
from hoptimizer.retrieval import Passage, Retriever
from reporting import benchmark_parser, show

LATENCY = 0.1  # seconds
LIMIT = 1.15
K = 5
REPEATS = 5

TOP = "Would the singer's voice shake glass?"
PARTS = ["What breaks glass?", "What is the resonance of glass?", "Can voices resonate?", "Can the singer's?"]
PARTS_OF_LAST = ["What is her range?", "Is she versatile?", "At what note does glass vibrate?"]

JUDGE = ["self_knowledge", "relevance"]
# Question, and its longest chain of calls that wait for each other.
FLOWS = {
    "known at once": ("known", ["self_knowledge", "closed_book"]),
    "relevant at once": ("relevant", [*JUDGE, "reader"]),
    "split up twice": (TOP, [*JUDGE, "decompose", *JUDGE, "decompose", *JUDGE, "reader", "combine", "combine"]),
}
KNOWN = {"known", PARTS[0], PARTS[2], *PARTS_OF_LAST[1:]}
SPLITS = {TOP: PARTS, PARTS[3]: PARTS_OF_LAST}

_OUTPUT = re.compile(r"the field `\[\[ ## (\w+) ## ]]`")
_QUESTION = re.compile(r"\[\[ ## question ## ]]\n(.*?)\n")


class FixedLatencyLM(DummyLM):
    """Answers by script after a fixed time, any number of calls at once."""

    def __init__(self) -> None:
        super().__init__([])

    async def acall(
        self,
        prompt: str | None = None,
        messages: list[dict[str, Any]] | None = None,
        **kwargs: Any,  # noqa: ANN401 - as DSPy hands them
    ) -> list[str]:
        await asyncio.sleep(LATENCY)
        text = messages[-1]["content"] if messages else ""
        field, question = _OUTPUT.findall(text)[0], _QUESTION.findall(text)[0]
        return [self._format_answer_fields({field: _scripted(field, question)})]


class InstantRetriever(Retriever):
    """Finds five passages for whatever is asked, in no time."""

    name = "instant"

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        return [
            [Passage(f"{query} {i}", query, "A passage of some words. " * 10) for i in range(k)] for query in queries
        ]


def _scripted(field: str, question: str) -> str:
    if field == "knows":
        return "yes" if question in KNOWN else "no"
    if field == "relevant":
        return "no" if question in SPLITS else "yes"
    return json.dumps(SPLITS[question]) if field == "subquestions" else "an answer"


def measure() -> list[dict[str, Any]]:
    """Of each control flow the calls, the longest chain, the median wall time and its ratio to the chain's."""
    program = RAISF(InstantRetriever(), k=K)
    rows = []
    with dspy.context(lm=FixedLatencyLM(), adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        asyncio.run(program.acall(question="known"))  # what is imported and made at the first call
        for flow, (question, chain) in FLOWS.items():
            seconds = []
            for _ in range(REPEATS):
                start = time.perf_counter()
                prediction = asyncio.run(program.acall(question=question))
                seconds.append(time.perf_counter() - start)
            took = statistics.median(seconds)
            calls = int(counts(prediction.steps)["lm_calls"])
            ratio = took / (len(chain) * LATENCY)
            rows.append({"flow": flow, "lm_calls": calls, "chain": len(chain), "seconds": took, "ratio": ratio})
    return rows


def main() -> None:
    """Print the table; fails where a ratio is over the limit."""
    parser = benchmark_parser(__doc__)
    options = parser.parse_args()
    rows = measure()
    table = Table("fixed-latency LM, 100 ms", "LM calls", "longest chain", "seconds", "ratio", box=None)
    for row in rows:
        figures = (str(row["lm_calls"]), str(row["chain"]), f"{row['seconds']:.3f}", f"{row['ratio']:.3f}")
        table.add_row(row["flow"], *figures)
    show({"latency": LATENCY, "limit": LIMIT, "flows": rows}, options.json, table)
    if any(row["ratio"] > LIMIT for row in rows):
        sys.exit(f"a ratio is over {LIMIT}")


if __name__ == "__main__":
    main()
