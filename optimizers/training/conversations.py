"""Fine-tuning of a language model on conversations of all steps of a program together."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field
from transformers import PreTrainedTokenizerBase

from hoptimizer.common.errors import UserError
from hoptimizer.common.memory import trim_heap
from hoptimizer.common.paths import write_whole
from hoptimizer.models.engine.chat_template import as_words, leading_tokens, render
from hoptimizer.optimizers.training.checkpoints import remove_checkpoints
from hoptimizer.optimizers.training.language_model import (
    TokenizedExample,
    WriterTrainingConfig,
    load_base,
    train_writer,
)
from hoptimizer.optimizers.training.loop import TrainingReport, training_key
from hoptimizer.optimizers.training.run import gpu_memory, save

Conversation = dict[str, list[dict[str, str]]]
"""``{"messages": [{"role": …, "content": …}, …]}``; the last message is the one that the model learns to write."""

CARD = "finetuned.json"


class LMTrainingConfig(WriterTrainingConfig):
    """How a language model is trained on conversations.

    Attributes:
        templated: whether the model's chat template is applied to messages; it must be as when the model is used.
    """

    epochs: int = Field(default=2, ge=1)
    batch: int = Field(default=8, ge=1)
    learning_rate: float = Field(default=2e-4, gt=0)
    max_tokens: int = Field(default=2048, ge=8)
    templated: bool = True


def train_lm(
    conversations: Sequence[Conversation],
    dev: Sequence[Conversation],
    config: LMTrainingConfig,
    folder: Path,
    report: TrainingReport = lambda _: None,
) -> dict[str, Any]:
    """Fine-tune a language model on the last message of each conversation, and save it in a folder.

    Called again after the process was killed, it resumes from the last checkpoint and reaches the same weights. Called
    again after it finished, it returns the same scores.

    Args:
        conversations: the conversations to learn from.
        dev: the conversations that the epoch is chosen on; the one with the least loss is kept.
        config: how the model is trained.
        folder: a folder for this model alone.
        report: is told of the progress after every update.

    Returns:
        the loss per token on dev before (``start``) and after (``loss``) the training, the ``epoch`` that was kept,
        and ``n``, the number of conversations learned from.

    Raises:
        UserError: there are no conversations, the base can't be loaded or lacks words for them, the training
            diverges, a GPU has too little memory, or the folder holds something else.
    """
    for name, some in (("train", conversations), ("dev", dev)):
        if not some:
            raise UserError(f"fine-tuning {config.base}: there are no {name} examples; take more questions")
    key = training_key(config.model_dump(), list(conversations), list(dev))
    folder.mkdir(parents=True, exist_ok=True)
    card = folder / CARD
    if card.exists():
        found = json.loads(card.read_bytes())
        if found["key"] != key:
            raise UserError(f"{folder}: holds a model of other data or settings; give another folder")
        remove_checkpoints(folder)
        return found["scores"]
    trim_heap()
    model, tokenizer = load_base(config)
    kind = _asked_and_answered if model.config.is_encoder_decoder else _continued
    # A model with learned positions, such as GPT-2, has no more of them.
    most = min(config.max_tokens, getattr(model.config, "max_position_embeddings", None) or config.max_tokens)
    limits = config.model_copy(update={"max_tokens": most})
    rows, dev_rows = ([kind(tokenizer, limits, one) for one in some] for some in (conversations, dev))
    smaller = "cut conversations (optimizer.max_tokens) or take a smaller lm.default.model"
    with gpu_memory(config.base, smaller if config.lora else f"train adapters (optimizer.lora=16), or {smaller}"):
        model, best = train_writer(model, tokenizer, rows, dev_rows, config, key, folder, report)
    save(model, tokenizer, folder)
    scores = {**best.facts, "epoch": float(best.epoch), "n": float(len(rows))}
    write_whole(card, json.dumps({"key": key, "config": config.model_dump(), "scores": scores}))
    remove_checkpoints(folder)
    del model
    trim_heap()  # the next step of a compile loads the model again, to generate
    return scores


def _continued(tokenizer: PreTrainedTokenizerBase, config: LMTrainingConfig, one: Conversation) -> TokenizedExample:
    """The tokens that a causal model reads and those that it continues with, together cut at the front."""
    read, write = _tokens(tokenizer, config, one, special=False)
    leading = leading_tokens(tokenizer, config.templated)
    most = config.max_tokens - len(leading)
    write = [*write, tokenizer.eos_token_id][1 - most :]
    return [*leading, *read[len(write) - most :]], write


def _asked_and_answered(
    tokenizer: PreTrainedTokenizerBase, config: LMTrainingConfig, one: Conversation
) -> TokenizedExample:
    """The tokens that a sequence-to-sequence model reads and those that it writes, each cut at the front."""
    read, write = _tokens(tokenizer, config, one, special=True)
    return read[-config.max_tokens :], write[-config.max_tokens :]


def _tokens(
    tokenizer: PreTrainedTokenizerBase, config: LMTrainingConfig, one: Conversation, *, special: bool
) -> TokenizedExample:
    """The tokens of a conversation, with or without the special tokens at the ends of a text.

    Raises:
        UserError: the model's vocabulary lacks a token that is to be written.
    """
    *asked, last = one["messages"]
    read, write = (
        tokenizer(text, add_special_tokens=special)["input_ids"]
        for text in (render(tokenizer, asked, config.templated), as_words(tokenizer, last["content"]))
    )
    if tokenizer.unk_token_id in write:
        raise UserError(
            f"fine-tuning {config.base}: its vocabulary can't write {last['content']!r:.80}; take another model, or "
            "lay the examples out otherwise"
        )
    return read, write
