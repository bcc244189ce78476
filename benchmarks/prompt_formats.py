"""What the prompt format and the demonstrations each contribute to a compiled program, on atlas dev.

    python benchmarks/prompt_formats.py [--program rag] [--json] [KEY=VALUE ...]

A compile of the demo changes both. Here each of the four combinations is scored on its own. The arguments change the
demo's config, such as `lm=local/qwen2.5-coder-0.5b-instruct data.dev=24`.
"""

import random
import sys
from typing import Any

from rich.table import Table

from hoptimizer import Workbench
from hoptimizer.demo import demo_config
from hoptimizer.eval import mean
from hoptimizer.eval.runner import evaluate
from hoptimizer.models.settings import PromptFormat
from hoptimizer.optimizers.labels.demonstrations import annotate
from hoptimizer.optimizers.prompt.few_shot import labeled
from hoptimizer.optimizers.prompt.prompt_format import PROMPT_FORMATS
from hoptimizer.programs import Program
from reporting import demo_parser, percent, show, user_mistakes

DEMOS = (0, 4)


def measure(program: str, overrides: list[str]) -> list[dict[str, Any]]:
    """F1 of each prompt format with and without labeled demonstrations, with its 95% interval."""
    bench = Workbench(demo_config(program, ["data.dev=60", *overrides]))
    rows = []
    with bench.active():
        for prompt_format in PROMPT_FORMATS:
            for demos in DEMOS:
                scores = evaluate(_program(bench, prompt_format, demos), bench.data.split("dev")).scores("f1")
                estimate = mean(scores, bench.config.seed)
                rows.append(
                    {
                        "program": program,
                        "lm": bench.config.lm["default"].model,
                        "prompt_format": prompt_format,
                        "demos": demos,
                        "n": estimate.n,
                        "f1": estimate.mean,
                        "interval": [estimate.low, estimate.high],
                    }
                )
                sys.stderr.write(f"{program}, {prompt_format}, {demos} demonstrations: done\n")
    return rows


def _program(bench: Workbench, prompt_format: PromptFormat, demos: int) -> Program:
    program = bench.program()
    program.prompt_format = prompt_format
    if not demos:
        return program
    seed = bench.config.seed
    trainset = annotate(bench.data.split("train"), bench.data.corpus, program.retriever, distractors=1, seed=seed)
    random.Random(seed).shuffle(trainset)
    return labeled(program, trainset, demos)


def main() -> None:
    """Print the table."""
    options = demo_parser(__doc__).parse_args()
    with user_mistakes():
        rows = measure(options.program, options.overrides)
    table = Table("prompt format", "demonstrations", "F1 [95% interval]", "n", box=None, header_style="bold")
    for row in rows:
        table.add_row(row["prompt_format"], str(row["demos"]), percent(row["f1"], *row["interval"]), str(row["n"]))
    show({"prompt_formats": rows}, options.json, table)


if __name__ == "__main__":
    main()
