"""What the failure of a language model's call means for the other calls."""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import dspy
from dspy.lm15 import OpenAIChatLM, ProviderError
from dspy.utils.callback import BaseCallback
from dspy.utils.exceptions import (
    LMAuthError,
    LMBillingError,
    LMCollectionLimitError,
    LMConfigurationError,
    LMError,
    LMInvalidRequestError,
    LMRateLimitError,
    LMUnsupportedFeatureError,
    LMUnsupportedModelError,
)

from hoptimizer.common.errors import RefusedQueryError, ServiceError, UserError, as_line
from hoptimizer.common.urls import text_without_secrets

_PERMANENT = (LMAuthError, LMBillingError, LMConfigurationError, LMUnsupportedModelError)
# What is wrong with the call itself: a prompt that is too long or was refused, for instance.
_OF_THE_CALL = (LMInvalidRequestError, LMUnsupportedFeatureError, LMCollectionLimitError)
_NOT_FOUND, _TOO_FAST = 404, 429
# How OpenAI and servers like it say that the money is spent, with the status of a rate limit.
_QUOTA_CODE, _QUOTA_WORDS = "insufficient_quota", "exceeded your current quota"
# Gemini says the same words, with these, of the limit of a minute.
_GEMINIS_LIMIT = re.compile(r"RESOURCE_EXHAUSTED|Quota exceeded for metric")
# How Anthropic says that the money is spent, with the status of a wrong call.
_NO_CREDIT = "credit balance is too low"
# How OpenRouter says that it refused a prompt, with the status of a wrong key.
_MODERATED = re.compile(r"flagged|moderation", re.IGNORECASE)
# OpenAI has a code for it, by which DSPy tells it; servers say it in words alone: vLLM, SGLang and llama.cpp, vLLM of a
# model's length, TGI, and proxies of Anthropic.
_TOO_LONG = re.compile(
    r"context (length|size|window)|maximum model length|max_new_tokens`? must be|prompt is too long", re.IGNORECASE
)
# How a choice ends that a server's filter took out, and the code by which DSPy's client tells a refused prompt.
_FILTERED, _REFUSED_PROMPT = "content_filter", "invalid_prompt"
# As DSPy's client has them.
_normalize, _parse = OpenAIChatLM.normalize_error, OpenAIChatLM.parse_response


def is_permanent(error: BaseException) -> bool:
    """Whether no other call of the model can succeed either: a refused key, a spent quota, an unknown model.

    Example:
        >>> from dspy.utils.exceptions import LMAuthError, LMRateLimitError
        >>> from hoptimizer.models.failures import is_permanent
        >>> is_permanent(LMAuthError("bad key")), is_permanent(LMRateLimitError("too many requests"))
        (True, False)
    """
    if not isinstance(error, LMError) or _is_moderated(error) or refuses_logprobs(error):
        return False
    if isinstance(error, LMRateLimitError):
        said = f"{error.provider_code} {error.message}"
        return error.provider_code == _QUOTA_CODE or (_QUOTA_WORDS in said and not _GEMINIS_LIMIT.search(said))
    return isinstance(error, _PERMANENT) or error.status == _NOT_FOUND or _NO_CREDIT in error.message


def is_outage(error: BaseException) -> bool:
    """Whether a call got no answer through no fault of its own, so that the same call may succeed later.

    Example:
        >>> from dspy.utils.exceptions import ContextWindowExceededError, LMServerError
        >>> from hoptimizer.models.failures import is_outage
        >>> is_outage(LMServerError("overloaded")), is_outage(ContextWindowExceededError())
        (True, False)
    """
    if not isinstance(error, LMError) or isinstance(error, _OF_THE_CALL) or _is_moderated(error):
        return False
    return not is_permanent(error) and not refuses_logprobs(error)


