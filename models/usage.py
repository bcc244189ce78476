"""The language model calls of one piece of work: counted, limited, and cached so that the work can be resumed."""

import copy
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import dspy
from dspy.clients import DISK_CACHE_LIMIT
from dspy.clients.cache import Cache

from hoptimizer.models.disk_cache import open_disk
from hoptimizer.models.folder import fingerprints
from hoptimizer.models.settings import LOCAL, server_in_environment
from hoptimizer.models.slots import from_cache

# DSPy culls a cache that grows over its limit; a call that was paid for is kept.
_NO_LIMIT = 1 << 50
# Answers that are held beside the disk, which has them all: some kilobytes each.
_IN_MEMORY = 1000
_SECONDS = "seconds"
# They do not decide on an answer. DSPy leaves keys out of its cache keys itself.
_NOT_DECIDING = ("timeout", "extra_headers")

# Of each model in this process that was asked or is going to be, what tells its weights from others in its place.
_weights: dict[str, str] = {}


@dataclass(frozen=True)
class Usage:
    """What calls have cost.

    Attributes:
        calls: distinct calls. A call that is repeated, or under way already, is not counted again.
        prompt_tokens: tokens of their prompts.
        completion_tokens: tokens of their answers.
        usd: their price, where the model has one.
        seconds: wall time, without the time in which no process was at work.
    """

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float = 0.0
    seconds: float = 0.0

    def figures(self) -> dict[str, float]:
        """All of it by name, without a price where no call had one."""
        return {name: value for name, value in asdict(self).items() if name != "usd" or value}


class BudgetExhausted(BaseException):
    """Nothing more may be spent: the work ends at once, wherever it is.

    It is no ``Exception``, because code that catches those must not catch it: DSPy's threads would score a question 0.
    """


class UsageMeter:
    """Counts the calls that are made while it is in ``dspy.settings.meter``, which reaches DSPy's own threads.

    A call counts where it is first asked for, whether it is then computed or comes from a cache: work that is resumed,
    and replays what it did before, ends where it would have ended undisturbed.

    Args:
        limit: says of what has been spent whether nothing more may be.
        seconds: wall time that was spent before by a process that was killed.

    Attributes:
        told: called with what has been spent after each call.
    """

    def __init__(self, limit: Callable[[Usage], bool], seconds: float = 0.0) -> None:
        self._limit = limit
        self.told: Callable[[Usage], None] = lambda _: None
        self._start = time.monotonic() - seconds
        self._seen: set[str] = set()
        self._calls = self._prompt = self._written = 0
        self._usd = 0.0
        self._lock = threading.Lock()

    @property
    def spent(self) -> Usage:
        """What has been spent so far."""
        return Usage(self._calls, self._prompt, self._written, self._usd, time.monotonic() - self._start)

    def ask(self, key: str, replayed: bool = False) -> None:
        """Take note that a call is asked for.

        Args:
            key: the call's key in the cache.
            replayed: whether it was answered before the work was killed, when there was time and money for it.

        Raises:
            BudgetExhausted: the call is a new one, and nothing more may be spent.
        """
        with self._lock:
            if key in self._seen:
                return
            if self._limit(replace(self.spent, usd=0.0, seconds=0.0) if replayed else self.spent):
                raise BudgetExhausted
            self._seen.add(key)
            self._calls += 1

    def answered(self, prompt_tokens: int, completion_tokens: int, usd: float) -> None:
        """Take note that a call was answered for the first time, with its tokens and its price in dollars."""
        with self._lock:
            self._prompt += prompt_tokens
            self._written += completion_tokens
            self._usd += usd
        self.told(self.spent)


def look_at_weights(model: str) -> str:
    """Take note of the weights that a model has now: from now on, its calls are told from those of earlier ones.

    Args:
        model: ``local/NAME``; what lies in a folder may be trained again there.

    Returns:
        what tells the weights from others; empty where the name says all.

    Raises:
        UserError: the name can't be a path here.
    """
    _weights[model] = fingerprints([model.removeprefix(LOCAL)])
    return _weights[model]


