"""Fine-tuning a small model that fulfils a step (RA-ISF, section 3.2; cross-entropy, equation 1)."""

from collections.abc import Sequence
from pathlib import Path

import torch
from pydantic import Field
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from hoptimizer.eval.metrics import f1
from hoptimizer.models.card import Card
from hoptimizer.models.encoder import PairTokenizer, load_encoder, probabilities
from hoptimizer.models.errors import UserError
from hoptimizer.models.generator import StepGenerator, load_writer, prompt_tokens
from hoptimizer.models.store import resolve
from hoptimizer.models.texts import pair, prompt, written
from hoptimizer.optimizers.calibration import Aim, best_threshold, classification_scores
from hoptimizer.optimizers.examples import Example, Task, check_labels
from hoptimizer.optimizers.lora import adapted, merged
from hoptimizer.optimizers.recipe import (
    Draft,
    Recipe,
    device_and_dtype,
    freeze_embeddings,
    recipe_batches,
)
from hoptimizer.optimizers.training_loop import Masters, Report, Training

# What cross_entropy leaves out: the prompt, and padding.
_IGNORED = -100


class ClassifierRecipe(Recipe):
    """How an encoder learns to choose.

    Attributes:
        shared_tokens: whether the encoder is shown which tokens its two texts share, where its tokenizer has types.
        class_weights: whether every label counts the same in the loss, however rare its examples.
        calibrate: what the threshold of two labels maximizes on dev; ``None`` for one half.
    """

    base: str = Field(default="minilm", min_length=1)
    epochs: int = Field(default=4, ge=1)
    batch: int = Field(default=32, ge=1)
    learning_rate: float = Field(default=3e-4, gt=0)
    max_tokens: int = Field(default=128, ge=8)
    shared_tokens: bool = True
    class_weights: bool = True
    calibrate: Aim | None = "f1"


class GeneratorRecipe(Recipe):
    """How a language model learns to write.

    Attributes:
        max_new_tokens: the most tokens of an output.
        lora: rank of the adapters (Hu et al., 2022) that are trained in place of all weights, on every linear layer
            but the last, and merged in the end; ``None`` trains all weights.
    """

    base: str = Field(default="smollm2-135m-instruct", min_length=1)
    epochs: int = Field(default=3, ge=1)
    batch: int = Field(default=16, ge=1)
    learning_rate: float = Field(default=5e-4, gt=0)
    max_tokens: int = Field(default=512, ge=8)
    max_new_tokens: int = Field(default=128, ge=1)
    lora: int | None = Field(default=16, ge=1)


def train_classifier(
    task: Task,
    examples: Sequence[Example],
    dev: Sequence[Example],
    recipe: ClassifierRecipe,
    folder: Path,
    report: Report = lambda _: None,
) -> Card:
    """Fine-tune an encoder and leave it with its card in a folder.

    Called again after the process was killed, it goes on from the last checkpoint, to the same weights; called again
    after it finished, it returns the card.

    Args:
        task: step, fields and labels.
        examples: what to learn from; every label occurs.
        dev: decides on the epoch and the threshold; every label occurs.
        recipe: see there.
        folder: a folder of its own.
        report: is told after every update.

    Raises:
        UserError: the examples do not fit the task, the base can't be loaded, or the folder holds something else.
    """
    places: dict[object, int] = {label: place for place, label in enumerate(task.labels)}
    for name, some in (("train", examples), ("dev", dev)):
        check_labels(task, some, name)
    draft = Draft(task, recipe, examples, dev, folder)
    if finished := draft.finished():
        return finished
    with torch.random.fork_rng():
        torch.manual_seed(recipe.seed)  # decides on the head
        model, tokenizer = load_encoder(resolve(recipe.base), len(places), trained=False)
    tokenize = PairTokenizer(tokenizer, recipe.max_tokens, recipe.shared_tokens)
    rows = tokenize([pair(example.inputs, task.inputs) for example in examples])
    dev_rows = tokenize([pair(example.inputs, task.inputs) for example in dev])
    gold = [places[example.output] for example in examples]
    dev_gold = [places[example.output] for example in dev]
    device, dtype = device_and_dtype()
    model.to(device)
    model.config.id2label = {place: str(label) for label, place in places.items()}
    model.config.label2id = {str(label): place for label, place in places.items()}
    freeze_embeddings(model)
    weights = _class_weights(gold, len(places)).to(device) if recipe.class_weights else None

    def loss(batch: list[int]) -> Tensor:
        logits = model(**tokenize.pad([rows[i] for i in batch], device)).logits.float()
        right = torch.tensor([gold[i] for i in batch], device=device)
        # Weighted by hand: cross_entropy would divide by the batch's weights, and a rare label alone count as much.
        losses = nn.functional.cross_entropy(logits, right, weight=weights, reduction="none")
        return losses.mean()

    def evaluate() -> tuple[float, dict[str, float | None]]:
        found = probabilities(model, tokenize, dev_rows)
        threshold = None
        chosen = found.argmax(-1)
        if len(places) == 2:
            positive = found[:, 1].tolist()
            threshold = best_threshold(dev_gold, positive, recipe.calibrate) if recipe.calibrate else 0.5
            chosen = (found[:, 1].double() >= threshold).long()
        scores = classification_scores(dev_gold, chosen.tolist(), len(places))
        return scores[recipe.calibrate or "f1"], {**scores, "threshold": threshold}

    plan = recipe.plan(draft.key)
    best = Training(
        masters=Masters(model, plan, dtype),
        batches=recipe_batches([len(row["input_ids"]) for row in rows], recipe),
        loss=loss,
        evaluate=evaluate,
        plan=plan,
        folder=folder,
        report=report,
    ).run()
    scores = dict(best.facts)
    threshold = scores.pop("threshold")
    card = draft.card(
        scores,
        best.epoch,
        kind="classifier",
        labels=task.labels,
        threshold=threshold,
        shared_tokens=recipe.shared_tokens,
    )
    draft.save(model, tokenizer)
    draft.finish(card)
    return card


