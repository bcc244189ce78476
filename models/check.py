"""Whether a language model can answer, found out before a long run."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dspy
from dspy.utils.exceptions import LMError

from hoptimizer.common.errors import ServiceError, UserError
from hoptimizer.common.urls import text_without_secrets, with_basic_auth, without_secrets
from hoptimizer.models.adapters import LMAdapter
from hoptimizer.models.failures import is_outage
from hoptimizer.models.folder import check_model
from hoptimizer.models.lm import build_lm
from hoptimizer.models.served import SecretHeaders
from hoptimizer.models.settings import LOCAL, NO_KEY, LMSettings
from hoptimizer.models.weights.catalog import known
from hoptimizer.models.weights.store import resolve

TIMEOUT = 5.0  # seconds

# Servers refuse calls for other reasons than a long prompt: some models take no system message or no temperature.
_CALL = [{"role": "system", "content": "Answer in one word."}, {"role": "user", "content": "Say: yes"}]
# A server may refuse the limit that the first of two texts has in a schema.
_SIGNATURE = dspy.Signature("question -> thought, answer")
_OTHER_HEADERS = "correct api_key, OPENAI_API_KEY or extra_headers, which may hold a line break or a letter such as ü"
# How LiteLLM, which knows hundreds of providers and the models of some, says that it does not know this one's.
_NO_PROVIDER = "LLM Provider NOT provided"
# Those that answered in this process. A call costs money, and each cell of a study would make one.
_answered: list[LMSettings] = []


def check_lm(settings: LMSettings) -> None:
    """Find out before a long run whether the LM can answer.

    A local model is pulled where it is not installed. A server of one's own is looked for, and what it serves, like a
    provider's model, asked for one word, once in a process.

    Raises:
        ServiceError: its server is out of reach, or has no answer at the moment.
        UserError: the LM can't answer; the message says why, in one line.

    Example:
        >>> from hoptimizer.models import LMSettings, check_lm
        >>> check_lm(LMSettings(model="local/smollm2-135m-instruct"))
        >>> check_lm(LMSettings(model="local/smollm2-135m-instruc"))
        Traceback (most recent call last):
        hoptimizer.common.errors.UserError: unknown model 'smollm2-135m-instruc': did you mean ...
    """
    if settings.is_local:
        _check_local(settings)
        return
    if known(settings.model.removeprefix("local:")):  # said before a provider is looked for, which takes seconds
        raise _no_provider(settings)
    if settings.api_base:
        _check_server(settings)
    if settings not in _answered:
        _ask(settings)
        _answered.append(settings)


def _check_local(settings: LMSettings) -> None:
    folder = Path(resolve(settings.name))
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise UserError(f"{settings.model}: the folder {folder} holds no model: config.json is missing")
        _check_kind(settings, check_model(folder)["config.json"])
        return
    import httpx
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    try:
        if isinstance(config := try_to_load_from_cache(settings.name, "config.json"), str):
            _check_kind(settings, check_model(Path(config).parent)["config.json"])
            return
        get_hf_file_metadata(hf_hub_url(settings.name, "config.json"), timeout=TIMEOUT)
    except (HfHubHTTPError, HFValidationError, OfflineModeIsEnabled, httpx.HTTPError) as error:
        reason = str(error).strip().splitlines()[0] or type(error).__name__
        raise UserError(
            f"{settings.model}: neither a name of the weights store nor a folder, and not on the hub as far as it can "
            f"be reached ({reason}); `hop models list` shows the store's names"
        ) from error


def _check_kind(settings: LMSettings, config: Mapping[str, Any]) -> None:
    if config.get("is_encoder_decoder"):
        # T5's vocabulary has no token for a brace or a line break, which all prompt formats are made of.
        raise UserError(
            f"{settings.model}: sequence-to-sequence models such as T5 can't write what the prompt formats ask for, "
            "and are not served here; take a causal model, or serve this one and give api_base"
        )


def _check_server(settings: LMSettings) -> None:
    import httpx

    shown = without_secrets(str(settings.api_base))
    url, basic = with_basic_auth(str(settings.api_base))
    headers = _key(settings) | basic | dict(SecretHeaders(settings.extra_headers or {}))
    if not all((name + value).isascii() for name, value in headers.items()):
        raise UserError(f"{settings.model}: its headers can't be sent (not ASCII); {_OTHER_HEADERS}")
    try:
        # The answer's status is enough; its body may have no end.
        with httpx.stream("GET", f"{url.rstrip('/')}/models", headers=headers, timeout=TIMEOUT) as reply:
            status = reply.status_code
    except (httpx.InvalidURL, UnicodeError) as error:
        raise UserError(f"{settings.model}: api_base: {shown!r} is no URL ({error}); correct it") from error
    except httpx.LocalProtocolError as error:
        reason = text_without_secrets(str(error))
        raise UserError(f"{settings.model}: its headers can't be sent ({reason}); {_OTHER_HEADERS}") from None
    except httpx.HTTPError as error:
        reason = text_without_secrets(str(error)) or type(error).__name__
        raise ServiceError(
            f"{settings.model}: the server at {shown} can't be reached ({reason}); start it or correct api_base"
        ) from error
    if status in (401, 403) and settings.speaks_openai:
        raise UserError(f"{settings.model}: the server at {shown} refuses the key; set api_key")


def _key(settings: LMSettings) -> dict[str, str]:
    """The header that the key is sent in, where every server knows the same one."""
    if not settings.speaks_openai:
        return {}
    key = settings.api_key.get_secret_value() if settings.api_key else os.environ.get("OPENAI_API_KEY", NO_KEY)
    return {"Authorization": f"Bearer {key}"}


def _ask(settings: LMSettings) -> None:
    try:
        lm = build_lm(settings.model_copy(update={"cache": False}))
        lm(messages=_CALL, **LMAdapter().schema(lm, _SIGNATURE))
    except LMError as error:
        reason = text_without_secrets((error.message.strip() or type(error).__name__).splitlines()[0])
        if _NO_PROVIDER in reason:
            raise _no_provider(settings) from error
        kind = ServiceError if is_outage(error) else UserError
        raise kind(f"{settings.model} does not answer: {reason}{_advice(settings, error)}") from error


def _advice(settings: LMSettings, error: LMError) -> str:
    """What to change where the server's words say what it does not take."""
    said = error.message.lower()
    sent = {"temperature": settings.sent_temperature, "max_tokens": settings.max_tokens}
    for name, value in sent.items():
        if value is not None and name in said and error.status in (400, 422):
            return f"; with {name}=null it is not sent"
    return _on_the_address(settings, error)


def _on_the_address(settings: LMSettings, error: LMError) -> str:
    """What may be wrong with it where the server knows no such page."""
    base = (settings.api_base or "").rstrip("/")
    if not base or base.endswith("/v1") or not settings.speaks_openai or error.status not in (404, 405):
        return ""
    return f"; most servers want an api_base that ends in /v1, got {without_secrets(base)}"


def _no_provider(settings: LMSettings) -> UserError:
    name = settings.model.removeprefix("local:")
    if settings.api_base:
        hint = f"did you mean 'openai/{name}', a model at an OpenAI-compatible server?"
    elif known(name):
        hint = f"did you mean {LOCAL + name!r}?"
    else:
        hint = "expected PROVIDER/NAME, such as openai/gpt-4o, or local/NAME for a model in this process"
    return UserError(f"{settings.model}: names no provider that DSPy knows; {hint}")
