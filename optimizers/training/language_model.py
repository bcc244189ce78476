"""Training of causal and sequence-to-sequence language models."""

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_layers import GradientCheckpointingLayer

from hoptimizer.common.memory import trim_heap
from hoptimizer.models.engine.loading import device_and_dtype
from hoptimizer.models.small.generator import load_writer
from hoptimizer.models.weights.store import resolve
from hoptimizer.optimizers.training.causal_attention import attend_by_products
from hoptimizer.optimizers.training.loop import BestEpoch, TrainingReport
from hoptimizer.optimizers.training.lora import adapted, merged
from hoptimizer.optimizers.training.run import TrainingConfig, freeze_embeddings, training

TokenizedExample = tuple[list[int], list[int]]
"""The ids of the tokens that are read, and of those that are to be written."""

# The most tokens of one forward and backward pass. A small model keeps about 1 MB per token for the backward pass.
PASS_TOKENS = 2048
# Where nothing is chosen by the loss on dev, it is told of so many examples: a pass takes half of an update's time.
_DEV_SHOWN = 64
# The label with which transformers leaves a token out of the loss.
_NONE = -100


class WriterTrainingConfig(TrainingConfig):
    """How a language model is fine-tuned.

    Attributes:
        lora: the rank of the adapters (Hu et al., 2022) that are trained in place of all weights, on every linear layer
            but the last, and merged in the end; 0 trains all weights but the embeddings.
    """

    lora: int = Field(default=16, ge=0)


class Writer(ABC):
    """A kind of language model, which determines how losses are computed.

    Args:
        model: the model that is trained.
        tokenizer: the model's tokenizer.
    """

    def __init__(self, model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> None:
        self._model = model
        self._device = next(model.parameters()).device
        self._filler = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id

    @abstractmethod
    def losses(self, batch: Sequence[TokenizedExample]) -> Tensor:
        """The cross-entropy of each token that the model is to write, as one vector.

        Args:
            batch: the examples.
        """


class Causal(Writer):
    """A model that continues the text it reads."""

    def losses(self, batch: Sequence[TokenizedExample]) -> Tensor:
        width = max(len(read) + len(write) for read, write in batch)
        ids = torch.full((len(batch), width), self._filler)
        written = torch.zeros_like(ids, dtype=torch.bool)
        for place, (read, write) in enumerate(batch):
            end = len(read) + len(write)
            ids[place, :end] = torch.tensor(read + write)
            written[place, len(read) : end] = True
        ids, written = ids.to(self._device), written.to(self._device)
        # The logits over some 50,000 tokens take most of the memory, so they are computed only at positions before a
        # token that is to be written.
        places = written.any(0).nonzero()[:, 0]
        # Attention is causal, and padding stands at the end of a row, so no token attends to it. A mask is not needed;
        # with one, torch would keep the attention weights of every layer for the backward pass.
        logits = self._model(input_ids=ids, logits_to_keep=places - 1, use_cache=False).logits
        pending = written[:, places]
        return nn.functional.cross_entropy(logits[pending].float(), ids[:, places][pending], reduction="none")


class SequenceToSequence(Writer):
    """A model that reads one text and writes another."""

    def losses(self, batch: Sequence[TokenizedExample]) -> Tensor:
        read, write = (self._padded([row[side] for row in batch]) for side in (0, 1))
        real = read >= 0
        ids = read.where(real, self._filler)
        logits = self._model(input_ids=ids, attention_mask=real.long(), labels=write, use_cache=False).logits
        return nn.functional.cross_entropy(logits[write >= 0].float(), write[write >= 0], reduction="none")

    def _padded(self, texts: Sequence[list[int]]) -> Tensor:
        rows = [torch.tensor(text) for text in texts]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=_NONE).to(self._device)


