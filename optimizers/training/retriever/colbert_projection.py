"""Training of the projection and the low-rank adapters that turn all-MiniLM-L6-v2 into the embedded ColBERT checkpoint.

    python -m hoptimizer.optimizers.training.retriever.colbert_projection --data DIR --out FILE

The loss is ColBERT's (Khattab and Zaharia, 2020, section 3.3) with several positives: a query against its supporting
passages, the distractors that its question was published with, and the other passages of the step. Added to it is the
divergence from the ranking of the passages by the untrained vectors (Hinton et al., 2015, section 2): a few hundred
questions teach the encoder which parts of a name matter, but without this term it would lose its knowledge of meaning.
"""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import track
from safetensors.torch import save_file
from torch import nn
from transformers import get_linear_schedule_with_warmup

from hoptimizer.common.errors import UserError
from hoptimizer.models.weights.store import resolve
from hoptimizer.optimizers.training.retriever.colbert_data import QuestionWithContext, RetrievalSet, read_sets
from hoptimizer.optimizers.training.retriever.colbert_queries import batch_queries
from hoptimizer.retrieval import Passage
from hoptimizer.retrieval.colbert.checkpoint import BASE, DIM, load_checkpoint, write_checkpoint
from hoptimizer.retrieval.colbert.encoder import ColBERTEncoder, Tokens

# Directions whose share of the variance is smaller are whitened as if it were this, since below it there is only noise.
_FLOOR = 1e-5
_PART = 16


@dataclass(frozen=True)
class RetrieverTrainingConfig:
    """How the projection and the adapters are trained.

    Attributes:
        rank: the rank of the adapters on every linear layer of the encoder.
        steps: the number of updates of the weights.
        questions: the number of questions per data set and step; a data set with more train questions than the median
            gives twice as many.
        distractors: the most distractors per question and step.
        learning_rate: the peak of the learning rate, which rises linearly over the first tenth of the steps and then
            falls linearly to 0.
        distillation: the weight of the divergence from the untrained ranking in the loss.
        sample: the number of passages whose token vectors determine the initial projection.
        max_tokens: the number of tokens at which passages are cut in training; a search uses longer ones.
        seed: determines every random choice.
    """

    rank: int = 8
    steps: int = 120
    questions: int = 2
    distractors: int = 4
    learning_rate: float = 5e-4
    distillation: float = 0.5
    sample: int = 512
    max_tokens: int = 128
    seed: int = 7


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank addition that is trained (LoRA; Hu et al., 2022, section 4.1).

    Args:
        linear: the layer.
        rank: the rank of the addition.
    """

    def __init__(self, linear: nn.Linear, rank: int) -> None:
        super().__init__()
        self.linear = linear
        self.down = nn.Parameter(torch.randn(rank, linear.in_features) / linear.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """The layer's output, in the precision of its input.

        Args:
            hidden: the input, [..., input features].
        """
        low = nn.functional.linear(hidden, self.down.to(hidden.dtype))
        return self.linear(hidden) + nn.functional.linear(low, self.up.to(hidden.dtype))


def train(
    sets: Sequence[RetrievalSet], config: RetrieverTrainingConfig, steps: Callable[[range], Iterable[int]]
) -> dict[str, torch.Tensor]:
    """Train the projection and the adapters on the train questions of all data sets, never on dev questions.

    Args:
        sets: the data sets.
        config: how the projection and the adapters are trained.
        steps: iterates over the steps, and may show the progress.

    Returns:
        the weights by name, in fp16, as :func:`hoptimizer.retrieval.colbert.checkpoint.write_checkpoint` takes them.
    """
    torch.manual_seed(config.seed)
    draw = random.Random(config.seed)
    teacher, encoder = _untrained_encoder(), _untrained_encoder()
    corpus = {p.id: p for one in sets for p in one.corpus}
    contexts = [id for one in sets for asked in one.train for id in asked.context]
    sample = draw.sample(contexts, min(config.sample, len(contexts)))
    _start_projection(teacher, [str(corpus[id]) for id in sample])
    encoder.projection.load_state_dict(teacher.projection.state_dict())
    adapted = _adapt(encoder.model, config.rank)
    weights = [encoder.projection.weight, *(p for layer in adapted.values() for p in (layer.down, layer.up))]
    optimizer = torch.optim.AdamW(weights, lr=config.learning_rate, weight_decay=0.01)
    schedule = get_linear_schedule_with_warmup(optimizer, config.steps // 10, config.steps)
    batches = _batches(sets, config, draw)
    for _ in steps(range(config.steps)):
        loss = _loss(encoder, teacher, next(batches), corpus, config, draw)
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
    hidden = json.loads((base / "config.json").read_bytes())["hidden_size"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "untrained"
        write_checkpoint(base, {"linear.weight": torch.eye(DIM, hidden)}, folder)
        encoder = ColBERTEncoder(load_checkpoint(folder))
    encoder.model.requires_grad_(False)
    encoder.model.set_attn_implementation("eager")  # its backward pass takes half as long as the fused one's on a CPU
    return encoder


@torch.no_grad()
def _start_projection(encoder: ColBERTEncoder, texts: list[str]) -> None:
    """Initialize the projection with the whitening of untrained vectors (Su et al., 2021, section 3).

    After whitening, the directions that all tokens share count no more than those that distinguish them, so that a rare
    name is found by its own tokens. Whitening alone gains more than training from the plain vectors does.
    """
    spread = torch.zeros((), device=encoder.device)
    for start in range(0, len(texts), 32):
        tokens, _ = encoder.tokenize_passages(texts[start : start + 32])
        hidden = encoder.model(tokens.ids, attention_mask=tokens.mask)[0].float()
        hidden = nn.functional.normalize(hidden[tokens.kept], dim=-1)
        spread = spread + hidden.T @ hidden
    values, directions = torch.linalg.eigh(spread / spread.trace())
    whitening = (directions * values.clamp(min=_FLOOR).rsqrt()).T[-encoder.dim :]
    encoder.projection.weight.copy_(whitening / whitening.norm() * encoder.dim**0.5)


def _adapt(model: nn.Module, rank: int) -> dict[str, Adapted]:
    """Put an adapter on every linear layer of the encoder's blocks."""
    adapted = {}
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and name.startswith("encoder."):
            parent, _, child = name.rpartition(".")
            adapted[name] = Adapted(module, rank).to(module.weight.device)
            setattr(model.get_submodule(parent), child, adapted[name])
    return adapted


