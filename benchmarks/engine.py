"""Speed of the in-process engine: prompts, decoding, and what batching and prefix reuse bring.

    python benchmarks/engine.py [--model NAME] [--json]

All figures are of one run, with nothing else on the machine if they are to mean anything. The prompts are a program's:
instructions and demonstrations that all share, passages and a question of their own.
"""

import platform
import random
import time
from concurrent.futures import Future

import torch
from rich.table import Table

from hoptimizer.models.engine.generator import Generator
from hoptimizer.models.engine.request import Completion, GenerationRequest
from hoptimizer.models.weights.store import resolve
from reporting import benchmark_parser, load, show, user_mistakes

SHARED_TOKENS, OWN_TOKENS, NEW_TOKENS = 600, 300, 40


def prompts(count: int, shared: int, own: int, seed: int) -> list[list[int]]:
    """Prompts of plain token ids, ``shared`` of them in common; their meaning does not matter for speed."""
    draw = random.Random(seed)
    first = [draw.randrange(1000, 20_000) for _ in range(shared)]
    return [first + [draw.randrange(1000, 20_000) for _ in range(own)] for _ in range(count)]


def run(model: Generator, batch: list[list[int]], new: int, batched: bool = True) -> tuple[float, int]:
    """Seconds and completion tokens of one batch, submitted at once or one after the other."""
    start = time.perf_counter()
    futures: list[Future[Completion]] = []
    for prompt in batch:
        future = model.submit(GenerationRequest(prompt, new, ignore_end=True))
        futures.append(future)
        if not batched:
            future.result()
    written = sum(future.result().tokens for future in futures)
    return time.perf_counter() - start, written


def measure(name: str) -> dict[str, float]:
    """All figures, by name; speeds in tokens per second."""
    folder = resolve(name)
    plain = Generator(folder, prefix_bytes=0)
    run(plain, prompts(4, 0, 200, seed=0), 4)  # warm
    figures: dict[str, float] = {}
    seconds, _ = run(plain, prompts(8, 0, 1000, seed=1), 1)
    figures["prompt tokens/s"] = 8 * 1000 / seconds

    reusing = Generator(folder)
    for width in (1, 16, 32):
        batch = prompts(width, SHARED_TOKENS, OWN_TOKENS, seed=2)
        run(reusing, batch, 1)  # now the prompts are known, and what is left to time is decoding
        seconds, written = run(reusing, batch, NEW_TOKENS)
        figures[f"decoded tokens/s, batch {width}"] = written / seconds

    batch = prompts(32, SHARED_TOKENS, OWN_TOKENS, seed=3)
    with_both, _ = run(reusing, batch, NEW_TOKENS)
    without_reuse, _ = run(plain, batch, NEW_TOKENS)
    batch = prompts(32, SHARED_TOKENS, OWN_TOKENS, seed=4)
    run(reusing, batch[:1], 1)
    without_batching, _ = run(reusing, batch, NEW_TOKENS, batched=False)
    figures["32 calls, seconds"] = with_both
    figures["32 calls without prefix reuse, seconds"] = without_reuse
    figures["32 calls one by one, seconds"] = without_batching
    figures["gain by prefix reuse"] = without_reuse / with_both
    figures["gain by batching"] = without_batching / with_both
    return figures


def main() -> None:
    """Measure and print."""
    parser = benchmark_parser(__doc__)
    parser.add_argument(
        "--model", default="smollm2-135m-instruct", help="a name of the weights store, a folder or a Hub id"
    )
    options = parser.parse_args()
    with user_mistakes():
        figures = measure(options.model)
    machine = {
        "model": options.model,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cpu": platform.processor() or platform.machine(),
        "load": load(),
    }
    table = Table("", "figure", title=", ".join(f"{key} {value}" for key, value in machine.items()))
    for key, value in figures.items():
        table.add_row(key, f"{value:,.1f}")
    show({**machine, **figures}, options.json, table)


if __name__ == "__main__":
    main()
