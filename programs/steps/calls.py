"""The language model calls of one step, and what they cost."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import dspy
from dspy import lm15
from dspy.clients.call_result import usage_dict
from dspy.clients.capabilities import resolve
from dspy.utils.callback import BaseCallback

_UNKNOWN = {"prompt_tokens": None, "completion_tokens": None, "cached_tokens": None, "usd": None}
_UNHEARD = _UNKNOWN | {"cached_calls": None}

_listening: "ContextVar[StepCalls | None]" = ContextVar("listening", default=None)
_telling = threading.Lock()

# Tokens that no call has, whatever its server says.
_TOO_MANY = 1 << 40


class StepCalls:
    """Hears of the calls that a step really makes: an adapter may ask a second time, in another prompt format.

    Steps that are taken at the same time each hear of their own. A callback of the language model's counts the calls;
    as one of the "caller modules", to whose histories DSPy adds each call, this is told of tokens and prices. (The
    history of a language model holds the calls of all steps and threads.)

    Attributes:
        number: calls so far; one that DSPy's cache answers is counted, and so is one that fails.
        history: DSPy's entries of the calls that were answered.
    """

    def __init__(self) -> None:
        self.number = self._failed = 0
        self.history: list[dict[str, Any]] = []
        self._lms: list[dspy.BaseLM] = []

    @contextmanager
    def heard(self, lm: dspy.BaseLM | None) -> Iterator[None]:
        """Within it, a language model is asked once, and the calls that this takes are counted.

        Args:
            lm: the language model; ``None`` for DSPy's configured one.
        """
        before = self.number
        adapter = dspy.settings.adapter
        # It may have a language model of its own, as DSPy's two-step adapter has.
        for one in (lm or dspy.settings.lm, *(vars(adapter).values() if adapter else ())):
            if isinstance(one, dspy.BaseLM):
                _tell_of(one)
        listening = _listening.set(self)
        try:
            with dspy.context(caller_modules=[*(dspy.settings.caller_modules or []), self]):
                yield
        finally:
            _listening.reset(listening)
            # A language model of one's own that overrides ``acall`` tells no callback of its calls.
            self.number = max(self.number, before + 1)

    def begun(self, lm: dspy.BaseLM) -> None:
        """A call of a language model has begun."""
        self.number += 1
        self._lm = lm

    def ended(self, *, failed: bool) -> None:
        """It has ended."""
        if failed:
            self._failed += 1
        else:
            self._lms.append(self._lm)

    @property
    def cost(self) -> dict[str, Any]:
        """Tokens and dollars of all calls, and those that a cache answered, by the names that a record has for them;
        ``None`` for what is not known.

        A call that was refused, because its prompt was too long, costs nothing. One that DSPy's cache answers costs
        what it cost when it was made.
        """
        if len(self.history) != self.number - self._failed:
            return _UNHEARD
        costs = [_cost(entry, lm) for entry, lm in zip(self.history, self._lms, strict=True)]
        return {name: _sum([cost[name] for cost in costs]) for name in _UNHEARD}


class _Teller(BaseCallback):
    """Tells whoever listens of a language model's calls.

    As one of the callbacks in DSPy's settings it would hear of modules and of each layer of an adapter, too, which
    takes a fifth of the time that Python spends on a call.
    """

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:  # noqa: ANN401 - DSPy's hook
        if calls := _listening.get():
            calls.begun(instance)

    def on_lm_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:  # noqa: ANN401 - DSPy's hook
        if calls := _listening.get():
            calls.ended(failed=exception is not None)


def _tell_of(lm: dspy.BaseLM) -> None:
    """See to it that a language model tells of its calls, as copies of it then do."""
    callbacks = getattr(lm, "callbacks", [])
    with _telling:
        if not any(isinstance(callback, _Teller) for callback in callbacks):
            lm.callbacks = [*callbacks, _Teller()]


def _cost(entry: Mapping[str, Any], lm: dspy.BaseLM) -> dict[str, Any]:
    cached_calls = {"cached_calls": int(_is_cached(entry))}
    usage = entry["usage"] or _usage_before(entry["response"], lm)
    if not all(_is_count(usage.get(name)) for name in ("prompt_tokens", "completion_tokens")):
        return _UNKNOWN | cached_calls | {"usd": entry["cost"]}
    cached = dict(usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    return cached_calls | {
        "prompt_tokens": usage["prompt_tokens"],
        "completion_tokens": usage["completion_tokens"],
        "cached_tokens": cached if _is_count(cached) else 0,
        "usd": entry["cost"],
    }


def _is_cached(entry: Mapping[str, Any]) -> bool:
    """Whether a cache answered a call: DSPy marks LiteLLM's responses, and says of its own that nothing was used."""
    response = entry["response"]
    return (
        response.cache_hit
        if hasattr(response, "cache_hit")
        else isinstance(response, lm15.Response) and not entry["usage"]
    )


def _is_count(value: Any) -> bool:  # noqa: ANN401 - whatever a server says
    return isinstance(value, int) and 0 <= value < _TOO_MANY


def _usage_before(response: Any, lm: dspy.BaseLM) -> dict[str, Any]:  # noqa: ANN401 - DSPy's or LiteLLM's
    """The usage of a call that a cache answered, of which DSPy says that it used nothing."""
    if not isinstance(response, lm15.Response):
        return dict(getattr(response, "usage", None) or {})
    provider = resolve(lm).provider if isinstance(getattr(lm, "engine", None), str) else None
    return usage_dict(response, provider)


def _sum(values: list[Any]) -> Any:  # noqa: ANN401 - a number, or nothing
    return None if None in values else sum(values)
