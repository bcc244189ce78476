"""PyLate in an environment of its own, as ``pylate_reference.py`` starts it: ``pylate_worker.py FOLDER TOKENIZER``.

Reads ``texts.json`` of the folder (``queries`` and ``documents``), makes checkpoints with random weights, has PyLate
save each in a folder of its name and encode the texts: ``vectors.npz`` beside its files. Nothing of ours is imported.
"""

import argparse
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoTokenizer, BertConfig, BertModel, ModernBertConfig, ModernBertModel

SIZES = {"hidden_size": 384, "num_attention_heads": 6, "num_hidden_layers": 3, "intermediate_size": 768}
SMALL = {"query_length": 32, "document_length": 64}
# The checkpoints' names, their encoders, the dimensions of their projections, and what the layout says beside these.
CASES: dict[str, tuple[str, list[int], dict[str, Any]]] = {
    "BERT, 96 dimensions": ("bert", [96], {**SMALL, "query_prefix": "[unused0]", "document_prefix": "[unused1]"}),
    "BERT, own words skipped, no expansion": (
        "bert",
        [96],
        {**SMALL, "do_query_expansion": False, "skiplist_words": ["the", "of", "neverseen"]},
    ),
    "BERT, no prefixes": ("bert", [96], {**SMALL, "query_prefix": "", "document_prefix": ""}),
    "ModernBERT, 128 dimensions": ("modernbert", [128], {**SMALL}),
    "ModernBERT, attends to expansion": ("modernbert", [128], {**SMALL, "attend_to_expansion_tokens": True}),
    "ModernBERT, three projections": ("modernbert", [768, 768, 128], {**SMALL}),
    "ModernBERT, default lengths": ("modernbert", [128], {"skiplist_words": []}),
}


def encoder(folder: Path, kind: str, tokenizer: Any) -> Path:  # noqa: ANN401 - transformers' class
    """An encoder of transformers with random weights, saved in a folder."""
    special = {"pad_token_id": tokenizer.pad_token_id, "vocab_size": len(tokenizer)}
    if kind == "bert":
        model: Any = BertModel(BertConfig(**SIZES, **special))
    else:
        ends = {"cls_token_id": tokenizer.cls_token_id, "sep_token_id": tokenizer.sep_token_id}
        starts = {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
        model = ModernBertModel(ModernBertConfig(**SIZES, **special, **ends, **starts))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def projections(dims: list[int]) -> list[nn.Module]:
    """One layer, or several with what the layout can say of them."""
    from pylate import models  # type: ignore[import-not-found]  # there alone

    if len(dims) == 1:
        return [models.Dense(SIZES["hidden_size"], dims[0], bias=False, activation_function=nn.Identity())]
    activations = [nn.GELU(), nn.SiLU(), nn.Identity()]
    sizes = [SIZES["hidden_size"], *dims]
    return [
        models.Dense(size, dim, bias=dim == size, activation_function=activation, use_residual=True)
        for size, dim, activation in zip(sizes, dims, activations, strict=False)
    ]


def main() -> None:
    """Make the checkpoints and their vectors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("tokenizer")
    options = parser.parse_args()
    from pylate import models
    from sentence_transformers.models import Transformer  # type: ignore[import-not-found]

    folder, tokenizer = options.folder, options.tokenizer
    texts = json.loads((folder / "texts.json").read_text(encoding="utf-8"))
    for number, (name, (kind, dims, settings)) in enumerate(CASES.items()):
        torch.manual_seed(number)
        base = encoder(folder / "encoders" / name, kind, AutoTokenizer.from_pretrained(tokenizer))
        model = models.ColBERT(modules=[Transformer(str(base)), *projections(dims)], device="cpu", **settings)
        model.save_pretrained(str(folder / name))
        model = models.ColBERT(str(folder / name), device="cpu")  # as those who take a published one
        found = {
            f"{what}-{place}": vectors
            for what in ("queries", "documents")
            for place, vectors in enumerate(
                model.encode(texts[what], is_query=what == "queries", show_progress_bar=False)
            )
        }
        np.savez(folder / name / "vectors.npz", **found)
    packages = ("pylate", "sentence-transformers", "transformers", "torch")
    sys.stdout.write(json.dumps({"cases": list(CASES), "versions": {one: version(one) for one in packages}}) + "\n")


if __name__ == "__main__":
    main()
