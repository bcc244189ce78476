"""Fine-tuning a language model on conversations, all steps of a program together."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hoptimizer.models.errors import UserError
from hoptimizer.models.generator import load_writer
from hoptimizer.models.store import resolve
from hoptimizer.optimizers.learner import Causal, Conversation, LMRecipe, Row, SequenceToSequence
from hoptimizer.optimizers.lora import adapted, merged
from hoptimizer.optimizers.recipe import device_and_dtype, freeze_embeddings, recipe_batches, save
from hoptimizer.optimizers.training_loop import Masters, Report, Training, remove_checkpoints, training_key

CARD = "finetuned.json"
# Tokens of one forward and backward pass. What it keeps of each for the way back takes 1 MB of a small model's memory.
PASS_TOKENS = 2048


def train_lm(
    conversations: Sequence[Conversation],
    dev: Sequence[Conversation],
    recipe: LMRecipe,
    folder: Path,
    report: Report = lambda _: None,
) -> dict[str, Any]:
    """Fine-tune a language model on the last message of each conversation, and leave it in a folder.

    Called again after the process was killed, it goes on from the last checkpoint, to the same weights; called again
    after it finished, it returns what it found then.

    Args:
        conversations: what to learn from.
        dev: the epoch with the least loss on it is kept.
        recipe: see there.
        folder: a folder of its own.
        report: is told after every update.

    Returns:
        the loss per token on dev before (``start``) and after (``loss``), the ``epoch`` that was kept, and ``n``.

    Raises:
        UserError: there are no conversations, the base can't be loaded or lacks words for them, or the folder holds
            something else.
    """
    for name, some in (("train", conversations), ("dev", dev)):
        if not some:
            raise UserError(f"fine-tuning {recipe.base}: there are no {name} examples; take more questions")
    key = training_key(recipe.model_dump(), list(conversations), list(dev))
    folder.mkdir(parents=True, exist_ok=True)
    card = folder / CARD
    if card.exists():
        found = json.loads(card.read_bytes())
        if found["key"] != key:
            raise UserError(f"{folder}: holds a model of other data or settings; give another folder")
        return found["scores"]
    model, tokenizer = load_writer(resolve(recipe.base))
    device, dtype = device_and_dtype()
    model.to(device)
    trained = adapted(model, recipe.lora, recipe.seed) if recipe.lora else model
    if not recipe.lora:
        freeze_embeddings(model)
    kind = SequenceToSequence if model.config.is_encoder_decoder else Causal
    learner = kind(trained, tokenizer, recipe)
    rows, dev_rows = [learner.row(one) for one in conversations], [learner.row(one) for one in dev]

    @torch.inference_mode()
    def evaluate() -> tuple[float, dict[str, float]]:
        loss = float(torch.cat([learner.losses(part) for part in _parts(dev_rows)]).mean())
        return -loss, {"loss": loss}

    def loss(batch: list[int]) -> Tensor:
        *others, last = _parts([rows[i] for i in batch])
        total = sum(len(rows[i][1]) for i in batch)
        done = 0.0
        for part in others:
            share = learner.losses(part).sum() / total
            share.backward()
            done += share.item()
        return learner.losses(last).sum() / total + done

    plan = recipe.plan(key)
    masters = Masters(trained, plan, dtype)
    _, start = evaluate()
    best = Training(
        masters=masters,
        batches=recipe_batches([_length(row) for row in rows], recipe),
        loss=loss,
        evaluate=evaluate,
        plan=plan,
        folder=folder,
        report=report,
    ).run()
    if recipe.lora:
        model = merged(trained, masters, dtype)
    save(model, tokenizer, folder)
    scores = {"start": start["loss"], **best.facts, "epoch": float(best.epoch), "n": float(len(rows))}
    card.write_text(json.dumps({"key": key, "recipe": recipe.model_dump(), "scores": scores}), encoding="utf-8")
    remove_checkpoints(folder)
    return scores


def _length(row: Row) -> int:
    return sum(map(len, row))


def _parts(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows of like length, as many as one pass may hold."""
    parts: list[list[Row]] = [[]]
    for row in sorted(rows, key=_length):
        if parts[-1] and (len(parts[-1]) + 1) * _length(row) > PASS_TOKENS:
            parts.append([])
        parts[-1].append(row)
    return parts
