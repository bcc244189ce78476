"""How causal and sequence-to-sequence language models learn from conversations."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from hoptimizer.models.conversation import render
from hoptimizer.models.errors import UserError
from hoptimizer.optimizers.recipe import Recipe

Conversation = dict[str, list[dict[str, str]]]
"""``{"messages": [{"role": …, "content": …}, …]}``; the last message is the model's."""

Row = tuple[list[int], list[int]]
"""The tokens that are read, and those that are written."""

# What transformers takes for no label.
_NONE = -100


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


class Learner(ABC):
    """How a kind of model reads and writes.

    Args:
        model: in training.
        tokenizer: its tokenizer.
        recipe: see there.
    """

    special_tokens: ClassVar[bool]
    """Whether texts begin and end with the tokens that the tokenizer puts there."""

    def __init__(self, model: nn.Module, tokenizer: PreTrainedTokenizerBase, recipe: LMRecipe) -> None:
        self._model, self._tokenizer, self._recipe = model, tokenizer, recipe
        self._device = next(model.parameters()).device
        self._filler = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id

    def row(self, one: Conversation) -> Row:
        """A conversation's tokens, cut at the front where they are too many.

        Raises:
            UserError: the vocabulary lacks a part of what is to be written.
        """
        *asked, last = one["messages"]
        write = self._tokens(last["content"])
        if self._tokenizer.unk_token_id in write:
            raise UserError(
                f"fine-tuning {self._recipe.base}: its vocabulary can't write {last['content']!r:.80}; take another "
                "model, or lay the examples out otherwise"
            )
        return self._tokens(render(self._tokenizer, asked, self._recipe.templated)), write

    def _tokens(self, text: str) -> list[int]:
        return self._tokenizer(text, add_special_tokens=self.special_tokens)["input_ids"]

    @abstractmethod
    def losses(self, batch: Sequence[Row]) -> Tensor:
        """Of every token that the model is to write."""


class Causal(Learner):
    """Reads and writes one text."""

    special_tokens = False

    def row(self, one: Conversation) -> Row:
        read, write = super().row(one)
        write = [*write, self._tokenizer.eos_token_id][1 - self._recipe.max_tokens :]
        return read[len(write) - self._recipe.max_tokens :], write

    def losses(self, batch: Sequence[Row]) -> Tensor:
        width = max(len(read) + len(write) for read, write in batch)
        ids = torch.full((len(batch), width), self._filler)
        written = torch.zeros_like(ids, dtype=torch.bool)
        for place, (read, write) in enumerate(batch):
            end = len(read) + len(write)
            ids[place, :end] = torch.tensor(read + write)
            written[place, len(read) : end] = True
        ids, written = ids.to(self._device), written.to(self._device)
        # The logits of 50,000 words are most of the memory: only those before a token that is to be written are made.
        places = written.any(0).nonzero()[:, 0]
        # Nothing attends to what fills a row's end, so that no mask is needed, with which torch would keep every
        # layer's attention for the way back.
        logits = self._model(input_ids=ids, logits_to_keep=places - 1).logits
        wanted = written[:, places]
        return nn.functional.cross_entropy(logits[wanted].float(), ids[:, places][wanted], reduction="none")


class SequenceToSequence(Learner):
    """Reads one text and writes another."""

    special_tokens = True

    def row(self, one: Conversation) -> Row:
        read, write = super().row(one)
        return read[-self._recipe.max_tokens :], write[-self._recipe.max_tokens :]

    def losses(self, batch: Sequence[Row]) -> Tensor:
        read, write = (self._padded([row[side] for row in batch]) for side in (0, 1))
        real = read >= 0
        ids = read.where(real, self._filler)
        logits = self._model(input_ids=ids, attention_mask=real.long(), labels=write).logits
        return nn.functional.cross_entropy(logits[write >= 0].float(), write[write >= 0], reduction="none")

    def _padded(self, texts: Sequence[list[int]]) -> Tensor:
        rows = [torch.tensor(text) for text in texts]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=_NONE).to(self._device)
