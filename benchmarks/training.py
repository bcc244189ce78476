"""How close fine-tuning comes to its limit: the products of its forward and backward passes, at the machine's speed.

    python benchmarks/training.py [--data atlas] [--updates 8] [--only NAME]... [--json]

Each training is that of a compile, on its first 24 questions of train. Of so many updates, after two that are not
counted, the seconds are taken: as they are, and of the forward and backward passes alone. The operations of the same
passes are counted by PyTorch (those of its fused attention would not be among them), and divided by what a large
product of bf16 matrices reaches in the same process. The aim is 60% of that limit.
"""

import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from processes import own_store
from rich.box import MARKDOWN
from rich.table import Table
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from hoptimizer import compile_variant, make_config
from hoptimizer.models.engine.limits import bf16_flops
from hoptimizer.optimizers.training.loop import BestEpoch, Training
from reporting import benchmark_parser, load, show, user_mistakes

AIM = 0.6
WARM = 2
QUESTIONS = 24
COLBERT = {"name": "colbert", "checkpoint": "minilm", "k": 4}
IRCOT = {"name": "ircot", "thoughts": "phrase", "reader": "phrase", "later_k": None, "fill": False}
FINETUNE = {"name": "bootstrap_finetune", "labels": "annotations", "prompt_format": "plain", "epochs": 1, "lora": 0}
SMALL, LARGER = "local/smollm2-135m-instruct", "local/qwen2.5-coder-0.5b-instruct"
# Each with what differs in its config: a compile that trains.
TRAININGS: dict[str, dict[str, Any]] = {
    "efficient_rag's filter and labeler": {
        "program": {"name": "efficient_rag", "reader": "none"},
        "optimizer": {"name": "train_tagger", "epochs": 1},
        "metric": "recall",
    },
    "ra_isf's relevance": {
        "program": {"name": "ra_isf"},
        "optimizer": {"name": "distill", "steps": ["relevance"], "labels": "annotations"},
    },
    "ircot's language model, 135M": {"program": IRCOT, "optimizer": FINETUNE},
    "the same by adapters (LoRA)": {"program": IRCOT, "optimizer": FINETUNE | {"lora": 16}},
    "ircot's language model, 0.5B, by adapters": {
        "program": IRCOT,
        "optimizer": FINETUNE | {"lora": 16},
        "lm": {"default": {"model": LARGER, "max_tokens": 64}},
    },
}


@dataclass(frozen=True)
class Speed:
    """What a training's updates take.

    Attributes:
        training: its name.
        updates: how many were counted.
        seconds: of an update, the median.
        passes: seconds of its forward and backward passes alone, the median.
        operations: floating-point operations of these passes, the mean.
        rate: operations a second that the machine reaches.
    """

    training: str
    updates: int
    seconds: float
    passes: float
    operations: float
    rate: float

    @property
    def share(self) -> float:
        """How much of the limit the updates reach."""
        return self.operations / self.rate / self.seconds

    @property
    def passes_share(self) -> float:
        """How much of it the passes alone reach."""
        return self.operations / self.rate / self.passes


class Measuring:
    """Takes the place of :meth:`Training.run`: measures some updates, then ends the training after them.

    Args:
        name: of the training.
        updates: how many updates count.
    """

    def __init__(self, name: str, updates: int) -> None:
        self._name, self._updates = name, updates
        self.speeds: list[Speed] = []

    def __call__(self, training: Training[Any]) -> BestEpoch:
        batches = training.batches(0)[: WARM + self._updates]
        operations, passes, seconds = list[float](), list[float](), list[float]()
        for batch in batches:
            with FlopCounterMode(display=False) as counter:
                training.loss(batch).backward()
            operations.append(counter.get_total_flops())
        for batch in batches:
            start = time.perf_counter()
            loss: Tensor = training.loss(batch)
            loss.backward()
            passes.append(time.perf_counter() - start)
            training.master_weights.step(training.plan.learning_rate)
            seconds.append(time.perf_counter() - start)
        counted = slice(WARM if len(batches) > WARM else 0, None)
        self.speeds.append(
            Speed(
                self._name,
                len(seconds[counted]),
                statistics.median(seconds[counted]),
                statistics.median(passes[counted]),
                statistics.mean(operations[counted]),
                bf16_flops(),
            )
        )
        value, facts = training.evaluate()
        return BestEpoch(1, value, facts)


def measure(name: str, data: str, updates: int, folder: Path) -> list[Speed]:
    """The speed of each training of one compile."""
    config = {
        "data": {"name": data, "train": QUESTIONS, "dev": 4},
        "retriever": COLBERT,
        "lm": {"default": {"model": SMALL, "max_tokens": 64}},
        "tracking": own_store(folder),
    }
    measuring = Measuring(name, updates)
    with patch.object(Training, "run", lambda training: measuring(training)):
        compile_variant(make_config(config | TRAININGS[name]), score_before=False, report=lambda *_: None)
    return measuring.speeds


def main() -> None:
    """Measure and print."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--data", default="atlas", help="a data set (default: atlas)")
    parser.add_argument("--updates", type=int, default=8, help="(default: 8)")
    parser.add_argument("--only", action="append", choices=TRAININGS, help="some of the trainings")
    options = parser.parse_args()
    speeds = []
    with user_mistakes(), tempfile.TemporaryDirectory() as folder:
        for name in options.only or TRAININGS:
            speeds += measure(name, options.data, options.updates, Path(folder))
    table = Table(
        "training",
        "updates",
        "s an update",
        "GFLOP",
        "of the limit",
        "passes alone",
        box=MARKDOWN,
        title=f"load {load():.1f}",
    )
    for speed in speeds:
        amounts = f"{speed.updates}", f"{speed.seconds:.2f}", f"{speed.operations / 1e9:,.0f}"
        table.add_row(speed.training, *amounts, f"{speed.share:.0%}", f"{speed.passes_share:.0%}")
    figures = [asdict(one) | {"share": one.share, "passes_share": one.passes_share} for one in speeds]
    show({"aim": AIM, "load": load(), "speeds": figures}, options.json, table)


if __name__ == "__main__":
    main()
