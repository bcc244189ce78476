"""Speed of the in-process engine: prompts, decoding, and what batching and prefix reuse bring.

    python benchmarks/engine.py [--model NAME] [--json]

With nothing else on the machine, if the figures are to mean anything. Prompts are laid out as a program's: what all
share, and then tokens of their own. Beside speeds stands what they are of what the processor can do at most, measured
just before: the products of a prompt's tokens, in bf16, without those of attention; and the reading of all weights, and
of keys and values, once for each pass and token. So tokens are not drafted there. What drafts bring is measured by
itself, on prompts that mean something (``program_prompts.py``), in turn with and without them, for one answer after the
other and four at a time.

Grammars are timed where the answers of sixteen questions of atlas are held to a JSON schema: what the grammar takes, of
all seconds. The first token of a request that comes while sixteen others are being written is counted in passes.
"""

import itertools
import platform
import random
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from program_prompts import program_prompts
from rich.table import Table
from transformers import AutoConfig, AutoModelForCausalLM

from hoptimizer.eval.datasets.dataset import load as load_data
from hoptimizer.models.engine.constrained_decoding import Constraint
from hoptimizer.models.engine.generator import Generator
from hoptimizer.models.engine.limits import bf16_flops, read_bytes
from hoptimizer.models.engine.loading import BatchLimits
from hoptimizer.models.engine.request import Completion, GenerationRequest
from hoptimizer.models.weights.store import resolve
from reporting import benchmark_parser, load, show, user_mistakes

SHARED_TOKENS, OWN_TOKENS, NEW_TOKENS = 600, 300, 40
ROUNDS = 5


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


SCHEMA = {
    "type": "object",
    "properties": {"reasoning": {"type": "string"}, "answer": {"type": "string"}, "is_sure": {"type": "boolean"}},
    "required": ["reasoning", "answer", "is_sure"],
    "additionalProperties": False,
}


def grammar_share(model: Generator, width: int = 16) -> float:
    """The share of the seconds of so many JSON answers, written together, that their grammars take, in percent."""
    spent = 0.0

    def timed(name: str) -> Callable[..., Any]:
        inner = getattr(Constraint, name)

        def outer(*args: Any) -> Any:  # noqa: ANN401 - whatever the method takes and gives
            nonlocal spent
            start = time.perf_counter()
            try:
                return inner(*args)
            finally:
                spent += time.perf_counter() - start

        return outer

    asked = [f"Answer in JSON.\n\n{one.question}\n\n" for one in load_data("atlas").split("dev")[:width]]
    tokens = [model.tokenizer(text)["input_ids"] for text in asked]
    grammar = model.compiler.compile(SCHEMA)
    with ExitStack() as patches:
        for name in ("__init__", "allows", "mask", "take"):
            patches.enter_context(patch.object(Constraint, name, timed(name)))
        start = time.perf_counter()
        futures = [model.submit(GenerationRequest(prompt, NEW_TOKENS, grammar)) for prompt in tokens]
        for future in futures:
            future.result()
        return 100 * spent / (time.perf_counter() - start)


def passes_to_first_token(model: Generator, own: int, width: int = 16) -> float:
    """Passes until a request has its first token that comes while others are written, with so many tokens of its own
    behind the shared ones."""
    batch = prompts(width, SHARED_TOKENS, OWN_TOKENS, seed=5)
    run(model, batch, 1)
    writing = [model.submit(GenerationRequest(prompt, 400, ignore_end=True)) for prompt in batch]
    before = model.counts.passes
    while model.counts.passes < before + 5:  # all of them are being written
        time.sleep(0.001)
    [new] = prompts(1, SHARED_TOKENS, 0, seed=5)
    new += random.Random(own).choices(range(1000, 20_000), k=own)
    start = model.counts.passes
    model.submit(GenerationRequest(new, 1, ignore_end=True)).result()
    passes = model.counts.passes - start
    for future in writing:
        future.cancel()
    return float(passes)


def undrafted(folder: str, prefix_bytes: int | None = None) -> Generator:
    """A model that drafts nothing: what follows made-up tokens repeats itself, which drafts would gain by."""
    model = Generator(folder, prefix_bytes=prefix_bytes)
    model.limits = replace(model.limits, decoded_tokens=0)
    return model


def draft_gain(model: Generator, batch: list[list[int]], width: int) -> float:
    """How many times as fast drafts make the answers of a model that else drafts nothing, so many at a time, to prompts
    that it knows."""

    def seconds() -> float:
        return sum(run(model, batch[first : first + width], 32)[0] for first in range(0, len(batch), width))

    plain = seconds()
    with patch.object(model, "limits", BatchLimits.of(model.device)):
        return plain / seconds()


