"""Language models behind a server: how it is asked again when it fails, and what must not be shown of it."""

import asyncio
import inspect
import logging
import os
import random
import time
from base64 import b64decode
from collections.abc import Iterator, KeysView, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import dspy
from dspy.utils.callback import with_callbacks
from dspy.utils.exceptions import (
    ContextWindowExceededError,
    LMError,
    LMRateLimitError,
    LMTimeoutError,
    LMTransportError,
)
from pydantic import RootModel, SecretStr
from tenacity import AsyncRetrying, RetryCallState, Retrying, wait_random, wait_random_exponential

from hoptimizer.common.urls import public
from hoptimizer.models.failures import is_outage, is_too_fast, is_too_long, read_all_failures
from hoptimizer.models.same_calls import OnceLM
from hoptimizer.models.settings import NO_KEY, secrets_in, server_in_environment
from hoptimizer.models.slots import slots_of
from hoptimizer.models.usage import AnswerCache

TIMEOUT = 180.0
"""Seconds that a call may take, where no other number is set."""

NUM_RETRIES = 3
"""How often a call that got no answer is made again, where no other number is set."""

# A server that calls too fast are refused by is waited for, within limits, and no number of retries counts: seconds
# from the first refusal, and the longest wait that it may ask for.
_PATIENCE = 600.0
_LONGEST_WAIT = 300.0
# Waits that are said on the screen, in seconds.
_LONG_WAIT = 10.0
# Calls that fail together must not come again together: the wait is drawn from 0 to 1, 2, 4 … seconds.
_backoff = wait_random_exponential(multiplier=1, max=60)
_jitter = wait_random(0, 1)
_log = logging.getLogger(__name__)
read_all_failures()


class SecretHeaders(RootModel[dict[str, SecretStr]]):
    """HTTP headers whose values are shown to those alone who ask for one by its name, as HTTP clients do.

    As JSON, in logs and in DSPy's cache keys they are asterisks, so that a new token leaves cached answers valid.

    >>> headers = SecretHeaders({"X-Token": "abc"})
    >>> headers, dict(headers)
    (SecretHeaders(root={'X-Token': SecretStr('**********')}), {'X-Token': 'abc'})
    """

    def keys(self) -> KeysView[str]:
        """The headers' names."""
        return self.root.keys()

    def __getitem__(self, name: str) -> str:
        return self.root[name].get_secret_value()

    def __len__(self) -> int:
        return len(self.root)


