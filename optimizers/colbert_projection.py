"""Trains what makes all-MiniLM-L6-v2 the embedded ColBERT checkpoint: a projection, and low-rank adapters.

    python -m hoptimizer.optimizers.colbert_projection --data DIR --out FILE

The loss is ColBERT's (Khattab and Zaharia, 2020, section 3.4) with several positives: a question, or the question of
one hop, against its supporting passages, the distractors it was published with and the other passages of the batch.
"""

import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import get_linear_schedule_with_warmup

from hoptimizer.models.store import resolve
from hoptimizer.optimizers.colbert_data import Asked, RetrievalSet
from hoptimizer.retrieval.checkpoint import BASE, METADATA, load_checkpoint, write_checkpoint
from hoptimizer.retrieval.encoder import ColBERTEncoder, Tokens

# Passages of the training data whose token vectors decide where the projection starts.
_SAMPLE = 512


@dataclass(frozen=True)
class Recipe:
    """What is trained, and how.

    Attributes:
        rank: of the adapters on every linear layer of the encoder.
        epochs: times that every question is seen.
        batch: questions a step.
        distractors: a question's own distractors in a step.
        learning_rate: at its peak; it rises over the first tenth of the steps and falls to nothing.
        scale: what a MaxSim score is multiplied by before the softmax.
        max_tokens: where passages are cut in training; searching reads on.
        seed: decides on every random choice.
    """

    rank: int = 8
    epochs: int = 4
    batch: int = 8
    distractors: int = 5
    learning_rate: float = 1e-3
    scale: float = 1.0
    max_tokens: int = 160
    seed: int = 7


@dataclass(frozen=True)
class Query:
    """Something to search with.

    Attributes:
        text: its words.
        positives: ids of the passages it must find.
        ignored: ids of passages that are neither right nor wrong for it.
    """

    text: str
    positives: set[str]
    ignored: set[str]


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank addition that is trained (LoRA; Hu et al., 2022, section 4.1)."""

    def __init__(self, linear: nn.Linear, rank: int) -> None:
        super().__init__()
        self.linear = linear
        self.down = nn.Parameter(torch.randn(rank, linear.in_features) / linear.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """The layer's output, in the input's precision."""
        low = nn.functional.linear(hidden, self.down.to(hidden.dtype))
        return self.linear(hidden) + nn.functional.linear(low, self.up.to(hidden.dtype))


def train(
    sets: Sequence[RetrievalSet], recipe: Recipe, steps: Callable[[int], Iterator[int]]
) -> dict[str, torch.Tensor]:
    """Train on the questions of ``train``, never on those of ``dev``.

    Args:
        sets: the data sets.
        recipe: see there.
        steps: counts the given number of steps from zero, and may show them going by.

    Returns:
        What :func:`hoptimizer.retrieval.checkpoint.write_checkpoint` takes, in fp16.
    """
    torch.manual_seed(recipe.seed)
    draw = random.Random(recipe.seed)
    encoder = _untrained_encoder()
    texts = {p.id: str(p) for one in sets for p in one.corpus}
    asked = [a for one in sets for a in one.train]
    _start_projection(encoder, draw.sample([texts[id] for a in asked for id in a.context], _SAMPLE))
    adapted = _adapt(encoder.model, recipe.rank)
    weights = [encoder.projection.weight, *(p for layer in adapted.values() for p in (layer.down, layer.up))]
    optimizer = torch.optim.AdamW(weights, lr=recipe.learning_rate, weight_decay=0.01)
    total = recipe.epochs * (len(asked) // recipe.batch)
    schedule = get_linear_schedule_with_warmup(optimizer, total // 10, total)
    batches = _batches(asked, recipe, draw)
    for _ in steps(total):
        loss = _loss(encoder, next(batches), texts, recipe, draw)
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    trained = {"linear.weight": encoder.projection.weight}
    for name, layer in adapted.items():
        trained |= {f"{name}.down": layer.down, f"{name}.up": layer.up}
    return {name: weight.detach().half().cpu().contiguous() for name, weight in trained.items()}


def _untrained_encoder() -> ColBERTEncoder:
    base = Path(resolve(BASE))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "untrained"
        hidden = 384  # overwritten by _start_projection
        write_checkpoint(base, {"linear.weight": torch.eye(METADATA["dim"], hidden)}, folder)
        encoder = ColBERTEncoder(load_checkpoint(folder))
    encoder.model.requires_grad_(False)
    return encoder


@torch.no_grad()
def _start_projection(encoder: ColBERTEncoder, texts: list[str]) -> None:
    """Start at the principal directions of untrained token vectors: they keep most of what two vectors share."""
    spread = torch.zeros(())
    for start in range(0, len(texts), 32):
        tokens = encoder.tokenize_passages(texts[start : start + 32])
        hidden = encoder.model(tokens.ids, attention_mask=tokens.mask)[0].float()
        hidden = nn.functional.normalize(hidden[tokens.kept], dim=-1)
        spread = spread.to(hidden.device) + hidden.T @ hidden
    directions = torch.linalg.eigh(spread).eigenvectors.flip(1)  # largest first
    encoder.projection.weight.copy_(directions[:, : encoder.dim].T)


def _adapt(model: nn.Module, rank: int) -> dict[str, Adapted]:
    """Put an adapter on every linear layer of the encoder's blocks."""
    adapted = {}
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and name.startswith("encoder."):
            parent, _, child = name.rpartition(".")
            adapted[name] = Adapted(module, rank).to(module.weight.device)
            setattr(model.get_submodule(parent), child, adapted[name])
    return adapted


