"""Fine-tuning of EfficientRAG's labeler and filter (Zhuang et al., 2024, section 3.3)."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from hoptimizer.common.errors import UserError
from hoptimizer.models.engine.loading import device_and_dtype
from hoptimizer.models.engine.packed import packed_copy
from hoptimizer.models.small.card import TERMINATE, Card
from hoptimizer.models.small.encoder import AlignedPair, PairTokenizer
from hoptimizer.models.small.fields import pair
from hoptimizer.models.small.tagger import TokenTagger, load_tagger, tag, tag_texts
from hoptimizer.models.weights.store import resolve
from hoptimizer.optimizers.labels.examples import Task, TrainingExample, check_labels
from hoptimizer.optimizers.training.calibration import classification_scores
from hoptimizer.optimizers.training.loop import TrainingReport
from hoptimizer.optimizers.training.run import (
    TrainingConfig,
    TrainingFolder,
    freeze_embeddings,
    gpu_memory,
    save,
    training,
)

_IGNORED = -100
# What an encoder is tried out on. Its attention when it is served may round otherwise than the one that it trains with.
_PROBE = ("Where was Marie Curie born?", "Marie Curie: Marie Curie was born in Warsaw.")
_PROBE_TOKENS = 32
_TOLERANCE = 1e-3


class TaggerTrainingConfig(TrainingConfig):
    """How an encoder is trained to copy words, and to choose a tag.

    Attributes:
        start: a digest of the card of the trained model that the training starts from; ``None`` for the base itself.
        shared_tokens: whether token types tell the encoder which tokens its two texts share, if its tokenizer has them.
        token_threshold: the least probability at which a word is copied.
    """

    base: str = Field(default="minilm", min_length=1)
    epochs: int = Field(default=4, ge=1)
    batch: int = Field(default=32, ge=1)
    learning_rate: float = Field(default=3e-4, gt=0)
    max_tokens: int = Field(default=128, ge=8)
    patience: int | None = Field(default=2, ge=1)
    start: str | None = None
    shared_tokens: bool = True
    token_threshold: float = Field(default=0.5, ge=0, le=1)


DevScore = Callable[[TokenTagger, PairTokenizer], tuple[float, dict[str, Any]]]
"""A function that scores a model on dev: it gives the value to maximize, and facts for the card."""


def train_tagger(
    task: Task,
    examples: Sequence[TrainingExample],
    dev: Sequence[TrainingExample],
    config: TaggerTrainingConfig,
    folder: Path,
    report: TrainingReport = lambda _: None,
    dev_score: DevScore | None = None,
    start: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Card:
    """Fine-tune a token tagger and save it with its card in a folder.

    Only passages whose right tag keeps them contribute to the token loss. Called again after the process was killed, it
    resumes from the last checkpoint and reaches the same weights. Called again after it finished, it returns the card.

    Args:
        task: the labeler's task, which has tags, or the filter's, which has none.
        examples: the examples to learn from; every tag occurs.
        dev: the examples on which token F1 and tag F1 are computed after each epoch.
        config: how the tagger is trained.
        folder: a folder for this model alone.
        report: is told of the progress after every update.
        dev_score: gives the value that the epoch is chosen by, by default the mean of token F1 and tag F1; its facts
            under ``card`` become fields of the card.
        start: the folder of a trained tagger to start from; by default the training starts from the config's base.
        say: is told, before the first update, how many examples are too long and are cut.

    Returns:
        the card.

    Raises:
        UserError: the examples lack a tag, the base can't be loaded, the training diverges, a GPU has too
            little memory, or the folder holds something else.
    """
    if task.labels:
        check_labels(task, examples, "train")
    training_folder = TrainingFolder(task, config, examples, dev, folder)
    if finished := training_folder.finished():
        return finished
    device, dtype = device_and_dtype()
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)  # determines the heads' initial weights
        source = str(start) if start else resolve(config.base)
        model, tokenizer = load_tagger(source, len(task.labels), trained=False, attention="eager")
    tokenize = PairTokenizer(tokenizer, config.max_tokens, config.shared_tokens)
    model.to(device)
    freeze_embeddings(model.encoder)
    learn, judge = _Data(task, examples, tokenize), _Data(task, dev, tokenize)
    if learn.cut:
        say(f"{learn.cut} of {len(examples)} examples are longer than {config.max_tokens} tokens; their ends are cut")
    tag_weights = _weights(learn.tags, len(task.labels)).to(device) if task.labels else None
    token_weights = _weights([label for row in learn.tokens for label in row if label != _IGNORED], 2).to(device)

    def loss(batch: list[int]) -> Tensor:
        token_logits, tag_logits = model(**tokenize.pad([learn.rows[i] for i in batch], device))
        # The right tag, not the predicted one, decides whether a passage has token labels: a passage that is not kept
        # has no useful words to learn.
        right = learn.padded(batch, token_logits.shape[1]).to(device)
        total = nn.functional.cross_entropy(
            token_logits.float().flatten(0, 1), right.flatten(), weight=token_weights, reduction="sum"
        ) / max(1.0, float(token_weights[right[right != _IGNORED]].sum()))
        if tag_logits is None:
            return total
        tags = torch.tensor([learn.tags[i] for i in batch], device=device)
        return total + nn.functional.cross_entropy(tag_logits.float(), tags, weight=tag_weights)

    def evaluate() -> tuple[float, dict[str, Any]]:
        served = packed_copy(model)  # thresholds are chosen by the numbers that they are compared with
        scores = judge.scores(served, tokenize, config.token_threshold) if dev else {}
        if dev_score is None:
            judged = [scores[name] for name in ("token_f1", "tag_f1") if name in scores]
            return sum(judged) / len(judged), scores
        value, facts = dev_score(served, tokenize)
        return value, scores | facts

    lengths = [len(row["input_ids"]) for row in learn.rows]
    with gpu_memory(config.base, "take a smaller optimizer.batch or optimizer.base"):
        best = training(
            config, model, dtype, lengths, loss, evaluate, key=training_folder.key, folder=folder, report=report
        ).run()
    scores = dict(best.facts)
    card = training_folder.card(
        {"cut": float(learn.cut)},
        best.epoch,
        kind="labeler" if task.labels else "filter",
        labels=task.labels,
        shared_tokens=config.shared_tokens,
        token_threshold=config.token_threshold,
        **scores.pop("card", {}),
    )
    card = Card.model_validate(card.model_dump() | {"scores": {**scores, **card.scores}})
    training_folder.save(model, tokenizer)
    training_folder.finish(card)
    return card


def check_encoder(name: str) -> None:
    """Make sure, before a training is paid for, that what it makes of an encoder can be loaded and asked.

    The encoder is loaded as a training loads it, saved untrained, and loaded and asked as a program does it.

    Args:
        name: a name of the weights store, a folder or a Hub id.

    Raises:
        UserError: it can't be loaded, saved, loaded again or asked, or it then says something else.
    """
    with torch.random.fork_rng():
        model, tokenizer = load_tagger(resolve(name), tags=2, trained=False, attention="eager")
    with TemporaryDirectory() as folder:
        save(model, tokenizer, Path(folder))
        served, its_tokenizer = load_tagger(folder, tags=2, trained=True)
    try:
        [(before, said)], [(after, says)] = (
            tag_texts(one, PairTokenizer(its, _PROBE_TOKENS, shared=True), [_PROBE])
            for one, its in ((model, tokenizer), (served, its_tokenizer))
        )
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise UserError(f"{name}: can't label tokens: {reason}; take an encoder such as BERT or DeBERTa") from error
    alike = before == after and np.allclose([*said.tags, *said.tokens], [*says.tags, *says.tokens], atol=_TOLERANCE)
    if not alike:
        raise UserError(f"{name}: labels otherwise once it was saved and loaded; take another encoder")


class _Data:
    """Examples as a tagger reads them: rows, the right tag of each, and the right label of each token."""

    def __init__(self, task: Task, examples: Sequence[TrainingExample], tokenize: PairTokenizer) -> None:
        aligned = tokenize.aligned([pair(example.inputs, task.inputs) for example in examples])
        self.pairs = aligned
        self.rows = [one.row for one in aligned]
        self.cut = sum(one.cut for one in aligned)
        self.tags = [task.labels.index(example.output) for example in examples] if task.labels else []
        self.labels = task.labels
        sides = (1,) if task.labels else (0, 1)
        self.tokens = [_token_labels(example, one, sides) for example, one in zip(examples, aligned, strict=True)]

    def padded(self, batch: Sequence[int], width: int) -> Tensor:
        """The token labels of a batch, [rows, tokens]."""
        right = torch.full((len(batch), width), _IGNORED)
        for row, place in enumerate(batch):
            right[row, : len(self.tokens[place])] = torch.tensor(self.tokens[place])
        return right

    def scores(self, model: TokenTagger, tokenize: PairTokenizer, threshold: float) -> dict[str, float]:
        """Token F1; n, the number of examples; and, for a labeler, the F1 of keeping a passage."""
        tagged = tag(model, tokenize, self.pairs)
        gold = [label for row in self.tokens for label in row if label != _IGNORED]
        chosen = [
            int(value >= threshold)
            for row, one in zip(self.tokens, tagged, strict=True)
            for label, value in zip(row, one.tokens, strict=True)
            if label != _IGNORED
        ]
        scores = {"token_f1": classification_scores(gold, chosen, 2)["f1"], "n": float(len(self.rows))}
        if self.labels:
            none = self.labels.index(TERMINATE)
            kept = [int(right != none) for right in self.tags]
            said = [int(max(range(len(one.tags)), key=one.tags.__getitem__) != none) for one in tagged]
            scores |= {"tag_f1": classification_scores(kept, said, 2)["f1"]}
        return scores


def _token_labels(example: TrainingExample, aligned: AlignedPair, sides: tuple[int, ...]) -> list[int]:
    """A label by token: 1 where its word is copied, 0 elsewhere in the same texts, and ``_IGNORED`` in other texts.

    All tokens are ignored where the example copies no word.
    """
    labels = []
    for place in aligned.places:
        if place is None or place[0] not in sides or not example.copied:
            labels.append(_IGNORED)
            continue
        side, (start, end) = place
        labels.append(int(any(side == of and start < to and end > at for of, (at, to) in example.copied)))
    return labels


def _weights(labels: Sequence[int], kinds: int) -> Tensor:
    """Weights of the labels in the loss: the square roots of those with which all labels would count the same."""
    # With the full weights a model would copy ten words for each right one.
    counts = torch.bincount(torch.tensor(labels, dtype=torch.long), minlength=kinds).clamp(min=1)
    return torch.tensor([math.sqrt(len(labels) / (kinds * int(count))) for count in counts], dtype=torch.float32)