def is_too_long(error: BaseException) -> bool:
    """Whether a server refused a call because its prompt, with the answer, outgrows the model's context.

    Example:
        >>> from dspy.utils.exceptions import LMInvalidRequestError
        >>> from hoptimizer.models.failures import is_too_long
        >>> is_too_long(LMInvalidRequestError("This model's maximum context length is 2048 tokens. However, ..."))
        True
    """
    return isinstance(error, LMInvalidRequestError) and bool(_TOO_LONG.search(error.message))


def refuses_logprobs(error: BaseException) -> bool:
    """Whether a call was refused because the server does not tell how likely its tokens are.

    Some providers refuse it in words alone, and some as if the key were wrong.

    Example:
        >>> from dspy.utils.exceptions import LMAuthError
        >>> from hoptimizer.models.failures import refuses_logprobs
        >>> refuses_logprobs(LMAuthError("You are not allowed to request logprobs from this model"))
        True
    """
    refusals = (LMUnsupportedFeatureError, LMInvalidRequestError, LMAuthError)
    return isinstance(error, refusals) and "logprobs" in error.message.lower()


def is_too_fast(error: BaseException) -> bool:
    """Whether a server refused a call because too many come, though the error says that the call is wrong.

    Anthropic and Gemini limit the tokens of a minute, which DSPy's client takes for a prompt of too many tokens.

    Example:
        >>> from dspy.utils.exceptions import ContextWindowExceededError
        >>> from hoptimizer.models.failures import is_too_fast
        >>> is_too_fast(ContextWindowExceededError(message="30,000 input tokens per minute", status=429))
        True
    """
    return isinstance(error, LMInvalidRequestError) and error.status == _TOO_FAST


def _is_moderated(error: BaseException) -> bool:
    return isinstance(error, LMAuthError) and bool(_MODERATED.search(error.message))


def unusable(
    error: BaseException, who: str = "the language model", section: str = "the lm section"
) -> UserError | None:
    """What a user is told where no question can succeed; ``None`` where others can.

    Args:
        error: what a call raised.
        who: how the message names the language model.
        section: the section of the config that names it.
    """
    if isinstance(error.__cause__, UserError):  # the model could not be loaded
        return error.__cause__
    return UserError(f"{who} can't be used: {one_line(error)}; check {section}") if is_permanent(error) else None


def one_line(error: BaseException) -> str:
    """An exception's message on one line that can be written, without secrets: it may be whatever a server sent."""
    return as_line(text_without_secrets(" ".join(f"{type(error).__name__}: {error}".split())))


def explained(error: BaseException, who: str = "the language model", section: str = "the lm section") -> UserError:
    """What a user is told of a call without whose answer the work can't go on: a ``ServiceError`` where it can later.

    Args:
        error: what the call raised.
        who: how the message names the language model.
        section: the section of the config that names it.
    """
    kind = ServiceError if is_outage(error) else UserError
    return unusable(error, who, section) or kind(f"{who} gave no answer: {one_line(error)}")


def ends_all(error: BaseException) -> bool:
    """Whether a failure is none of its own question: a call got no answer, or no other one can succeed either.

    Example:
        >>> from dspy.utils.exceptions import LMAuthError, LMInvalidRequestError
        >>> from hoptimizer.models.failures import ends_all
        >>> ends_all(LMAuthError("bad key")), ends_all(LMInvalidRequestError("the prompt was filtered"))
        (True, False)
    """
    return is_outage(error) or unusable(error) is not None


