"""Makes colbert-ai 0.2.22 run on transformers 5, quietly, without compiling what is not used, and without running code
that a checkpoint or an index brings.

The rest of the package calls :func:`adapt_colbert_ai` before it imports from ``colbert``.
"""

import functools
import importlib
import multiprocessing
import sys
import time
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tqdm

from hoptimizer.common.errors import UserError

# Every module of colbert-ai that encoding, indexing and searching run through.
_MODULES = (
    "colbert.indexing.codecs.residual",
    "colbert.modeling.checkpoint",
    "colbert.search.index_storage",
)


@functools.cache
def adapt_colbert_ai() -> None:
    """Import colbert-ai and adapt it, once per process."""
    start_method = multiprocessing.get_start_method(allow_none=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in _MODULES:
            importlib.import_module(name)
    # Its import forces "spawn" on the whole process, but how processes start is for the program to choose.
    multiprocessing.set_start_method(start_method, force=True)
    _run_post_init()
    _run_no_code()
    _defer_extensions()
    _keep_quiet()


def load_extensions() -> None:
    """Compile (minutes, cached afterwards) and load the C++ extension that :func:`adapt_colbert_ai` held back."""
    from colbert.modeling.colbert import ColBERT
    from colbert.parameters import DEVICE

    _drop_stale_locks()
    _LOAD_EXTENSIONS[0](ColBERT, DEVICE.type == "cuda")


def _drop_stale_locks() -> None:
    """Remove the locks of compilers that were killed, because torch would wait for them forever."""
    from torch.utils.cpp_extension import get_default_build_root

    for lock in Path(get_default_build_root()).glob("*/*/lock"):
        if time.time() - lock.stat().st_mtime > _STALE:
            lock.unlink(missing_ok=True)


# Seconds after which a lock is stale; an extension compiles in a fraction of it.
_STALE = 900.0

# colbert-ai's own loader, kept when the adapted one takes its place.
_LOAD_EXTENSIONS: list[Callable[..., None]] = []


def _run_post_init() -> None:
    """Call ``post_init()`` at the end of HF_ColBERT's ``__init__``, as transformers 5 wants of every model."""
    from colbert.modeling import base_colbert, hf_colbert
    from colbert.modeling.tokenization import doc_tokenization, query_tokenization

    make = hf_colbert.class_factory

    @functools.cache
    def class_factory(name_or_path: str) -> type:
        cls = make(name_or_path)
        init = cls.__init__

        def init_with_post_init(self: Any, config: Any, colbert_config: Any) -> None:  # noqa: ANN401 - their classes
            init(self, config, colbert_config)
            self.post_init()

        cls.__init__ = init_with_post_init
        return cls

    for module in (hf_colbert, base_colbert, doc_tokenization, query_tokenization):
        module.class_factory = class_factory


def _run_no_code() -> None:
    """Let colbert-ai load no classes but those of transformers.

    By itself it runs the code that a config's ``auto_map`` names, that of the model which the settings of a checkpoint
    or an index name as ``model_name`` as well.
    """
    from colbert.modeling import hf_colbert

    config = hf_colbert.AutoConfig

    def from_pretrained(name: str, trust_remote_code: bool = False) -> Any:  # noqa: ANN401 - their class
        return config.from_pretrained(name, trust_remote_code=False)

    def refuse(reference: str, name: str) -> None:
        raise UserError(f"retriever.checkpoint: {name!r} needs code of its own, which is never run: take another one")

    hf_colbert.AutoConfig = types.SimpleNamespace(from_pretrained=from_pretrained)
    hf_colbert.get_class_from_dynamic_module = refuse


def _defer_extensions() -> None:
    """Let checkpoints load without their C++ extension, which only PLAID's scoring calls."""
    from colbert.modeling.colbert import ColBERT

    _LOAD_EXTENSIONS.append(ColBERT.try_load_torch_extensions.__func__)
    ColBERT.try_load_torch_extensions = classmethod(lambda cls, use_gpu: None)


def _keep_quiet() -> None:
    """Give colbert-ai's modules a ``print`` and a ``tqdm`` of their own that show nothing.

    Redirecting stdout instead would swallow what other threads print meanwhile.
    """
    for name, module in list(sys.modules.items()):
        if name != "colbert" and not name.startswith("colbert."):
            continue
        module.__dict__["print"] = _silent
        bar = module.__dict__.get("tqdm")
        if isinstance(bar, types.ModuleType):
            module.__dict__["tqdm"] = types.SimpleNamespace(tqdm=_hidden_bar)
        elif bar is tqdm.tqdm:
            module.__dict__["tqdm"] = _hidden_bar


def _silent(*_: object, **__: object) -> None:
    """Print nothing."""


def _hidden_bar(*args: Any, **options: Any) -> tqdm.tqdm:  # noqa: ANN401 - tqdm's own
    return tqdm.tqdm(*args, **{**options, "disable": True})