@dataclass(frozen=True)
class Limits:
    """What a model needs at least, at what the processor can do at most.

    Attributes:
        prompt_second: seconds of the products that a prompt's token takes.
        weights_second: seconds in which all weights are read that a token is decoded with.
        cached_second: seconds in which the keys and values of one earlier token are read.
    """

    prompt_second: float
    weights_second: float
    cached_second: float

    @classmethod
    def of(cls, folder: str) -> "Limits":
        """Those of a model, as this processor is now."""
        config = AutoConfig.from_pretrained(folder)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        layers = sum(
            weight.numel() for name, weight in model.named_parameters() if weight.dim() > 1 and "layers" in name
        )
        head = model.get_output_embeddings().weight.numel()
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        cached = 2 * config.num_hidden_layers * config.num_key_value_heads * size
        flops, read = bf16_flops(), read_bytes()
        return cls(2 * layers / flops, 2 * (layers + head) / read, 2 * cached / read)

    def decoding(self, width: int) -> float:
        """Seconds of a pass in which so many sequences get a token; what their prompts share is read once."""
        held = SHARED_TOKENS + width * (OWN_TOKENS + NEW_TOKENS / 2)
        return self.weights_second + held * self.cached_second


def rounds(measured: Callable[[], float], number: int = ROUNDS) -> list[float]:
    """A figure, measured so many times."""
    return [measured() for _ in range(number)]


def measure(name: str) -> dict[str, list[float]]:
    """All figures, by name, each as often as it was measured; speeds in tokens per second."""
    folder = resolve(name)
    limits = Limits.of(folder)
    plain = undrafted(folder, prefix_bytes=0)
    run(plain, prompts(4, 0, 200, seed=0), 4)  # warm
    figures: dict[str, list[float]] = {}

    def reading() -> float:
        return 8 * 1000 / run(plain, prompts(8, 0, 1000, seed=1), 1)[0]

    figures["prompt tokens/s"] = read = rounds(reading)
    figures["of the limit of products, %"] = [100 * limits.prompt_second * speed for speed in read]
    reusing = undrafted(folder)
    for width in (1, 16, 32):
        batch = prompts(width, SHARED_TOKENS, OWN_TOKENS, seed=2)
        run(reusing, batch, 1)  # now the prompts are known, and what is left to time is decoding

        def decoding(batch: list[list[int]] = batch) -> float:
            seconds, written = run(reusing, batch, NEW_TOKENS)
            return written / seconds

        figures[f"decoded tokens/s, batch {width}"] = decoded = rounds(decoding)
        least = limits.decoding(width) / width
        figures[f"of the limit of memory, batch {width}, %"] = [100 * least * speed for speed in decoded]

    batch = prompts(32, SHARED_TOKENS, OWN_TOKENS, seed=3)
    with_both, _ = run(reusing, batch, NEW_TOKENS)
    without_reuse, _ = run(plain, batch, NEW_TOKENS)
    batch = prompts(32, SHARED_TOKENS, OWN_TOKENS, seed=4)
    run(reusing, batch[:1], 1)
    without_batching, _ = run(reusing, batch, NEW_TOKENS, batched=False)
    figures["32 calls, seconds"] = [with_both]
    figures["32 calls without prefix reuse, seconds"] = [without_reuse]
    figures["32 calls one by one, seconds"] = [without_batching]
    figures["gain by prefix reuse"] = [without_reuse / with_both]
    figures["gain by batching"] = [without_batching / with_both]
    known = list(itertools.islice(program_prompts(folder), 8))
    run(reusing, known, 1)
    for width in (1, 4):
        figures[f"gain by drafts, batch {width}"] = rounds(lambda width=width: draft_gain(reusing, known, width))  # type: ignore[misc]
    grammar_share(reusing)  # compiles it
    figures["grammars' share of 16 JSON answers, % (aim 3)"] = rounds(lambda: grammar_share(reusing))
    for own in (100, 300, 1000):
        label = f"passes to the first token, {own} new prompt tokens (aim 2)"
        figures[label] = rounds(lambda own=own: passes_to_first_token(reusing, own))  # type: ignore[misc]
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
    table = Table(
        "", "median", "lowest", "highest", "n", title=", ".join(f"{key} {value}" for key, value in machine.items())
    )
    for key, values in figures.items():
        shown = (f"{value:,.1f}" for value in (median(values), min(values), max(values)))
        table.add_row(key, *shown, str(len(values)))
    show({**machine, **figures}, options.json, table)


if __name__ == "__main__":
    main()
