"""A fine-tuned language model that takes a step which writes: a text, or a list of texts such as sub-questions."""

import asyncio
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hoptimizer.common.batching import CORES, Batcher
from hoptimizer.models.engine.generator import Generator
from hoptimizer.models.engine.loading import device_and_dtype, loading
from hoptimizer.models.engine.request import Completion, GenerationRequest
from hoptimizer.models.small.base import SmallModel
from hoptimizer.models.small.card import Card
from hoptimizer.models.small.encoder import by_length
from hoptimizer.models.small.fields import parse, prompt

# Texts that a sequence-to-sequence model writes at once.
ROWS = 16


def load_writer(name: str, dtype: torch.dtype = torch.float32) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A causal or sequence-to-sequence language model, and its tokenizer.

    Args:
        name: folder or hub id.
        dtype: precision of the weights.

    Raises:
        UserError: the model can't be loaded, or is of neither kind.
    """
    with loading(name, "a language model"):
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
        kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        model = kind.from_pretrained(name, config=config, dtype=dtype, trust_remote_code=False)
        return model.eval(), AutoTokenizer.from_pretrained(name, trust_remote_code=False)


def prompt_tokens(tokenizer: PreTrainedTokenizerBase, text: str, max_tokens: int) -> list[int]:
    """A prompt's token ids; one that is too long loses its beginning, because the output's name stands at its end.

    The names of control tokens are mere words in it.
    """
    return tokenizer(text, split_special_tokens=True)["input_ids"][-max_tokens:]


class StepGenerator(SmallModel):
    """A small model that writes an output field; calls that are under way at the same time share batches."""

    def __init__(self, folder: Path, card: Card) -> None:
        super().__init__(folder, card)
        with loading(folder, "a language model"):
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        self._writer: _Seq2Seq | _Causal = (_Seq2Seq if config.is_encoder_decoder else _Causal)(folder, card)

    async def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return self._named(await asyncio.wrap_future(self._submit(inputs)))

    def predict(self, inputs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Write for many sets of input fields; the results are in their order."""
        futures = [self._submit(one) for one in inputs]
        return [self._named(future.result()) for future in futures]

    def _submit(self, inputs: dict[str, Any]) -> "Future[str]":
        return self._writer.submit(prompt(inputs, self.card.inputs, self.card.output))

    def _named(self, text: str) -> dict[str, Any]:
        return {self.card.output: parse(text, self.card.listed)}


class _Causal:
    """A causal model, run by the engine that serves the ``local/`` models."""

    def __init__(self, folder: Path, card: Card) -> None:
        self._generator = Generator(str(folder))
        weakref.finalize(self, self._generator.close)
        self._card = card

    def submit(self, text: str) -> "Future[str]":
        tokens = prompt_tokens(self._generator.tokenizer, text, self._card.max_tokens)
        completion = self._generator.submit(GenerationRequest(tokens, self._card.max_new_tokens or 1))
        written: Future[str] = Future()

        def copy(done: "Future[Completion]") -> None:
            if done.cancelled() or not written.set_running_or_notify_cancel():
                return
            if error := done.exception():
                written.set_exception(error)
            else:
                written.set_result(done.result().text)

        # Whoever no longer waits for the text stops the writing.
        written.add_done_callback(lambda one: one.cancelled() and completion.cancel())
        completion.add_done_callback(copy)
        return written


class _Seq2Seq:
    """An encoder-decoder model, run by transformers' own generation."""

    def __init__(self, folder: Path, card: Card) -> None:
        model, self._tokenizer = load_writer(str(folder))
        self._model = model.to(*device_and_dtype())
        self._card = card

    def submit(self, text: str) -> "Future[str]":
        return self._batcher.submit(text)

    @cached_property
    def _batcher(self) -> Batcher[str, str]:
        return Batcher(self._write, limit=4 * ROWS, on=CORES)

    @torch.inference_mode()
    def _write(self, prompts: list[str]) -> list[str]:
        rows = [{"input_ids": prompt_tokens(self._tokenizer, text, self._card.max_tokens)} for text in prompts]
        texts = [""] * len(rows)
        for places in by_length(rows, ROWS):
            batch = self._tokenizer.pad([rows[i] for i in places], return_tensors="pt").to(self._model.device)
            written = self._model.generate(
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                max_new_tokens=self._card.max_new_tokens,
                do_sample=False,
                num_beams=1,
            )
            decoded = self._tokenizer.batch_decode(written, skip_special_tokens=True)
            for place, text in zip(places, decoded, strict=True):
                texts[place] = text
        return texts