def _batches(asked: Sequence[Asked], recipe: Recipe, draw: random.Random) -> Iterator[list[Asked]]:
    while True:
        order = draw.sample(list(asked), len(asked))
        for start in range(0, len(order) - recipe.batch + 1, recipe.batch):
            yield order[start : start + recipe.batch]


def _queries(asked: Asked) -> list[Query]:
    gold = set(asked.question.passages)
    queries = [Query(asked.question.question, gold, set())]
    for hop in asked.question.hops:
        if hop.passage:
            queries.append(Query(hop.question, {hop.passage}, gold - {hop.passage}))
    return queries


def _loss(
    encoder: ColBERTEncoder, batch: list[Asked], texts: dict[str, str], recipe: Recipe, draw: random.Random
) -> torch.Tensor:
    queries = [query for asked in batch for query in _queries(asked)]
    passages: dict[str, None] = {}
    for asked in batch:
        gold = set(asked.question.passages)
        others = [id for id in asked.context if id not in gold]
        passages |= dict.fromkeys(
            [*asked.question.passages, *draw.sample(others, min(recipe.distractors, len(others)))]
        )
    ids = list(passages)
    tokens = encoder.tokenize_passages([texts[id] for id in ids])
    tokens = Tokens(*(t[:, : recipe.max_tokens] for t in (tokens.ids, tokens.mask, tokens.kept)))
    scores = recipe.scale * _maxsim(encoder, encoder.tokenize_queries([q.text for q in queries]), tokens)
    right = torch.tensor([[id in q.positives for id in ids] for q in queries], device=scores.device)
    ignored = torch.tensor([[id in q.ignored for id in ids] for q in queries], device=scores.device)
    # Each positive competes with the negatives alone, not with the other positives.
    wrong = scores.masked_fill(right | ignored, -torch.inf).logsumexp(1, keepdim=True)
    losses = torch.logaddexp(scores, wrong) - scores
    return ((losses * right).sum(1) / right.sum(1)).mean()


def _maxsim(encoder: ColBERTEncoder, queries: Tokens, passages: Tokens) -> torch.Tensor:
    """Scores [queries, passages]."""
    asked = encoder.vectors(queries)
    rows = torch.arange(len(queries.ids), device=asked.device).unsqueeze(1).expand_as(queries.kept)[queries.kept]
    words = asked[queries.kept]  # [query tokens, dim]
    best = torch.empty(len(words), len(passages.ids), device=asked.device)
    parts, places = [], []
    # In parts of like length, so that little of what is computed is padding.
    for part in passages.mask.sum(1).argsort().split(16):
        some = passages.rows(part)
        similar = encoder.vectors(some) @ words.T  # [passages, tokens, query tokens]
        parts.append(similar.masked_fill(~some.kept.unsqueeze(-1), -torch.inf).amax(1))
        places.append(part)
    best = torch.cat(parts)[torch.cat(places).argsort()]  # [passages, query tokens]
    return torch.zeros(len(queries.ids), len(best), device=asked.device).index_add(0, rows, best.T)
