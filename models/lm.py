"""DSPy language models from settings."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

# Before litellm is imported: its first call would fetch a price list over the network.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import dspy
from dspy.utils.exceptions import LMConfigurationError, LMError
from pydantic import SecretStr

from hoptimizer.common.errors import ServiceError, UserError
from hoptimizer.common.urls import text_without_secrets, with_basic_auth, without_secrets
from hoptimizer.models.adapters import LMAdapter
from hoptimizer.models.engine.engine import DEFAULT_MAX_TOKENS, AsyncLocalEngine, LocalEngine, RolloutCallback
from hoptimizer.models.folder import check_model
from hoptimizer.models.served import SecretHeaders, ServedLM
from hoptimizer.models.settings import NO_KEY, LMSettings, PromptFormat
from hoptimizer.models.weights.catalog import known
from hoptimizer.models.weights.store import resolve

CHECK_TIMEOUT = 5.0  # seconds

# Copies of LMs by their prompt format. Copying an LM copies its history too, so that each copy is made once.
_in_format: WeakKeyDictionary[dspy.LM, dict[PromptFormat, dspy.LM]] = WeakKeyDictionary()


def build_lm(settings: LMSettings) -> dspy.LM:
    """The LM that settings describe; nothing is loaded or called yet.

    A local model comes as an engine in this process, any other as DSPy's own client for its model string.

    Example:
        >>> from hoptimizer.models import LMSettings, build_lm
        >>> lm = build_lm(LMSettings(model="local/smollm2-135m-instruct", max_tokens=64))
        >>> lm.model, lm.kwargs["max_tokens"]
        ('local/smollm2-135m-instruct', 64)
    """
    prompt_format = chosen_format(settings)
    if settings.is_local:
        templated = prompt_format != "plain"
        lm = dspy.LM(
            settings.model,
            temperature=settings.temperature or 0.0,
            max_tokens=settings.max_tokens or DEFAULT_MAX_TOKENS,
            cache=settings.cache,
            callbacks=[RolloutCallback()],
            engine=LocalEngine.of(settings.model, templated),
            async_engine=AsyncLocalEngine.of(settings.model, templated),
            **_given(settings, "seed", "top_p"),
        )
    else:
        lm = _served(settings)
        lm.structured_outputs = settings.structured_outputs
    lm.prompt_format = prompt_format
    return lm


def _served(settings: LMSettings) -> ServedLM:
    try:
        return ServedLM(
            settings.model,
            temperature=_temperature(settings),
            max_tokens=settings.max_tokens,
            cache=settings.cache,
            max_concurrency=settings.max_concurrency,
            **_client_options(settings),
        )
    except LMConfigurationError as error:  # OpenAI's reasoning models take no small max_tokens
        raise UserError(f"{settings.model}: {' '.join(error.message.split())}") from error


def chosen_format(settings: LMSettings) -> PromptFormat:
    """How an LM's calls are laid out where its settings leave that to us (``auto``).

    Example:
        >>> from hoptimizer.models import LMSettings
        >>> from hoptimizer.models.lm import chosen_format
        >>> models = ("local/smollm2-135m-instruct", "local/qwen2.5-coder-0.5b-instruct", "openai/gpt-4o")
        >>> [chosen_format(LMSettings(model=model)) for model in models]
        ['plain', 'json', 'chat']
    """
    if settings.prompt_format != "auto":
        return settings.prompt_format
    if not settings.is_local:
        return "chat"
    weights = known(settings.name)
    return weights.prompt_format if weights else "json"


def with_prompt_format(lm: dspy.LM, prompt_format: PromptFormat) -> dspy.LM:
    """A local LM whose calls are laid out in a given way, whatever its settings say; any other LM is returned as it is.

    Args:
        lm: an LM that :func:`build_lm` made.
        prompt_format: how prompts and answers are written.
    """
    if not is_local(lm):
        return lm
    copies = _in_format.setdefault(lm, {})
    if prompt_format not in copies:
        templated = prompt_format != "plain"
        copies[prompt_format] = lm.copy(
            engine=LocalEngine.of(lm.model, templated), async_engine=AsyncLocalEngine.of(lm.model, templated)
        )
        copies[prompt_format].prompt_format = prompt_format
    return copies[prompt_format]


def tuned(lm: dspy.LM, model: str) -> dspy.LM:
    """The LM of a fine-tuned model, with all other settings taken from another LM.

    :func:`is_tuned` recognizes it and its copies.

    Args:
        lm: an LM that :func:`build_lm` made; it runs in this process if the fine-tuned model does.
        model: ``local/FOLDER``, or what a provider calls it.
    """
    engines = {}
    if is_local(lm):
        templated = lm.engine.templated
        engines = {"engine": LocalEngine.of(model, templated), "async_engine": AsyncLocalEngine.of(model, templated)}
    copied = lm.copy(model=model, **engines)
    copied.fine_tuned = True
    return copied


def is_tuned(lm: dspy.BaseLM) -> bool:
    """Whether an LM was made by :func:`tuned`."""
    return getattr(lm, "fine_tuned", False)


def is_local(lm: dspy.BaseLM) -> bool:
    """Whether an LM runs in this process."""
    return isinstance(getattr(lm, "engine", None), LocalEngine)


def build_adapter() -> dspy.Adapter:
    """The adapter to configure beside any LM of :func:`build_lm`; it lays out each call as that call's LM wants it.

    Example:
        >>> import dspy
        >>> from hoptimizer.models import LMSettings, build_adapter, build_lm
        >>> lm = build_lm(LMSettings(model="local/smollm2-135m-instruct", max_tokens=24))
        >>> with dspy.context(lm=lm, adapter=build_adapter()):
        ...     prediction = dspy.Predict("city -> larger_than_oslo: bool")(city="Tokyo")
        >>> type(prediction.larger_than_oslo)
        <class 'bool'>
    """
    return LMAdapter()


def check_lm(settings: LMSettings) -> None:
    """Find out before a long run whether the LM can answer.

    A local model is pulled where it is not installed; a server is asked for its models; a provider's model is asked for
    one word.

    Raises:
        ServiceError: its server is out of reach.
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
    elif settings.api_base:
        _check_server(settings)
    else:
        _check_provider(settings)