class _Stopped(BaseException):
    """Work ends at once, wherever it is.

    It is no ``Exception``, because code that catches those must not catch it: DSPy's threads would score a question 0.
    """

    def __init__(self, reason: UserError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class _Watch(BaseCallback):
    """Ends the work with the first call that got no answer, and with a retriever that fails."""

    def on_lm_end(self, call_id: str, outputs: Any | None, exception: BaseException | None = None) -> None:  # noqa: ANN401 - DSPy's hook
        """Look at how a call ended."""
        _look(exception)

    def on_module_end(self, call_id: str, outputs: Any | None, exception: BaseException | None = None) -> None:  # noqa: ANN401 - DSPy's hook
        """Look at how a program or a step ended: a language model of another make may tell nobody of its calls."""
        _look(exception)


def _look(exception: BaseException | None) -> None:
    if isinstance(exception, UserError) and not isinstance(exception, RefusedQueryError):
        raise _Stopped(exception)
    if exception and ends_all(exception):
        raise _Stopped(explained(exception))


@contextlib.contextmanager
def answered_or_ended() -> Iterator[None]:
    """Work whose result must not depend on an outage: within it, the first call that gets no answer ends it.

    A search that went on would take a question that could not be asked for one that was answered wrong, and choose
    another program for it.

    Raises:
        UserError: a language model can't be used at all.
        ServiceError: a call got no answer, however often it was made; or the retriever got none.
    """
    try:
        with dspy.context(callbacks=[*dspy.settings.callbacks, _Watch()]):
            yield
    except _Stopped as stopped:
        raise stopped.reason from None


def reason(body: Any) -> Any:  # noqa: ANN401 - any JSON
    """Why a server did not answer, where its reply says so anywhere but in an ``error`` with a ``message``.

    TensorRT-LLM and earlier versions of vLLM have the message at the top, what is built with FastAPI a ``detail``, LM
    Studio a text, with a status that says success; OpenRouter puts what failed in the middle of an answer into it.

    >>> from hoptimizer.models.failures import reason
    >>> reason({"object": "error", "message": "The model `a` does not exist."}), reason({"detail": "Not Found"})
    ('The model `a` does not exist.', 'Not Found')
    >>> reason({"choices": [{"error": {"message": "overloaded"}}]})
    'overloaded'
    """
    if not isinstance(body, Mapping) or isinstance(body.get("error"), Mapping):
        return None
    choices = body.get("choices")
    if isinstance(choices, list) and choices:
        failed = choices[0].get("error") if isinstance(choices[0], Mapping) else None
        return failed.get("message", str(failed)) if isinstance(failed, Mapping) else failed
    return body.get("error") or body.get("message") or body.get("detail")


def is_withheld(body: Any) -> bool:  # noqa: ANN401 - any JSON
    """Whether a reply holds no answer because a filter took it out: Azure leaves an empty text, Gemini no choice.

    >>> from hoptimizer.models.failures import is_withheld
    >>> is_withheld({"choices": [{"finish_reason": "content_filter", "message": {"content": None}}]})
    True
    >>> is_withheld({"choices": [{"finish_reason": "stop", "message": {"content": ""}}]})  # what the model said
    False
    """
    if not isinstance(body, Mapping) or not isinstance(choices := body.get("choices"), list):
        return False
    if not choices:
        return True
    first = choices[0] if isinstance(choices[0], Mapping) else {}
    message = first.get("message")
    is_empty = not isinstance(message, Mapping) or not message.get("content")
    return first.get("finish_reason") == _FILTERED and is_empty


def _normalize_error(self: OpenAIChatLM, status: int, body: str) -> ProviderError:
    """An error with its message, wherever that stands: without it nobody knows what to do."""
    try:
        said = reason(json.loads(body))
    except (ValueError, RecursionError):
        said = None
    error: ProviderError = _normalize(self, status, json.dumps({"error": {"message": str(said)}}) if said else body)
    return error


def _parse_response(self: OpenAIChatLM, request: Any, response: Any) -> Any:  # noqa: ANN401 - of DSPy's client
    """An answer; what failed though the status says success is none, which would count as wrong and be kept."""
    body = response.json()
    if said := reason(body):
        raise self._response_error("", str(said))
    if is_withheld(body):
        raise self._response_error(_REFUSED_PROMPT, "the server's filter withheld the answer")
    return _parse(self, request, response)


def read_all_failures() -> None:
    """From now on, DSPy's client reads them."""
    OpenAIChatLM.normalize_error, OpenAIChatLM.parse_response = _normalize_error, _parse_response
