"""Hours, bytes and dollars of runs that were never made, from constants that were measured or published.

``benchmarks/scale_simulation.py`` prints these tables. Every constant below says where it comes from.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

from rich.box import MARKDOWN
from rich.table import Table

from simulation import Outcome, Routing, Setting, simulate

HOUR, GB = 3600.0, 1e9
PASSAGES = (10_000, 100_000, 1_000_000, 10_000_000, 21_000_000)
COUNTS = (100, 1_000, 10_000, 100_000, 1_000_000)
CANDIDATES = (2, 20, 200, 2_000, 20_000)
# Questions that are simulated one by one; of more, the rest take as long each.
SIMULATED = 5_000
# The words of an atlas passage (docs/retrievers.md), those of DPR's Wikipedia, tokens a word (SmolLM2's tokenizer).
ATLAS_WORDS, WIKIPEDIA_WORDS, TOKENS_A_WORD = 29, 100, 1.33
# docs/retrievers.md, `python benchmarks/scale.py`: bytes and CPU seconds a passage of 29 words, at a million of them.
# The start of a process, 2.2 s, is taken off.
CORPUS_BYTES, BM25_BYTES, BM25_PEAK = 504.0, 181.0, 1590.0
IMPORT_CPU, BM25_CPU, SEARCH_CPU = (41.1 + 22.9 - 2 * 2.2) / 1e6, (44.4 - 2.2) / 1e6, 2.5e-3 / 1e6
# The same page, PLAID of a million passages: 3,370 CPU seconds, 14.9 GB; each passage is encoded twice in 4 ms.
PLAID_CPU, PLAID_BYTES = (3370 + 2 * 4e-3 * 1e6) / 1e6, 14.9e9 / 1e6
DENSE_BYTES = 768.0  # a vector of 384 numbers of 16 bits
MEANINGS = {
    "gpu_hour": (3.0, "dollars for an H100 an hour"),
    "core_hour": (0.05, "dollars for a CPU core an hour"),
    "gpus": (8, "GPUs that serve the 70B model"),
    "in_flight": (256, "questions under way at once"),
    "dev": (100, "questions that score a candidate"),
}


@dataclass(frozen=True)
class Prices:
    """Assumptions, each an option of the command; ``MEANINGS`` says what they are."""

    gpu_hour: float
    core_hour: float
    gpus: float
    in_flight: float
    dev: float


@dataclass(frozen=True)
class Workload:
    """What a program's questions ask of driver and server.

    Attributes:
        program: its name.
        chains: the widths of each question's stages.
        searches: of a question.
        prompt: tokens of all calls of a question.
        completion: tokens that are written for a question.
        words: of passages in the prompts of a question.
        driver: CPU seconds of the driver a call.
    """

    program: str
    chains: tuple[tuple[int, ...], ...]
    searches: float
    prompt: float
    completion: float
    words: float
    driver: float = 0.0

    @property
    def calls(self) -> float:
        """Of a question."""
        return sum(map(sum, self.chains)) / len(self.chains)

    def prompt_of_a_call(self) -> float:
        """Tokens, if passages had as many words as those of the English Wikipedia."""
        longer = self.words * (WIKIPEDIA_WORDS / ATLAS_WORDS - 1) * TOKENS_A_WORD
        return (self.prompt + longer) / self.calls


@dataclass(frozen=True)
class Server:
    """What a model's server does.

    Attributes:
        name: of model and machine.
        replicas: of the model.
        slots: calls that a replica serves at once.
        work: ``prompt tokens, new tokens -> seconds`` that a full replica is kept busy by one call.
        alone: ``new tokens -> seconds`` that a call takes of a replica that serves no other.
        dollars: an hour, of all replicas.
    """

    name: str
    replicas: int
    slots: int
    work: Callable[[float, float], float]
    alone: Callable[[float], float]
    dollars: float

    def setting(self, workload: Workload, in_flight: int, search: float, routing: Routing = "fewest") -> Setting:
        """For the simulation: a call of ``n`` at once takes what it takes alone, and the work of the others.

        Args:
            workload: what the questions ask for.
            in_flight: questions under way at once.
            search: seconds of one search.
            routing: how calls are divided among the replicas.
        """
        new = workload.completion / workload.calls
        work, alone = self.work(workload.prompt_of_a_call(), new), self.alone(new)
        return Setting(
            in_flight,
            workload.driver,
            lambda others: alone + (others + 1) * work,
            self.slots,
            self.replicas,
            routing,
            search=search,
        )


def large(prices: Prices) -> Server:
    """A 70B model in FP8 on H100s, two of them a replica.

    NVIDIA's overview of TensorRT-LLM (docs/scale.md has the address) gives 762 new tokens/s for prompts of 2,048 and
    answers of 128 tokens, 6,378 for 128 and 128: 0.168 and 0.0201 s of the two GPUs a call, which two unknowns explain.
    A token of a call that is alone takes 8.4 ms (vLLM 0.10 on eight MI300X, 17.236 s for 2,048).
    """
    long, short = 128 / 762, 128 / 6378
    prompt = (long - short) / (2048 - 128)
    new = short / 128 - prompt
    replicas = int(prices.gpus // 2)
    dollars = prices.gpus * prices.gpu_hour
    return Server(
        f"70B, {prices.gpus:g} H100 (published)",
        replicas,
        256,
        lambda asked, said: asked * prompt + said * new,
        lambda said: said * 17.236 / 2048,
        dollars,
    )


def small(prices: Prices) -> Server:
    """Qwen2.5-Coder-0.5B in this process, on two cores.

    docs/log.md, `python benchmarks/engine_peers.py`: 122.9 new tokens/s at 32 calls of 48, with 712 prompt tokens of
    which 512 are shared; 13.1 alone. Prompts of another length take as much longer as they are.
    """
    return Server(
        "0.5B, two cores (measured)",
        1,
        32,
        lambda asked, said: (48 / 122.9) * (asked + said) / (712 + 48),
        lambda said: said / 13.1,
        2 * prices.core_hour,
    )


def asked(
    workload: Workload, server: Server, questions: int, in_flight: int, search: float, routing: Routing = "fewest"
) -> Outcome:
    """What an evaluation takes; of many questions a part is simulated, and the others take as long each."""
    number = min(questions, SIMULATED)
    outcome = simulate(server.setting(workload, in_flight, search, routing), workload.chains, number)
    part = questions / number
    return Outcome(outcome.seconds * part, int(outcome.calls * part), 0, outcome.busy)


def search_seconds(passages: float) -> float:
    """CPU seconds of one BM25 search among so many passages of 100 words."""
    return SEARCH_CPU * passages * WIKIPEDIA_WORDS / ATLAS_WORDS


def corpus_rows(prices: Prices) -> list[dict[str, float]]:
    """Bytes, hours of one core and dollars of each number of passages."""
    longer = WIKIPEDIA_WORDS / ATLAS_WORDS
    rows = []
    for passages in PASSAGES:
        hours = {"import": IMPORT_CPU, "bm25": BM25_CPU, "plaid": PLAID_CPU}
        core = {name: passages * longer * seconds / HOUR for name, seconds in hours.items()}
        rows.append(
            {
                "passages": passages,
                "corpus_gb": passages * longer * CORPUS_BYTES / GB,
                "bm25_gb": passages * longer * BM25_BYTES / GB,
                "bm25_peak_gb": passages * longer * BM25_PEAK / GB,
                "dense_gb": passages * DENSE_BYTES / GB,
                "plaid_gb": passages * longer * PLAID_BYTES / GB,
                "import_bm25_hours": core["import"] + core["bm25"],
                "plaid_hours": core["plaid"],
                "plaid_dollars": core["plaid"] * prices.core_hour,
                "search_seconds": search_seconds(passages),
            }
        )
    return rows


def run_rows(workloads: Sequence[Workload], prices: Prices, passages: int, what: str) -> list[dict[str, Any]]:
    """Hours and dollars of growing numbers of questions or candidates, and what is busiest."""
    rows = []
    for server in (small(prices), large(prices)):
        for workload in workloads:
            # The server's own engine takes 32 at once; a program in this process needs no more questions than that.
            in_flight = int(prices.in_flight) if server.replicas > 1 else 32
            for number in COUNTS if what == "questions" else CANDIDATES:
                questions = number if what == "questions" else int(number * prices.dev)
                outcome = asked(workload, server, questions, in_flight, search_seconds(passages))
                hours = outcome.seconds / HOUR
                rows.append(
                    {
                        "server": server.name,
                        "program": workload.program,
                        what: number,
                        "calls": outcome.calls,
                        "hours": hours,
                        "dollars": hours * (server.dollars + 2 * prices.core_hour),
                        "busy": outcome.busy,
                    }
                )
    return rows


def routing_rows(workloads: Sequence[Workload], prices: Prices, passages: int) -> list[dict[str, Any]]:
    """Hours of 10,000 questions by how calls are divided among the replicas, with more and more under way."""
    server, most, rows = large(prices), int(prices.in_flight), []
    for workload in workloads:
        for in_flight in (most // 4, most, 4 * most):
            fewest, drawn = (
                asked(workload, server, 10_000, in_flight, search_seconds(passages), routing).seconds / HOUR
                for routing in get_args(Routing)
            )
            row = {"program": workload.program, "in_flight": in_flight, "fewest_hours": fewest, "random_hours": drawn}
            rows.append(row | {"longer": f"{100 * (drawn / fewest - 1):+.0f}%"})
    return rows


def limit_rows(workloads: Sequence[Workload], prices: Prices) -> list[dict[str, Any]]:
    """Questions an hour that each part can do by itself, by passages and by GPUs: the least is what breaks first."""
    rows = []
    for passages in PASSAGES:
        for factor in (1, 10):
            server = large(Prices(**asdict(prices) | {"gpus": prices.gpus * factor}))
            for workload in workloads:
                new = workload.completion / workload.calls
                most = {
                    "server": server.replicas / (workload.calls * server.work(workload.prompt_of_a_call(), new)),
                    "driver": 1 / (workload.calls * workload.driver),
                    "search": 1 / (max(workload.searches, 1e-9) * search_seconds(passages)),
                }
                first = min(most, key=lambda part: most[part])
                hourly = {part: HOUR * rate for part, rate in most.items()}
                rows.append(
                    {"passages": passages, "gpus": prices.gpus * factor, "program": workload.program, "first": first}
                    | hourly
                )
    return rows


def _table(title: str, rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(*(name.replace("_", " ") for name in rows[0]), title=title)
    table.box = MARKDOWN
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    return table


def _cell(value: Any) -> str:  # noqa: ANN401 - a row's value
    if isinstance(value, dict):
        return ", ".join(f"{part} {100 * share:.0f}%" for part, share in value.items())
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def paper(workloads: Sequence[Workload], prices: Prices) -> tuple[dict[str, Any], list[Table]]:
    """All figures, and their tables."""
    figures: dict[str, Any] = {
        "workloads": [
            {
                "program": one.program,
                "chain": sum(map(len, one.chains)) / len(one.chains),
                "calls": one.calls,
                "searches": one.searches,
                "prompt_tokens_a_call": one.prompt / one.calls,
                "with_100_words": one.prompt_of_a_call(),
                "new_tokens_a_call": one.completion / one.calls,
                "driver_cpu_ms_a_call": 1000 * one.driver,
            }
            for one in workloads
        ],
        "corpus": corpus_rows(prices),
        "questions": run_rows(workloads, prices, 21_000, "questions"),
        "candidates": run_rows(workloads, prices, 21_000, "candidates"),
        "routing": routing_rows(workloads, prices, 21_000),
        "limits": limit_rows(workloads, prices),
    }
    titles = {
        "workloads": "what a question asks for",
        "corpus": "passages of 100 words: bytes, hours of one core, CPU seconds of a BM25 search",
        "questions": "questions over 21,000 passages",
        "candidates": f"candidates of {prices.dev:g} questions each, over 21,000 passages",
        "routing": "70B: hours of 10,000 questions, by the replica that a call goes to",
        "limits": "70B: questions an hour that each part can do, and which is the least",
    }
    return figures, [_table(title, figures[name]) for name, title in titles.items()]
