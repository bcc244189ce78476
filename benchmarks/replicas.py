"""How routers divide calls among replicas of vLLM, and how much of their prompts the replicas have read before.

    python benchmarks/replicas.py [--vllm PYTHON] [--model NAME] [--vllm-router COMMAND] [--litellm COMMAND]
        [--starts 16] [--calls 5] [--in-flight 8] [--json] [-- ARGS of vLLM]

Two servers are started with ``hop models serve``, and one router after the other before them. Each answers as many
calls of each of several starts of a prompt (instructions and eight questions of atlas with their answers, as a compiled
program has them), in an order by chance, so many in flight. What the replicas tell of themselves says how many calls
each got, and which share of the prompts' tokens it had kept from an earlier one. Every router has starts of its own.
"""

import argparse
import asyncio
import random
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml
from rich.table import Table
from vllm_server import serving, serving_vllm

from hoptimizer.eval.datasets.dataset import load as load_data
from hoptimizer.serving.server import listening
from reporting import benchmark_parser, load, show, user_mistakes

DEMONSTRATIONS = 8
WRITTEN = 8
"""Tokens of an answer."""
KEY = "sk-replicas"
POLICIES = {"vllm-router": ("round_robin", "cache_aware"), "LiteLLM": ("simple-shuffle", "least-busy")}
FIGURES = {
    "calls": "vllm:request_success_total",
    "tokens": "vllm:prefix_cache_queries_total",
    "kept": "vllm:prefix_cache_hits_total",
}


@contextmanager
def routing(router: str, command: str, policy: str, model: str, urls: list[str]) -> Iterator[str]:
    """The address of a router before servers."""
    with listening("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    if router == "vllm-router":
        words = [command, "--worker-urls", *urls, "--policy", policy, "--host", "127.0.0.1", "--port", str(port)]
        with serving(words, f"{url}/health"):
            yield url
        return
    of = [{"model": f"hosted_vllm/{model}", "api_base": f"{one}/v1", "api_key": "none"} for one in urls]
    config: dict[str, Any] = {
        "model_list": [{"model_name": model, "litellm_params": one} for one in of],
        "router_settings": {"routing_strategy": policy},
        "general_settings": {"master_key": KEY},
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "litellm.yaml"
        file.write_text(yaml.safe_dump(config), encoding="utf-8")
        words = [command, "--config", str(file), "--host", "127.0.0.1", "--port", str(port)]
        with serving(words, f"{url}/health/liveliness"):
            yield url


def prompts(name: str, starts: int, calls: int) -> list[list[dict[str, str]]]:
    """The messages of each call, in an order by chance; ``name`` makes the starts this router's own."""
    chance = random.Random(7)
    train = load_data("atlas").split("train")
    made = []
    for number in range(starts):
        some = chance.sample(train, DEMONSTRATIONS + calls)
        lines = [f"{name}, program {number}: answer the question in a few words, as in these examples."]
        lines += [f"Question: {one.question}\nAnswer: {one.answers[0]}" for one in some[:DEMONSTRATIONS]]
        start = {"role": "system", "content": "\n\n".join(lines)}
        made += [[start, {"role": "user", "content": f"Question: {one.question}"}] for one in some[DEMONSTRATIONS:]]
    chance.shuffle(made)
    return made


async def ask(url: str, model: str, messages: list[list[dict[str, str]]], in_flight: int) -> float:
    """Seconds that all calls take."""
    places = asyncio.Semaphore(in_flight)
    async with httpx.AsyncClient(timeout=600, headers={"Authorization": f"Bearer {KEY}"}) as client:

        async def one(asked: list[dict[str, str]]) -> None:
            body = {"model": model, "messages": asked, "max_tokens": WRITTEN, "temperature": 0}
            async with places:
                reply = await client.post(f"{url}/v1/chat/completions", json=body)
                reply.raise_for_status()

        start = time.perf_counter()
        await asyncio.gather(*map(one, messages))
        return time.perf_counter() - start


def told(url: str) -> dict[str, float]:
    """What a replica tells of itself."""
    text = httpx.get(f"{url}/metrics", timeout=30).text
    return {
        name: sum(float(value) for value in re.findall(rf"^{metric}(?:{{.*}})? (\S+)$", text, re.MULTILINE))
        for name, metric in FIGURES.items()
    }


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """What each router did."""
    commands = {"vllm-router": options.vllm_router, "LiteLLM": options.litellm}
    rows = []
    with (
        serving_vllm(options.model, options.vllm, options.extra) as one,
        serving_vllm(options.model, options.vllm, options.extra) as other,
    ):
        urls = [one["url"], other["url"]]
        for router, command in commands.items():
            for policy in POLICIES[router] if command else ():
                messages = prompts(f"{router} {policy}", options.starts, options.calls)
                with routing(router, command, policy, options.model, urls) as url:
                    before = [told(replica) for replica in urls]
                    seconds = asyncio.run(ask(url, options.model, messages, options.in_flight))
                after = [told(replica) for replica in urls]
                each = [{name: b[name] - a[name] for name in FIGURES} for a, b in zip(before, after, strict=True)]
                kept = sum(one["kept"] for one in each) / sum(one["tokens"] for one in each)
                calls = [round(one["calls"]) for one in each]
                rows.append({"router": router, "policy": policy, "calls": calls, "kept": kept, "seconds": seconds})
    return rows


def main() -> None:
    """Measure and print."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--vllm", metavar="PYTHON", help="of an environment with vLLM; by default HOP_VLLM_PYTHON")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a name of the weights store")
    parser.add_argument("--vllm-router", metavar="COMMAND", help="that starts it, where it is to be measured")
    parser.add_argument("--litellm", metavar="COMMAND", help="that starts it, where it is to be measured")
    parser.add_argument("--starts", type=int, default=16, help="of prompts (default: 16)")
    parser.add_argument("--calls", type=int, default=5, help="with each start (default: 5)")
    parser.add_argument("--in-flight", type=int, default=8, help="calls at once (default: 8)")
    parser.add_argument("extra", nargs="*", metavar="ARGS", help="of vLLM, after --")
    options = parser.parse_args()
    with user_mistakes():
        rows = measure(options)
    sizes = {name: getattr(options, name) for name in ("model", "starts", "calls", "in_flight")}
    table = Table(
        "router", "policy", "calls of each replica", "of the prompts kept", "s", title=f"{sizes}, load {load():.1f}"
    )
    for row in rows:
        numbers = " and ".join(map(str, row["calls"]))
        table.add_row(row["router"], row["policy"], numbers, f"{row['kept']:.0%}", f"{row['seconds']:.1f}")
    show({**sizes, "load": load(), "routers": rows}, options.json, table)


if __name__ == "__main__":
    main()
