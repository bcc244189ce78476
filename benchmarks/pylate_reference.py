"""Checkpoints in PyLate's layout, read by PyLate and by us: the largest differences of their vectors and scores.

    python benchmarks/pylate_reference.py --pylate PYTHON [--texts 60] [--json]

PyLate wants other versions of transformers and torch than we do, so that it runs in an environment of its own
(``python3 -m venv pylate; pylate/bin/pip install pylate``), whose Python is given. It makes checkpoints with random
weights, saves them, and encodes questions and passages of ``atlas`` and some odd texts; then we read what it saved.
Both compute in fp32 on the CPU; our passages are rounded to fp16, as in an index.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table

from hoptimizer.common.errors import UserError
from hoptimizer.eval.datasets.dataset import load as load_data
from hoptimizer.models.weights.store import resolve
from hoptimizer.retrieval.colbert import pylate
from hoptimizer.retrieval.colbert.checkpoint import find_checkpoint
from hoptimizer.retrieval.colbert.retriever import load_encoder
from reporting import benchmark_parser, show, user_mistakes

WORKER = Path(__file__).with_name("pylate_worker.py")
ODD = ["?!", "  Spaces  around\nand within ", "Ünïcödé and 東京", "THE OWL, THE OWL", "a", "the owl of the river " * 60]


def reference(python: str, folder: Path, texts: dict[str, list[str]]) -> dict[str, Any]:
    """What PyLate says after it has saved its checkpoints and vectors in a folder."""
    (folder / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
    command = [python, str(WORKER), str(folder), str(resolve("all-minilm-l6-v2"))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(f"--pylate: {python} can't be run ({error.strerror}); give the Python of PyLate's") from error
    if done.returncode:
        raise UserError(f"--pylate: {python} failed: {' '.join(done.stderr.split())[-300:]}")
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def compared(folder: Path, texts: dict[str, list[str]]) -> dict[str, Any]:
    """How far our vectors and scores by a checkpoint are from PyLate's at most."""
    expected = {name: torch.from_numpy(vectors) for name, vectors in np.load(folder / "vectors.npz").items()}
    ours = load_encoder(find_checkpoint(str(folder)))
    found = {f"queries-{place}": vectors for place, vectors in enumerate(ours.queries(texts["queries"]))}
    for places, batch in ours.passages(texts["documents"]):
        found |= {f"documents-{place}": vectors.float() for place, vectors in zip(places, batch, strict=True)}
    unlike = sorted(name for name in expected if found[name].shape != expected[name].shape)
    if unlike:
        return {"unlike": unlike}
    away = {
        name: (found[name] - vectors).abs().max().item() if len(vectors) else 0.0 for name, vectors in expected.items()
    }
    scores = scored(found, texts) - scored(expected, texts)
    return {what: max(far for name, far in away.items() if name.startswith(what)) for what in texts} | {
        "scores": scores.abs().max().item(),
        "best": float((scored(found, texts).argmax(1) == scored(expected, texts).argmax(1)).float().mean()),
        "unlike": [],
    }


def scored(vectors: dict[str, torch.Tensor], texts: dict[str, list[str]]) -> torch.Tensor:
    """MaxSim of each query with each document that has a vector: ``(queries, documents)``."""
    documents = [vectors[f"documents-{place}"] for place in range(len(texts["documents"]))]
    queries = [vectors[f"queries-{place}"] for place in range(len(texts["queries"]))]
    return torch.tensor([[float((q @ d.T).amax(1).sum()) for d in documents if len(d)] for q in queries])


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """PyLate's versions, and the differences by the checkpoint's name."""
    data = load_data("atlas")
    texts = {
        "queries": [one.question for one in data.split("dev")[: options.texts]] + ODD,
        "documents": [str(passage) for passage in data.corpus.passages[: options.texts]] + ODD,
    }
    pylate.device_and_dtype = lambda: (torch.device("cpu"), torch.float32)
    with tempfile.TemporaryDirectory() as name:
        said = reference(options.pylate, Path(name), texts)
        return {
            "versions": said["versions"],
            "cases": {one: compared(Path(name) / one, texts) for one in said["cases"]},
        }


def main() -> None:
    """Measure and print."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--pylate", required=True, metavar="PYTHON", help="of an environment that has PyLate")
    parser.add_argument("--texts", type=int, default=60, help="questions and passages of atlas, each (default: 60)")
    options = parser.parse_args()
    with user_mistakes():
        figures = measured(options)
    table = Table("checkpoint", "queries", "passages (fp16)", "MaxSim", "same best passage", "of other shape")
    for name, case in figures["cases"].items():
        far = [f"{case[what]:.1e}" if what in case else "-" for what in ("queries", "documents", "scores")]
        table.add_row(name, *far, f"{case.get('best', 0):.0%}", ", ".join(case["unlike"]) or "none")
    show(figures, options.json, table, " ".join(f"{one} {number}" for one, number in figures["versions"].items()))


if __name__ == "__main__":
    main()
