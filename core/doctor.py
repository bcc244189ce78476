"""What works on this machine, and what to do about what doesn't."""

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version

from hoptimizer.common.errors import UserError
from hoptimizer.common.paths import home
from hoptimizer.common.urls import without_secrets
from hoptimizer.config import Config
from hoptimizer.models import check_lm
from hoptimizer.models.weights.store import damage, table
from hoptimizer.tracking.tracker import Tracker

PACKAGES = ("torch", "transformers", "dspy", "mlflow", "colbert-ai", "bm25s", "llguidance")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: what was looked at.
        works: whether it is as it should be.
        detail: what was found.
        remedy: what to do about it; empty where it works.
    """

    what: str
    works: bool
    detail: str
    remedy: str = ""


def examine(config: Config) -> list[Finding]:
    """Look at the parts that a config needs.

    Args:
        config: says which language models and which store are looked at. They are not where there is no home to write
            to, which they need.
    """
    found = [*_packages(), _processor(), _compiler(), _folder()]
    return [*found, *_weights(), *_lms(config), _store(config)] if found[-1].works else found


def _packages() -> Iterator[Finding]:
    for package in PACKAGES:
        try:
            yield Finding(package, True, version(package))
        except PackageNotFoundError:
            yield Finding(package, False, "not installed", "install hoptimizer again: pip install hoptimizer")


def _processor() -> Finding:
    import torch

    if torch.cuda.is_available():
        return Finding("processor", True, f"GPU {torch.cuda.get_device_name(0)}")
    from hoptimizer.models.engine.limits import bf16_flops, read_bytes

    cores = f"CPU, {os.cpu_count()} cores, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"
    limits = f"at most {bf16_flops() / 1e9:.0f} GFLOP/s in bf16 and {read_bytes() / 1e9:.0f} GB/s of memory"
    return Finding("processor", True, f"{cores}, {limits}")


def _compiler() -> Finding:
    remedy = "only retriever.bits below 8 needs it: install g++ and ninja, or leave it at 8"
    compiler, ninja = shutil.which("g++"), shutil.which("ninja") or importlib.util.find_spec("ninja")
    works = bool(compiler and ninja)
    return Finding("C++ compiler", works, compiler or "no g++ found", "" if works else remedy)


def _folder() -> Finding:
    try:
        folder = home()
    except UserError as error:
        return Finding("home", False, "none", str(error))
    writable = os.access(folder, os.W_OK)
    free = shutil.disk_usage(folder).free / 1e9
    remedy = "" if writable else "set HOPTIMIZER_HOME to a folder of yours"
    return Finding("home", writable, f"{folder}, {free:.0f} GB free", remedy)


def _weights() -> Iterator[Finding]:
    for entry in table():
        what = f"weights {entry.name}"
        if entry.folder is None:
            yield Finding(what, False, "not here yet", f"pulled when first used, or now: hop models pull {entry.name}")
        elif wrong := damage(entry.folder):
            yield Finding(what, False, f"{entry.folder}: {wrong}", f"hop models pull {entry.name}")
        else:
            yield Finding(what, True, str(entry.folder))


def _lms(config: Config) -> Iterator[Finding]:
    for role, settings in config.lm.items():
        yield _try(f"lm.{role}", settings.model, partial(check_lm, settings))


def _store(config: Config) -> Finding:
    return _try(
        "MLflow store", without_secrets(config.tracking.uri), lambda: Tracker(config.tracking.uri, config.experiment)
    )


def _try(what: str, detail: str, check: Callable[[], object]) -> Finding:
    try:
        check()
    except UserError as error:
        return Finding(what, False, detail, str(error))
    return Finding(what, True, detail)