class ServedLM(OnceLM):
    """A language model behind a server that keeps to a number of calls at once, makes a call again that got no answer,
    and whose secrets are in no dump and no error.

    DSPy's own retries keep their place among the calls at once while they wait, wait for exactly 1, 2, 4 seconds, and
    for however long a server asks.

    Args:
        model: a model string of DSPy.
        max_concurrency: calls at once, 100 by default; those that DSPy's cache answers count, too.
        num_retries: how often a call that got no answer is made again; one that a server refuses for coming too fast is
            made again for ten minutes.
        timeout: seconds that a call may take.
        options: of ``dspy.LM``; ``api_key`` and ``extra_headers`` are secrets.
    """

    def __init__(
        self,
        model: str,
        max_concurrency: int | None = None,
        num_retries: int | None = None,
        timeout: float | None = None,
        **options: Any,  # noqa: ANN401 - DSPy's
    ) -> None:
        super().__init__(model, num_retries=0, timeout=timeout or TIMEOUT, **options)
        self.slots = slots_of(model, str(options.get("api_base") or ""))
        self._limit = self.slots.limited(max_concurrency) if max_concurrency else None
        self.retries = NUM_RETRIES if num_retries is None else num_retries

    @property
    def cache(self) -> bool:
        """Whether answers are kept. DSPy's own cache does not tell servers apart, so those of a server of one's own are
        kept in ours alone."""
        own = self.kwargs.get("api_base") or server_in_environment(self.model)
        return self._is_cached and (not own or isinstance(dspy.cache, AnswerCache))

    @cache.setter
    def cache(self, is_cached: bool) -> None:
        self._is_cached = is_cached

    @with_callbacks
    def __call__(
        self,
        prompt: Any = None,  # noqa: ANN401 - DSPy's
        *,
        messages: list[dict[str, Any]] | None = None,
        **kwargs: Any,  # noqa: ANN401 - DSPy's
    ) -> Any:  # noqa: ANN401 - DSPy's
        """One call, as of ``dspy.LM``."""
        for attempt in Retrying(**_Patience(self).settings):
            with attempt, self.slots, self._presentable(), self._client() as client:
                # Without DSPy's wrapper: callbacks hear of the call, not of each time that it is made.
                return inspect.unwrap(dspy.LM.__call__)(
                    self, prompt, messages=messages, **kwargs | self._seed(kwargs) | client
                )

    async def _make(self, prompt: Any, messages: list[dict[str, Any]] | None, kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - DSPy's
        async for attempt in AsyncRetrying(**_Patience(self).settings):
            with attempt:
                async with self.slots:
                    with self._presentable(), self._client() as client:
                        # The client's own timeout is that of each read: a server that drips can keep it for ever.
                        async with asyncio.timeout(self.kwargs["timeout"]):
                            return await super()._make(prompt, messages, kwargs | self._seed(kwargs) | client)

    def dump_state(self) -> dict[str, Any]:
        """The state of a ``dspy.LM`` without secrets."""
        state = {name: value for name, value in super().dump_state().items() if name != "extra_headers"}
        if body := state.get("extra_body"):
            state["extra_body"] = public(body)
        return state | {"cache": self._is_cached}

    @contextmanager
    def _presentable(self) -> Iterator[None]:
        """Errors that rise from it hold no secrets, which some servers repeat, and tell a slow server from a missing
        one and a prompt that is too long from one that is wrong."""
        try:
            yield
        except TimeoutError as error:
            raise self._too_slow() from error
        except LMError as error:
            shown = _without(error.message, self._secrets())
            if isinstance(error, LMTransportError) and "read timed out" in shown:
                raise self._too_slow() from error
            if is_too_fast(error):  # it is waited for, for as long as the server asks
                given = {"provider_code": error.provider_code, "status": error.status, "retry_after": error.retry_after}
                raise LMRateLimitError(shown, model=self.model, **given) from None
            if is_too_long(error):  # a program shortens its prompt then
                raise ContextWindowExceededError(model=self.model, message=shown, status=error.status) from None
            if shown == error.message:
                raise
            error.message, error.args = shown, (f"[{self.model}] {shown}",)
            raise error from None

    @contextmanager
    def _client(self) -> Iterator[dict[str, float]]:
        """What has DSPy make a call by a client that has a connection left. It has a client for each timeout, so that
        a millisecond more is another one."""
        with self.slots.client() as number:
            yield {"timeout": self.kwargs["timeout"] + number / 1000} if number else {}

    def _seed(self, kwargs: dict[str, Any]) -> dict[str, int]:
        """The seed of the sample that is asked for. DSPy's ``rollout_id`` is not sent: with the seed of all samples, a
        server would give the same one each time."""
        options = self.kwargs | kwargs
        seed, rollout = options.get("seed"), options.get("rollout_id")
        if seed is None or not rollout:
            return {}
        # Not their sum, so that runs with seeds beside each other share no samples; 31 bits, which all servers take.
        return {"seed": random.Random(f"{seed} {rollout}").getrandbits(31)}

    def _too_slow(self) -> LMTimeoutError:
        return LMTimeoutError(f"no answer in {self.kwargs['timeout']:g} seconds; raise timeout", model=self.model)

    def _secrets(self) -> list[str]:
        headers: Mapping[str, str] = dict(self.kwargs.get("extra_headers") or {})
        key = self.kwargs.get("api_key")
        body = secrets_in(self.kwargs.get("extra_body"))
        # Which variable a provider's client reads is its own affair.
        environment = [value for name, value in os.environ.items() if name.endswith("_API_KEY")]
        login = (part for name, value in headers.items() if name.lower() == "authorization" for part in _parts(value))
        return [value for value in (*headers.values(), *login, key, *body, *environment) if value and value != NO_KEY]


class _Patience:
    """How long one call is made again.

    Args:
        lm: the language model.
    """

    def __init__(self, lm: ServedLM) -> None:
        self._lm = lm
        self._failed = 0
        self._refused_since: float | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """For tenacity."""
        return {
            "retry": self._again,
            "stop": self._ends,
            "wait": self._wait,
            "before_sleep": self._say,
            "reraise": True,
        }

    @staticmethod
    def _again(state: RetryCallState) -> bool:
        error = _error(state)
        return error is not None and is_outage(error)

    def _ends(self, state: RetryCallState) -> bool:
        error = _error(state)
        if (getattr(error, "retry_after", None) or 0.0) > _LONGEST_WAIT:
            return True
        if self._lm.retries and isinstance(error, LMRateLimitError):
            # Not from the call's start: it may have waited for its turn for longer.
            self._refused_since = self._refused_since or time.monotonic()
            return time.monotonic() - self._refused_since > _PATIENCE
        self._failed += 1
        return self._failed > self._lm.retries

    @staticmethod
    def _wait(state: RetryCallState) -> float:
        asked = getattr(_error(state), "retry_after", None)
        return _backoff(state) if asked is None else asked + _jitter(state)

    def _say(self, state: RetryCallState) -> None:
        seconds = state.next_action.sleep if state.next_action else 0.0
        if seconds >= _LONG_WAIT:
            _log.warning("%s is busy: its server is asked again in %.0f s", self._lm.model, seconds)


def _error(state: RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome else None


def _parts(header: str) -> Iterator[str]:
    """What a server may repeat alone of an authorization: its token, or the name and the password in it."""
    scheme, _, token = header.rpartition(" ")
    yield token
    if scheme.lower() == "basic":
        with suppress(ValueError):  # no base64, or no text
            named = b64decode(token, validate=True).decode()
            yield from (named, named.partition(":")[2])


def _without(text: str, secrets: list[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text
