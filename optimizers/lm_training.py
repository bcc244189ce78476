"""Fine-tuning a language model on conversations, all steps of a program together."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from hoptimizer.models.conversation import render
from hoptimizer.models.errors import UserError
from hoptimizer.models.generator import load_writer
from hoptimizer.models.store import resolve
from hoptimizer.optimizers.lora import adapted, merged
from hoptimizer.optimizers.recipe import (
    Recipe,
    device_and_dtype,
    freeze_embeddings,
    recipe_batches,
    save,
)
from hoptimizer.optimizers.training_loop import Masters, Report, Training, remove_checkpoints, training_key

CARD = "finetuned.json"
# Tokens of one forward and backward pass. What it keeps of each for the way back takes 1 MB of a small model's memory.
PASS_TOKENS = 4096
_Row = tuple[list[int], int]  # token ids, and how many of the last ones are to be written

Conversation = dict[str, list[dict[str, str]]]
"""``{"messages": [{"role": …, "content": …}, …]}``; the last message is the model's."""


class LMRecipe(Recipe):
    """How a language model is fine-tuned.

    Attributes:
        templated: whether messages go through the model's chat template, as they will when it is asked.
        lora: rank of the adapters (Hu et al., 2022) that are trained in place of all weights, on every linear layer but
            the last, and merged in the end; ``None`` trains all weights but the embeddings.
    """

    epochs: int = Field(default=2, ge=1)
    batch: int = Field(default=8, ge=1)
    learning_rate: float = Field(default=1e-4, gt=0)
    max_tokens: int = Field(default=2048, ge=8)
    templated: bool = True
    lora: int | None = Field(default=None, ge=1)


def train_lm(
    conversations: Sequence[Conversation],
    dev: Sequence[Conversation],
    recipe: LMRecipe,
    folder: Path,
    report: Report = lambda _: None,
) -> dict[str, Any]:
    """Fine-tune a causal language model on the last message of each conversation, and leave it in a folder.

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
        UserError: there are no conversations, the base can't be loaded, or the folder holds something else.
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
    if model.config.is_encoder_decoder:
        raise UserError(f"fine-tuning {recipe.base}: it is no causal language model")
    device, dtype = device_and_dtype()
    model.to(device)
    trained = adapted(model, recipe.lora, recipe.seed) if recipe.lora else model
    if not recipe.lora:
        freeze_embeddings(model)
    rows = [_tokens(tokenizer, one, recipe) for one in conversations]
    dev_rows = [_tokens(tokenizer, one, recipe) for one in dev]

    def losses(batch: Sequence[_Row]) -> Tensor:
        """Of every token that the model is to write."""
        ids, mask, written = _padded(batch, tokenizer, device)
        # The logits of 50,000 words are most of the memory: only those of the last message are made.
        logits = trained(input_ids=ids, attention_mask=mask, logits_to_keep=written.shape[1] + 1).logits[:, :-1]
        return nn.functional.cross_entropy(
            logits[written].float(), ids[:, -written.shape[1] :][written], reduction="none"
        )

    @torch.inference_mode()
    def evaluate() -> tuple[float, dict[str, float]]:
        loss = float(torch.cat([losses(part) for part in _parts(dev_rows)]).mean())
        return -loss, {"loss": loss}

    def loss(batch: list[int]) -> Tensor:
        *others, last = _parts([rows[i] for i in batch])
        total = sum(rows[i][1] for i in batch)
        done = 0.0
        for part in others:
            share = losses(part).sum() / total
            share.backward()
            done += share.item()
        return losses(last).sum() / total + done

    plan = recipe.plan(key)
    masters = Masters(trained, plan, dtype)
    _, start = evaluate()
    best = Training(
        masters=masters,
        batches=recipe_batches([len(row) for row, _ in rows], recipe),
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


def _tokens(tokenizer: PreTrainedTokenizerBase, one: Conversation, recipe: LMRecipe) -> _Row:
    """A conversation's tokens, cut at the front where they are too many, and how many of the last ones it writes."""
    *asked, last = one["messages"]
    prompt = tokenizer(render(tokenizer, asked, recipe.templated), add_special_tokens=False)["input_ids"]
    write = [*tokenizer(last["content"], add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    return [*prompt, *write][-recipe.max_tokens :], min(len(write), recipe.max_tokens - 1)


def _parts(rows: Sequence[_Row]) -> list[list[_Row]]:
    """Rows of like length, as many as one pass may hold."""
    parts: list[list[_Row]] = [[]]
    for row in sorted(rows, key=lambda row: len(row[0])):
        if parts[-1] and (len(parts[-1]) + 1) * len(row[0]) > PASS_TOKENS:
            parts.append([])
        parts[-1].append(row)
    return parts


def _padded(
    rows: Sequence[_Row], tokenizer: PreTrainedTokenizerBase, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids and which of them are real, both ``(rows, tokens)`` and filled at the front; and which of the last ones
    are to be written."""
    width, most = max(len(row) for row, _ in rows), max(count for _, count in rows)
    filler = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    ids = torch.tensor([[filler] * (width - len(row)) + row for row, _ in rows], device=device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row, _ in rows], device=device)
    written = torch.tensor([[False] * (most - count) + [True] * count for _, count in rows], device=device)
    return ids, mask, written