def _batches(
    sets: Sequence[RetrievalSet], config: RetrieverTrainingConfig, draw: random.Random
) -> Iterator[list[QuestionWithContext]]:
    # The sets are cycled through independently, since in one pool the largest would dominate the others.
    median = sorted(len(one.train) for one in sets)[len(sets) // 2]
    rounds = [(_forever(one.train, draw), config.questions * (2 if len(one.train) > median else 1)) for one in sets]
    while True:
        yield [next(asked) for asked, share in rounds for _ in range(share)]


def _forever(asked: Sequence[QuestionWithContext], draw: random.Random) -> Iterator[QuestionWithContext]:
    while True:
        yield from draw.sample(list(asked), len(asked))


def _loss(
    encoder: ColBERTEncoder,
    teacher: ColBERTEncoder,
    batch: list[QuestionWithContext],
    corpus: dict[str, Passage],
    config: RetrieverTrainingConfig,
    draw: random.Random,
) -> torch.Tensor:
    passages: dict[str, Passage] = {}
    for asked in batch:
        gold = asked.question.passages
        others = [id for id in asked.context if id not in set(gold)]
        others = draw.sample(others, min(config.distractors, len(others)))
        passages |= {id: corpus[id] for id in [*gold, *others]}
    queries = batch_queries(batch, passages, draw)
    tokens, _ = encoder.tokenize_passages([str(passage) for passage in passages.values()])
    tokens = Tokens(*(t[:, : config.max_tokens] for t in (tokens.ids, tokens.mask, tokens.kept)))
    asking, _ = encoder.tokenize_queries([q.text for q in queries])
    scores = _maxsim(encoder, asking, tokens)
    with torch.no_grad():
        untrained = _maxsim(teacher, asking, tokens)
    right = torch.tensor([[id in q.positives for id in passages] for q in queries], device=scores.device)
    ignored = torch.tensor([[id in q.ignored for id in passages] for q in queries], device=scores.device)
    weight = torch.tensor([q.weight for q in queries], device=scores.device)
    # Each positive competes only with the negatives, not with the other positives.
    wrong = scores.masked_fill(right | ignored, -torch.inf).logsumexp(1, keepdim=True)
    losses = ((torch.logaddexp(scores, wrong) - scores) * right).sum(1) / right.sum(1)
    real = torch.tensor([q.asked for q in queries], device=scores.device)
    away = nn.functional.kl_div(
        scores[real].log_softmax(1), untrained[real].log_softmax(1), log_target=True, reduction="batchmean"
    )
    return (losses * weight).sum() / weight.sum() + config.distillation * away


def _maxsim(encoder: ColBERTEncoder, queries: Tokens, passages: Tokens) -> torch.Tensor:
    """The MaxSim scores, [queries, passages]."""
    words = encoder.vectors(queries)[queries.kept]  # [query tokens, dim]
    owner = torch.arange(len(queries.ids), device=words.device).repeat_interleave(queries.kept.sum(1))
    best, places = [], []
    # In parts of similar length, so that little of what is computed is padding.
    for part in passages.mask.sum(1).argsort().split(_PART):
        some = passages.rows(part)
        similar = encoder.vectors(some) @ words.T  # [passages, tokens, query tokens]
        best.append(similar.masked_fill(~some.kept.unsqueeze(-1), -torch.inf).amax(1))
        places.append(part)
    in_order = torch.cat(best)[torch.cat(places).argsort()]  # [passages, query tokens]
    return torch.zeros(len(queries.ids), len(in_order), device=words.device).index_add(0, owner, in_order.T)


def main() -> None:
    """Train on the data sets below ``--data`` and write the weights to ``--out``."""
    parser = argparse.ArgumentParser(description="Train the embedded ColBERT checkpoint's projection and adapters.")
    parser.add_argument("--data", type=Path, required=True, help="folder of hotpotqa, 2wikimultihopqa and musique")
    parser.add_argument("--out", type=Path, required=True, help="the safetensors file to write")
    arguments = parser.parse_args()
    try:
        sets = read_sets(arguments.data)
    except UserError as error:
        sys.exit(str(error))
    trained = train(sets, RetrieverTrainingConfig(), lambda steps: track(steps, "Training"))
    draft = arguments.out.with_suffix(".part")
    save_file(trained, draft)
    draft.replace(arguments.out)


if __name__ == "__main__":
    main()
