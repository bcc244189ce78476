"""Loading models in the best form for the hardware, without transformers' noise."""

import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from hoptimizer.common.errors import UserError
from hoptimizer.common.memory import limit_reserves
from hoptimizer.models.engine import attention
from hoptimizer.models.engine.packed import pack
from hoptimizer.models.folder import check_model

limit_reserves()  # before a thread starts that generates or trains

# While transformers makes a model, new tensors of the whole process have its precision unless they name one. Two
# threads that load at once could each put back what the other one set.
_one_at_a_time = threading.RLock()
# The layers whose whole state is keys and values.
_LAYERS = {"full_attention", "sliding_attention"}


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Within it, models are loaded and saved without transformers' progress bars, warnings and tables of keys."""
    shown, verbosity = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if shown:
            transformers_logging.enable_progress_bar()


@contextmanager
def loading(name: str | Path, kind: str) -> Iterator[None]:
    """Within it, a model is loaded quietly from a folder that was looked at, or from the hub; one at a time.

    What other threads compute meanwhile has to name the precision of the tensors that it makes.

    Args:
        name: folder or hub id.
        kind: what it is to be, for messages.

    Raises:
        UserError: it can't be loaded.
    """
    if Path(name).is_dir():
        check_model(Path(name))
    try:
        with _one_at_a_time, quiet_loading():
            yield
    except UserError:
        raise
    except Exception as error:  # files that anybody made: the tokenizers library raises Exception itself
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
        raise UserError(
            f"can't load {str(name)!r} as {kind}: {reason}; give a name of `hop models list`, a folder with "
            "config.json, safetensors and tokenizer, or a hub id"
        ) from error


def device_and_dtype() -> tuple[torch.device, torch.dtype]:
    """Where models run, a GPU if there is one, and in which precision: bf16, or fp32 on a CPU that lacks it."""
    if torch.cuda.is_available():
        return torch.device("cuda"), torch.bfloat16
    return torch.device("cpu"), torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32


def memory_share(device: torch.device) -> int:
    """An eighth of the machine's memory, or of what is free on a GPU, in bytes."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // 8
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8


@dataclass(frozen=True)
class BatchLimits:
    """How much a model computes at once.

    Attributes:
        sequences: the most in one batch.
        pass_tokens: the most tokens of one forward pass.
        decoded_tokens: the most decoded ones of these, drafts among them; 0 drafts nothing.
    """

    sequences: int
    pass_tokens: int
    decoded_tokens: int

    @classmethod
    def of(cls, device: torch.device) -> "BatchLimits":
        """Those of the hardware.

        On a CPU, tokens enough to keep the matrix products at full speed, and few enough to fit the caches; and so many
        decoded ones as take hardly longer than one. A GPU spends most of a pass on starting its kernels, whose number
        hardly depends on either; what drafts bring there was not measured yet.
        """
        if device.type == "cuda":
            return cls(sequences=64, pass_tokens=8192, decoded_tokens=0)
        return cls(sequences=32, pass_tokens=1024, decoded_tokens=16)


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids of the tokens that end an answer."""
    configured = model.generation_config.eos_token_id
    ends = configured if isinstance(configured, list) else [configured]
    return sorted({end for end in [*ends, tokenizer.eos_token_id] if end is not None})


def load(name: str, device: torch.device, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model that runs its attention through :mod:`hoptimizer.models.engine.attention`, and its tokenizer.

    Args:
        name: folder or hub id.
        device: where to run.
        dtype: precision of the weights.

    Raises:
        UserError: it can't be loaded, or its layers are not all attention through transformers' interface.
    """
    with loading(name, "a language model"):
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
        model = AutoModelForCausalLM.from_pretrained(
            name,
            config=config,
            dtype=dtype,
            attn_implementation=attention.NAME,
            trust_remote_code=False,
            use_safetensors=True,
        )
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    if reason := _unfit(model):
        raise UserError(
            f"local/ models can't run {type(model).__name__}, {reason}; serve it with `transformers serve` and name it "
            "with api_base"
        )
    model = model.eval().to(device)
    pack(model)
    return model, tokenizer


def _unfit(model: PreTrainedModel) -> str | None:
    """What of an architecture :mod:`hoptimizer.models.engine.generator` can't run, if anything."""
    config = model.config.get_text_config()
    if not model._supports_attention_backend:
        return "which has no attention interface"
    # Convolutions and state spaces would run across the texts of a batch, and chunks of attention are not masked.
    if others := set(getattr(config, "layer_types", None) or ()) - _LAYERS:
        return f"which has layers of {', '.join(sorted(others))}"
    if getattr(config, "is_heterogeneous", False):
        return "whose layers differ in shape"
    return None
