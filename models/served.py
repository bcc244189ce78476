"""Language models behind a server: how many calls it gets at once, and what must not be shown of them."""

import asyncio
import threading
from collections import deque
from collections.abc import Iterator, KeysView, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import dspy
from dspy.utils.exceptions import LMError, LMTimeoutError, LMTransportError
from pydantic import RootModel, SecretStr

# DSPy's client opens so many connections; a call that waits for one would count that towards its timeout.
CONNECTIONS = 100

_TIMEOUT = 600  # seconds, what that client waits by default
_CLASS = "_dspy_lm_class"


class Slots:
    """So many calls at once, over all threads and event loops, in the order in which they come.

    Copies are the same slots: what they bound is a server.

    Args:
        number: calls at once.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._free = number
        self._waiting: deque[Future[None]] = deque()
        self._lock = threading.Lock()

    def _take(self) -> "Future[None]":
        slot: Future[None] = Future()
        with self._lock:
            if self._free:
                self._free -= 1
                slot.set_result(None)
            else:
                self._waiting.append(slot)
        return slot

    def _give_back(self) -> None:
        with self._lock:
            while self._waiting:
                slot = self._waiting.popleft()
                if slot.set_running_or_notify_cancel():
                    slot.set_result(None)
                    return
            self._free += 1

    def __enter__(self) -> None:
        self._take().result()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._give_back()

    async def __aenter__(self) -> None:
        slot = self._take()
        try:
            await asyncio.wrap_future(slot)
        except asyncio.CancelledError:
            if not slot.cancel():  # it was given at the same moment
                self._give_back()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._give_back()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Slots, (self.number,)


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


class ServedLM(dspy.LM):
    """A ``dspy.LM`` that keeps to a number of calls at once, and whose secrets are in no dump and no error.

    Args:
        model: a model string of DSPy.
        max_concurrency: calls at once; those that DSPy's cache answers count, too.
        options: of ``dspy.LM``; ``api_key`` and ``extra_headers`` are secrets.
    """

    def __init__(self, model: str, max_concurrency: int | None = None, **options: Any) -> None:  # noqa: ANN401 - DSPy's
        super().__init__(model, **options)
        self.slots = Slots(max_concurrency or CONNECTIONS)

    def __call__(
        self,
        prompt: Any = None,  # noqa: ANN401 - DSPy's
        *,
        messages: list[dict[str, Any]] | None = None,
        **kwargs: Any,  # noqa: ANN401 - DSPy's
    ) -> Any:  # noqa: ANN401 - DSPy's
        """One call, as of ``dspy.LM``."""
        with self.slots, self._presentable():
            return super().__call__(prompt, messages=messages, **kwargs)

    async def acall(
        self,
        prompt: Any = None,  # noqa: ANN401 - DSPy's
        *,
        messages: list[dict[str, Any]] | None = None,
        **kwargs: Any,  # noqa: ANN401 - DSPy's
    ) -> Any:  # noqa: ANN401 - DSPy's
        """One asynchronous call, as of ``dspy.LM``."""
        async with self.slots:
            with self._presentable():
                return await super().acall(prompt, messages=messages, **kwargs)

    def dump_state(self) -> dict[str, Any]:
        """The state of a ``dspy.LM``, as which it is loaded, without secrets."""
        state = {name: value for name, value in super().dump_state().items() if name != "extra_headers"}
        return state | {_CLASS: "dspy.clients.lm.LM"}

    @contextmanager
    def _presentable(self) -> Iterator[None]:
        """Errors that rise from it hold no secrets, which some servers repeat, and tell a slow server from a missing
        one."""
        try:
            yield
        except LMError as error:
            shown = _without(error.message, self._secrets())
            if isinstance(error, LMTransportError) and "read timed out" in shown:
                seconds = self.kwargs.get("timeout", _TIMEOUT)
                raise LMTimeoutError(f"no answer in {seconds:g} seconds; raise timeout", model=self.model) from error
            if shown == error.message:
                raise
            error.message, error.args = shown, (f"[{self.model}] {shown}",)
            raise error from None

    def _secrets(self) -> list[str]:
        headers: Mapping[str, str] = dict(self.kwargs.get("extra_headers") or {})
        key = self.kwargs.get("api_key")
        return [value for value in (*headers.values(), *([key] if key != "none" else [])) if value]


def _without(text: str, secrets: list[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text
