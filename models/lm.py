"""DSPy language models from settings."""

import os
from typing import Any
from weakref import WeakKeyDictionary

# Before litellm is imported: its first call would fetch a price list over the network, and so would DSPy's.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import dspy
from dspy.clients.model_metadata import model_info, rate
from dspy.utils.exceptions import LMConfigurationError
from pydantic import SecretStr

from hoptimizer.common.errors import UserError
from hoptimizer.common.urls import with_basic_auth
from hoptimizer.models.adapters import LMAdapter
from hoptimizer.models.engine.calls import RolloutCallback
from hoptimizer.models.engine.engine import (
    DEFAULT_MAX_TOKENS,
    AsyncLocalEngine,
    LocalEngine,
    is_local,
    release_outdated,
)
from hoptimizer.models.same_calls import OnceLM
from hoptimizer.models.served import SecretHeaders, ServedLM
from hoptimizer.models.settings import NO_KEY, LMSettings, PromptFormat
from hoptimizer.models.usage import look_at_weights
from hoptimizer.models.weights.catalog import known

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
        _as_it_is_now(settings.model)
        templated = prompt_format != "plain"
        lm: dspy.LM = OnceLM(
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


def _as_it_is_now(model: str) -> None:
    """See to it that a model that was trained again in its folder answers with its new weights, no cache in their
    place."""
    release_outdated(model)
    look_at_weights(model)


def _served(settings: LMSettings) -> ServedLM:
    try:
        return ServedLM(
            settings.model,
            temperature=settings.sent_temperature,
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
        _as_it_is_now(model)
        templated = lm.engine.templated
        engines = {"engine": LocalEngine.of(model, templated), "async_engine": AsyncLocalEngine.of(model, templated)}
    copied = lm.copy(model=model, **engines)
    copied.fine_tuned = True
    return copied


def is_tuned(lm: dspy.BaseLM) -> bool:
    """Whether an LM was made by :func:`tuned`."""
    return getattr(lm, "fine_tuned", False)


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


def price(model: str, prompt_tokens: float, completion_tokens: float) -> float | None:
    """What tokens cost in US dollars, as if the provider cached none of them; ``None`` where it is not known.

    Args:
        model: a model string of DSPy, by whose list of prices it is known.
        prompt_tokens: tokens that are read.
        completion_tokens: tokens that are written.

    Example:
        >>> from hoptimizer.models.lm import price
        >>> price("openai/gpt-4o-mini", 1e6, 1e6), price("openai/my-own", 1e6, 1e6)
        (0.75, None)
    """
    info = model_info(*model.split("/", 1)) if "/" in model else {}
    read, written = rate(info, "input_cost_per_token"), rate(info, "output_cost_per_token")
    return None if read is None or written is None else prompt_tokens * read + completion_tokens * written


def _client_options(settings: LMSettings) -> dict[str, Any]:
    options = _given(settings, "seed", "top_p", "reasoning_effort", "timeout", "num_retries", "extra_body")
    headers: dict[str, SecretStr] = {}
    if settings.api_base:
        options["api_base"], basic = with_basic_auth(settings.api_base)
        headers = {name: SecretStr(value) for name, value in basic.items()}
    if settings.api_key:
        options["api_key"] = settings.api_key.get_secret_value()
    elif settings.api_base and settings.speaks_openai and "OPENAI_API_KEY" not in os.environ:
        options["api_key"] = NO_KEY
    if headers := headers | (settings.extra_headers or {}):
        options["extra_headers"] = SecretHeaders(headers)
    return options


def _given(settings: LMSettings, *names: str) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(settings, name)) is not None}
