"""The language model calls of one step, and what they cost."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dspy
from dspy import lm15
from dspy.clients.call_result import usage_dict
from dspy.clients.capabilities import resolve
from dspy.utils.callback import BaseCallback

_UNKNOWN = {"prompt_tokens": None, "completion_tokens": None, "cached_tokens": None, "usd": None}
_UNHEARD = _UNKNOWN | {"cached_calls": None}

# Tokens that no call has, whatever its server says.
_TOO_MANY = 1 << 40


class StepCalls(BaseCallback):
    """Hears of the calls that a step really makes: an adapter may ask a second time, in another prompt format.

    DSPy's settings are context variables, so that steps that are taken at the same time each hear of their own. As a
    callback it counts the calls; as one of the "caller modules", to whose histories DSPy adds each call, it is told of
    tokens and prices. (The history of a language model holds the calls of all steps and threads.)

    Attributes:
        number: calls so far; one that DSPy's cache answers is counted, and so is one that fails.
        history: DSPy's entries of the calls that were answered.
    """

    def __init__(self) -> None:
        self.number = self._failed = 0
        self.history: list[dict[str, Any]] = []
        self._lms: list[dspy.BaseLM] = []

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Within it, the predictor is called once, and the calls that this takes are counted."""
        before = self.number
        callbacks, callers = [*dspy.settings.callbacks, self], [*(dspy.settings.caller_modules or []), self]
        try:
            with dspy.context(callbacks=callbacks, caller_modules=callers):
                yield
        finally:
            # A language model of one's own that overrides ``acall`` tells no callback of its calls.
            self.number = max(self.number, before + 1)

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:  # noqa: ANN401 - DSPy's hook
        self.number += 1
        self._lm = instance

    def on_lm_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:  # noqa: ANN401 - DSPy's hook
        if exception is None:
            self._lms.append(self._lm)
        else:
            self._failed += 1

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