def _temperature(settings: LMSettings) -> float | None:
    # OpenAI's reasoning models refuse a temperature: our default is left out unless the user set one.
    if "temperature" not in settings.model_fields_set and settings.model.startswith(("openai/o", "openai/gpt-5")):
        return None
    return settings.temperature


def _client_options(settings: LMSettings) -> dict[str, Any]:
    options = _given(settings, "seed", "top_p", "reasoning_effort", "timeout", "num_retries", "extra_body")
    headers: dict[str, SecretStr] = {}
    if settings.api_base:
        options["api_base"], basic = with_basic_auth(settings.api_base)
        headers = {name: SecretStr(value) for name, value in basic.items()}
    if settings.api_key:
        options["api_key"] = settings.api_key.get_secret_value()
    elif settings.api_base and settings.model.startswith("openai/") and "OPENAI_API_KEY" not in os.environ:
        options["api_key"] = NO_KEY
    if headers := headers | (settings.extra_headers or {}):
        options["extra_headers"] = SecretHeaders(headers)
    return options


def _given(settings: LMSettings, *names: str) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(settings, name)) is not None}


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
        get_hf_file_metadata(hf_hub_url(settings.name, "config.json"), timeout=CHECK_TIMEOUT)
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
    key = settings.api_key.get_secret_value() if settings.api_key else os.environ.get("OPENAI_API_KEY", NO_KEY)
    headers = {"Authorization": f"Bearer {key}"} | basic | dict(SecretHeaders(settings.extra_headers or {}))
    try:
        # The answer's status is enough; its body may have no end.
        with httpx.stream("GET", f"{url.rstrip('/')}/models", headers=headers, timeout=CHECK_TIMEOUT) as reply:
            status = reply.status_code
    except (httpx.InvalidURL, UnicodeError) as error:
        raise UserError(f"{settings.model}: api_base: {shown!r} is no URL ({error}); correct it") from error
    except httpx.LocalProtocolError as error:
        reason = text_without_secrets(str(error))
        remedy = "correct api_key, OPENAI_API_KEY or extra_headers, which may hold a line break"
        raise UserError(f"{settings.model}: its headers can't be sent ({reason}); {remedy}") from None
    except httpx.HTTPError as error:
        reason = text_without_secrets(str(error)) or type(error).__name__
        raise ServiceError(
            f"{settings.model}: the server at {shown} can't be reached ({reason}); start it or correct api_base"
        ) from error
    if status in (401, 403):
        raise UserError(f"{settings.model}: the server at {shown} refuses the key; set api_key")


def _check_provider(settings: LMSettings) -> None:
    lm = build_lm(settings.model_copy(update={"cache": False, "num_retries": 0}))
    try:
        lm("Say: yes")
    except LMError as error:
        reason = text_without_secrets(error.message.strip().splitlines()[0])
        raise UserError(f"{settings.model} does not answer: {reason}") from error