class AnswerCache(Cache):
    """DSPy's cache, which keeps what an answer cost when it was given, and tells apart what answers by the same name:
    weights that were trained again in their folder, and servers.

    Args:
        folder: holds the answers.
        limit: in bytes, what they may take on disk.
        disk: keeps them in the place of the folder, by ``get(key)`` and ``set(key, value)``.
    """

    def __init__(self, folder: Path, limit: int = DISK_CACHE_LIMIT, disk: Any = None) -> None:  # noqa: ANN401 - as said
        super().__init__(
            enable_disk_cache=False,
            enable_memory_cache=True,
            disk_cache_dir=str(folder),
            memory_max_entries=_IN_MEMORY,
        )
        # DSPy would open a disk of its own, whose values can name code.
        self.enable_disk_cache = True
        self.disk_cache: Any = open_disk(folder, limit) if disk is None else disk

    def cache_key(self, request: dict[str, Any], ignored_args_for_cache_key: list[str] | None = None) -> str:
        # DSPy leaves the server out as well, but two of them may call different models by the same name.
        ignored = [name for name in ignored_args_for_cache_key or () if name != "api_base"]
        return super().cache_key(_told_apart(request), [*ignored, *_NOT_DECIDING])

    def get(self, request: dict[str, Any], ignored_args_for_cache_key: list[str] | None = None) -> Any:  # noqa: ANN401 - DSPy's
        found = super().get(request, ignored_args_for_cache_key)
        if found is not None and (call := from_cache.get(None)):
            call.set()
        return found

    def _prepare_cached_response(self, response: Any) -> Any:  # noqa: ANN401 - DSPy's
        # DSPy clears the usage of what came through LiteLLM, as nothing is used now.
        prepared = super()._prepare_cached_response(response)
        if usage := getattr(response, "usage", None):
            prepared.usage = copy.copy(usage)
        return prepared


class CallCache(AnswerCache):
    """The calls of one piece of work, on disk; what is not among them is looked up in a shared cache first.

    Args:
        folder: holds this piece of work's calls and nothing else.
        shared: the cache of all work with the same language models, or ``None`` for none.
    """

    def __init__(self, folder: Path, shared: Cache | None) -> None:
        super().__init__(folder, _NO_LIMIT)
        self._shared = shared
        self._counted: set[str] = set()
        self.computed = 0
        """Calls that no cache had."""

    @property
    def seconds(self) -> float:
        """Wall time that the work has taken so far, over all processes."""
        kept = self.disk_cache.get(_SECONDS)
        return kept if isinstance(kept, float) else 0.0

    def get(self, request: dict[str, Any], ignored_args_for_cache_key: list[str] | None = None) -> Any:  # noqa: ANN401 - DSPy's
        key = self.cache_key(request, ignored_args_for_cache_key)
        found = super().get(request, ignored_args_for_cache_key)
        if meter := _meter():
            meter.ask(key, replayed=found is not None)
        if found is None and (found := self._from_shared(request, ignored_args_for_cache_key)) is not None:
            super().put(request, found, ignored_args_for_cache_key)
        if found is not None:
            self._count(meter, key, found)
        return found

    def _from_shared(self, request: dict[str, Any], ignored: list[str] | None) -> Any:  # noqa: ANN401 - DSPy's
        """What the shared cache has of a call whose price is known.

        Calls that cost nothing would make what is compiled depend on what was evaluated before.
        """
        found = self._shared.get(request, ignored) if self._shared else None
        return found if isinstance(found, dict) or getattr(found, "usage", None) else None

    def put(
        self,
        request: dict[str, Any],
        value: Any,  # noqa: ANN401 - DSPy's
        ignored_args_for_cache_key: list[str] | None = None,
        enable_memory_cache: bool = True,
    ) -> None:
        key = self.cache_key(request, ignored_args_for_cache_key)
        super().put(request, value, ignored_args_for_cache_key, enable_memory_cache)
        if self._shared:
            self._shared.put(request, value, ignored_args_for_cache_key, enable_memory_cache)
        self.computed += 1
        if meter := _meter():
            self.disk_cache.set(_SECONDS, meter.spent.seconds)
            self._count(meter, key, value)

    def _count(self, meter: UsageMeter | None, key: str, record: Any) -> None:  # noqa: ANN401 - DSPy's
        if meter and key not in self._counted:
            self._counted.add(key)
            meter.answered(*(_price_of_record(record) if isinstance(record, dict) else _price_of_response(record)))


def _told_apart(request: dict[str, Any]) -> dict[str, Any]:
    """A request with what its model's name leaves open: the weights in a folder, or the server in the environment."""
    canonical = request.get("request")
    model = (canonical if isinstance(canonical, dict) else request).get("model")
    if not isinstance(model, str):
        return request
    if model.startswith(LOCAL):
        weights = _weights[model] if model in _weights else look_at_weights(model)
        return request | {"weights": weights} if weights else request
    server = None if request.get("api_base") else server_in_environment(model)
    return request | {"api_base": server} if server else request


def _price_of_record(record: dict[str, Any]) -> tuple[int, int, float]:
    """The tokens that were read and written, and the dollars, of a call in DSPy's own format."""
    usage = record.get("usage") or {}
    return usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0, record.get("cost") or 0.0


def _price_of_response(response: Any) -> tuple[int, int, float]:  # noqa: ANN401 - LiteLLM's
    """The tokens and dollars of a call through LiteLLM."""
    usage = response.usage
    return usage.prompt_tokens, usage.completion_tokens, response._hidden_params.get("response_cost") or 0.0


def _meter() -> UsageMeter | None:
    return dspy.settings.get("meter")