def train_generator(
    task: Task,
    examples: Sequence[Example],
    dev: Sequence[Example],
    recipe: GeneratorRecipe,
    folder: Path,
    report: Report = lambda _: None,
) -> Card:
    """Fine-tune a causal or sequence-to-sequence model and leave it with its card in a folder.

    It is resumed like :func:`train_classifier`. The epoch with the least loss on dev is kept.

    Args:
        task: step and fields.
        examples: what to learn from.
        dev: decides on the epoch; what the finished model writes for it is scored.
        recipe: see there.
        folder: a folder of its own.
        report: is told after every update.

    Raises:
        UserError: there are no examples, the base can't be loaded, or the folder holds something else.
    """
    for name, some in (("train", examples), ("dev", dev)):
        if not some:
            raise UserError(f"step {task.step!r}: there are no {name} examples; take more questions")
    draft = Draft(task, recipe, examples, dev, folder)
    if finished := draft.finished():
        return finished
    model, tokenizer = load_writer(resolve(recipe.base))
    device, dtype = device_and_dtype()
    model.to(device)
    trained = adapted(model, recipe.lora, recipe.seed) if recipe.lora else model
    if not recipe.lora:
        freeze_embeddings(model)
    seq2seq = model.config.is_encoder_decoder
    rows = [_tokens(tokenizer, task, one, recipe, seq2seq) for one in examples]
    dev_rows = [_tokens(tokenizer, task, one, recipe, seq2seq) for one in dev]

    def loss(batch: list[int]) -> Tensor:
        return trained(**_padded([rows[i] for i in batch], tokenizer, device)).loss.float()

    @torch.inference_mode()
    def evaluate() -> tuple[float, dict[str, float]]:
        total, tokens = 0.0, 0
        for start in range(0, len(dev_rows), recipe.batch):
            batch = _padded(dev_rows[start : start + recipe.batch], tokenizer, device)
            count = int((batch["labels"] != _IGNORED).sum())
            total, tokens = total + trained(**batch).loss.item() * count, tokens + count
        return -total / tokens, {"loss": total / tokens}

    plan = recipe.plan(draft.key)
    best = Training(
        masters=(masters := Masters(trained, plan, dtype)),
        batches=recipe_batches([len(row["input_ids"]) for row in rows], recipe),
        loss=loss,
        evaluate=evaluate,
        plan=plan,
        folder=folder,
        report=report,
    ).run()
    if recipe.lora:
        model = merged(trained, masters, dtype)
    card = draft.card(
        best.facts, best.epoch, kind="generator", listed=task.listed, max_new_tokens=recipe.max_new_tokens
    )
    draft.save(model, tokenizer)
    results = StepGenerator(folder, card).predict([example.inputs for example in dev])
    card = card.model_copy(update={"scores": {**card.scores, **_writing_scores(task, dev, results)}})
    draft.finish(card)
    return card


def _tokens(
    tokenizer: PreTrainedTokenizerBase, task: Task, example: Example, recipe: GeneratorRecipe, seq2seq: bool
) -> dict[str, list[int]]:
    """Input and labels of an example; a causal model's input is the prompt with the output after it."""
    text = prompt(example.inputs, task.inputs, task.output)
    read = prompt_tokens(tokenizer, text, recipe.max_tokens)
    output = written(example.output if isinstance(example.output, list) else str(example.output))
    if seq2seq:
        labels = tokenizer(text_target=output)["input_ids"][: recipe.max_new_tokens]
        return {"input_ids": read, "labels": labels}
    write = tokenizer(f" {output}", add_special_tokens=False)["input_ids"][: recipe.max_new_tokens - 1]
    write = [*write, tokenizer.eos_token_id]
    return {"input_ids": read + write, "labels": [_IGNORED] * len(read) + write}


def _padded(
    rows: Sequence[dict[str, list[int]]], tokenizer: PreTrainedTokenizerBase, device: torch.device
) -> dict[str, Tensor]:
    def fill(key: str, value: int) -> Tensor:
        return nn.utils.rnn.pad_sequence(
            [torch.tensor(row[key]) for row in rows], batch_first=True, padding_value=value
        ).to(device)

    ids = fill("input_ids", -1)
    filler = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    return {
        "input_ids": ids.where(ids >= 0, filler),
        "attention_mask": (ids >= 0).long(),
        "labels": fill("labels", _IGNORED),
    }


def _writing_scores(task: Task, dev: Sequence[Example], results: Sequence[dict[str, object]]) -> dict[str, float]:
    """Token F1 of what was written, how often it is right word by word, and n."""
    pairs = [
        (_joined(result[task.output]), _joined(example.output)) for example, result in zip(dev, results, strict=True)
    ]
    return {
        "f1": sum(f1(given, [gold]) for given, gold in pairs) / len(pairs),
        "exact": sum(given == gold for given, gold in pairs) / len(pairs),
        "n": float(len(pairs)),
    }


def _joined(output: object) -> str:
    return "\n".join(output) if isinstance(output, list) else str(output)


def _class_weights(gold: Sequence[int], labels: int) -> Tensor:
    counts = torch.bincount(torch.tensor(gold), minlength=labels)
    return len(gold) / (labels * counts.float())