def load_base(config: WriterTrainingConfig) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model that is fine-tuned, and its tokenizer. Weights that stay as they are have the precision of the
    forward pass; those that are trained are in fp32.

    Args:
        config: how the model is trained.

    Raises:
        UserError: it can't be loaded.
    """
    return load_writer(resolve(config.base), device_and_dtype()[1] if config.lora else torch.float32)


def train_writer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[TokenizedExample],
    dev: Sequence[TokenizedExample],
    config: WriterTrainingConfig,
    key: str,
    folder: Path,
    report: TrainingReport,
) -> tuple[PreTrainedModel, BestEpoch]:
    """Fine-tune a language model on the cross-entropy of the tokens that it is to write.

    Args:
        model: the model as :func:`load_base` gives it.
        tokenizer: the model's tokenizer.
        rows: the examples to learn from.
        dev: the examples that the epoch is chosen on; the one with the least loss is kept. Of a single epoch there is
            nothing to choose, and the loss is that of 64 of them, drawn with the config's seed.
        config: how the model is trained.
        key: a digest of the data and the config.
        folder: the folder of the checkpoints.
        report: is told of the progress after every update.

    Returns:
        the model with the weights of the epoch that was kept; and that epoch, whose facts hold the loss per token on
        dev before the training (``start``) and after it (``loss``).

    Raises:
        UserError: the checkpoint in the folder is of another training, or the training diverges.
    """
    device, dtype = device_and_dtype()
    model.to(device)
    attend_by_products(model)
    trained = adapted(model, config.lora, config.seed) if config.lora else model
    if not config.lora:
        freeze_embeddings(model)
    kind = SequenceToSequence if model.config.is_encoder_decoder else Causal
    writer = kind(trained, tokenizer)
    if (free := free_memory(device)) < math.inf and memory_needed(trained, writer, rows[0]) > free:
        recompute_layers(trained)
    if config.epochs == 1 and len(dev) > _DEV_SHOWN:
        dev = random.Random(config.seed).sample(dev, _DEV_SHOWN)

    @torch.inference_mode()
    def evaluate() -> tuple[float, dict[str, float]]:
        loss = float(torch.cat([writer.losses(part) for part in _parts(dev)]).mean())
        return -loss, {"loss": loss}

    def loss(batch: list[int]) -> Tensor:
        *others, last = _parts([rows[i] for i in batch])
        total = sum(len(rows[i][1]) for i in batch)
        done = 0.0
        for part in others:
            share = writer.losses(part).sum() / total
            share.backward()
            done += share.item()
            trim_heap()  # the next pass has other shapes, which do not fit into the gaps that this one leaves
        return writer.losses(last).sum() / total + done

    lengths = [_length(row) for row in rows]
    loop = training(config, trained, dtype, lengths, loss, evaluate, key=key, folder=folder, report=report)
    _, start = evaluate()
    best = loop.run()
    if config.lora:
        model = merged(trained, loop.master_weights, config.base, folder)
    return model, replace(best, facts={"start": start["loss"], **best.facts})


def free_memory(device: torch.device) -> float:
    """The bytes of a GPU that are free; a machine's own memory has no such bound.

    Args:
        device: where a model is trained.
    """
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else math.inf


def memory_needed(model: nn.Module, writer: Writer, example: TokenizedExample) -> float:
    """What a training takes beside the model's weights, in bytes.

    Args:
        model: the model, in which those weights that are trained require a gradient.
        writer: computes losses by it.
        example: by which it is measured what a pass keeps for its backward pass.
    """
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, int] = {}

    def keep(states: Tensor) -> Tensor:
        storage = states.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return states

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda states: states):
        losses = writer.losses([example])
    del losses
    # Gradients, and of each weight a copy and two states of AdamW in fp32.
    trained = sum(weight.nbytes + 4 * 4 * weight.numel() for weight in model.parameters() if weight.requires_grad)
    return sum(kept.values()) * PASS_TOKENS / _length(example) + trained


def recompute_layers(model: nn.Module) -> None:
    """Have each layer computed once more in the backward pass, which then keeps the inputs of layers alone (Chen et
    al., 2016): a third more work for a tenth of the memory, and the same gradients.

    Args:
        model: the model.
    """
    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def _length(row: TokenizedExample) -> int:
    return sum(map(len, row))


def _parts(rows: Sequence[TokenizedExample]) -> list[list[TokenizedExample]]:
    """The rows in parts of similar length, each of at most ``PASS_TOKENS`` tokens with padding, or of a single row."""
    parts: list[list[TokenizedExample]] = [[]]
    for row in sorted(rows, key=_length):
        if parts[-1] and (len(parts[-1]) + 1) * _length(row) > PASS_TOKENS:
            parts.append([])
        parts[-1].append(row)
    return parts
