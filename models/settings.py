"""The config section that names a language model."""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    SecretStr,
    SerializerFunctionWrapHandler,
    field_serializer,
    field_validator,
    model_serializer,
    model_validator,
)

from hoptimizer.common.urls import public, says_secret, without_secrets
from hoptimizer.common.validation import Section

LOCAL = "local/"

NO_KEY = "none"
"""In the place of a key: clients insist on one, which a server of one's own often needs not."""

# OpenAI's models that reason, whoever serves them: o3, o4-mini, gpt-5.1-mini, but no gpt-5-chat-latest.
_REASONING = re.compile(r"o\d(-(mini|nano|pro|preview))?(-[\d-]+)?|gpt-5(\.\d+)?(?!-chat)(-.+)?")

# Providers that LiteLLM looks up another one's variables for.
_ITS_VARIABLES = {"ollama_chat": "ollama"}
# How variables end that name a provider's server. Where one of the first two is set, DSPy leaves a call to LiteLLM,
# which reads them in this order; the others are Azure's, as its own library has them.
_SERVER = ("BASE_URL", "API_BASE", "OPENAI_ENDPOINT", "OPENAI_RESOURCE")

# How a server is reached, which does not decide on its answers.
_CONNECTION = ("timeout", "num_retries", "max_concurrency")
# What means nothing to a model in this process.
_OF_SERVERS = (
    *("api_base", "api_key", *_CONNECTION, "structured_outputs"),
    *("reasoning_effort", "extra_body", "extra_headers"),
)
# Dumped where they are given: a config without them keeps its digest, by which work is resumed and answers are cached.
_WHERE_GIVEN = (*_CONNECTION, "structured_outputs", "top_p", "reasoning_effort", "extra_body")


def _as_written(value: object) -> object:
    if isinstance(value, int | float):
        # YAML reads 0123 as 83, and 12:30 as 750.
        raise ValueError("expected text, got a number; put it in quotes")
    return value


_Secret = Annotated[SecretStr, BeforeValidator(_as_written)]

PromptFormat = Literal["json", "chat", "plain"]
"""How a call's prompt and answer are laid out."""


class LMSettings(Section):
    """Which language model to use, and how. A plain string stands for a mapping with that ``model`` alone.

    Attributes:
        model: ``local/NAME`` for a model that runs in this process (a name of the weights store, a folder or a hub id),
            else a model string of DSPy such as ``openai/gpt-4o``.
        temperature: 0 for the likeliest text; ``None`` for what the provider does by default, which is all that models
            take that reason: 0 is not sent to those of OpenAI, and where ``reasoning_effort`` is set not by default.
        max_tokens: the most tokens of an answer; ``None`` for 256 with a local model, else for the provider's limit.
        api_base: URL of an OpenAI-compatible server, without a query; a user's name and password in it are sent as
            basic authentication, and not dumped.
        api_key: its key; by default the provider's environment variable. Never dumped.
        prompt_format: how prompts and answers are laid out: ``json`` (DSPy's JSON prompt format), ``chat`` (DSPy's
            field markers), ``plain`` (a document without a chat template, for small models), or ``auto``: what the
            weights store says of a model, json for other local models, chat for all others. With json and plain, a
            local model's answers are bound to the signature's schema.
        structured_outputs: whether a server is sent the schema of each answer, to which it binds what it writes, with
            ``prompt_format: json``; ``None`` for what DSPy knows of the provider's model, which of a server of one's
            own is nothing. With ``plain`` it always is.
        top_p: sample among the likeliest tokens that have this probability together, where the temperature is above 0.
        reasoning_effort: how long a reasoning model is to think, as its provider takes it.
        timeout: the longest wait for a server's answer, in seconds; ``None`` for three minutes.
        num_retries: how often a call is made again that got no answer, as from an overloaded server, after a pause that
            is drawn at random and up to twice as long each time; ``None`` for 3. A call that is refused for coming too
            fast (429) is made again for ten minutes, unless this is 0.
        max_concurrency: the most calls of this model at once, whichever role asks it and whatever the number of
            questions under way; ``None`` for 100. They become fewer while the server refuses some for coming too fast.
        extra_body: what is added to the body of each request, such as ``{"repetition_penalty": 1.1}``; dumped without
            what its names say to be secret.
        extra_headers: HTTP headers of each request. Their values are secrets and never dumped.
        cache: whether to keep answers on disk, so that the same prompt is asked once.
        seed: seed of the sampling, where the temperature is above 0; each further sample of a prompt has its own.

    Example:
        >>> from hoptimizer.models import LMSettings
        >>> LMSettings(model="local/smollm2-135m-instruct").is_local
        True
        >>> LMSettings(model="openai/gpt-4o", temperature=0.7, api_key="secret").model_dump(exclude_none=True)
        {'model': 'openai/gpt-4o', 'temperature': 0.7, 'prompt_format': 'auto', 'cache': True}
    """

    model_config = ConfigDict(frozen=True)

    model: str = Field(min_length=1)
    temperature: float | None = Field(default=0.0, ge=0)
    max_tokens: int | None = Field(default=None, ge=1)
    api_base: str | None = None
    api_key: _Secret | None = Field(default=None, exclude=True)
    prompt_format: Literal["auto"] | PromptFormat = "auto"
    cache: bool = True
    seed: int | None = None
    structured_outputs: Literal[True] | None = None
    top_p: float | None = Field(default=None, gt=0, le=1)
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    timeout: float | None = Field(default=None, gt=0, le=86_400)  # a day
    num_retries: int | None = Field(default=None, ge=0)
    max_concurrency: int | None = Field(default=None, ge=1)
    extra_body: dict[str, JsonValue] | None = None
    extra_headers: dict[str, _Secret] | None = Field(default=None, exclude=True)

    @model_validator(mode="before")
    @classmethod
    def _from_string(cls, value: Any) -> Any:  # noqa: ANN401 - pydantic hands over whatever the config holds
        return {"model": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _local_has_no_server(self) -> "LMSettings":
        given = [name for name in _OF_SERVERS if getattr(self, name) is not None]
        if self.is_local and given:
            verb = "has" if len(given) == 1 else "have"
            raise ValueError(f"{', '.join(given)} {verb} no meaning for {self.model}, which runs in this process")
        return self

    @model_validator(mode="after")
    def _has_a_schema(self) -> "LMSettings":
        if self.structured_outputs and self.prompt_format not in ("json", "plain"):
            raise ValueError(f"structured_outputs goes with prompt_format=json or plain, got {self.prompt_format}")
        return self

    @field_validator("model")
    @classmethod
    def _has_a_name(cls, model: str) -> str:
        provider, slash, name = model.partition("/")
        if slash and not (provider and name):
            raise ValueError("expected a provider and a name, as in openai/gpt-4o")
        return model

    @field_validator("api_base")
    @classmethod
    def _http_alone(cls, url: str | None) -> str | None:
        if url and not url.lower().startswith(("http://", "https://")):
            raise ValueError("begin it with http:// or https://")
        if url and urlsplit(url).query:
            # OpenAI's client would put the path behind it.
            raise ValueError("a server is called without a query; give its key as api_key or in extra_headers")
        return url

    @model_serializer(mode="wrap")
    def _compact(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        kept = {key: value for key, value in dump(self).items() if key not in _WHERE_GIVEN or value is not None}
        if self.temperature != self.sent_temperature:  # read again, it would count as set
            kept.pop("temperature", None)
        return kept

    @field_serializer("api_base")
    def _public(self, url: str | None) -> str | None:
        return url and without_secrets(url)

    @field_serializer("extra_body")
    def _body_without_secrets(self, body: dict[str, JsonValue] | None) -> JsonValue:
        return public(body)

    @staticmethod
    def deciding(dumped: Mapping[str, Any]) -> dict[str, Any]:
        """Of dumped settings what decides on answers, which the connection to the server does not.

        The server does, also where the environment names it: another may have another model of the same name.
        """
        kept = {key: value for key, value in dumped.items() if key not in _CONNECTION}
        server = None if kept.get("api_base") else server_in_environment(kept["model"])
        return kept | {"api_base": server} if server else kept

    @property
    def sent_temperature(self) -> float | None:
        """The temperature of each call; ``None`` where none is sent."""
        reasons = _REASONING.fullmatch(self.model.split("/")[-1].lower())
        thinks = self.reasoning_effort not in (None, "none") and "temperature" not in self.model_fields_set
        return None if thinks or (reasons and not self.temperature) else self.temperature

    @property
    def is_local(self) -> bool:
        """Whether the model runs in this process."""
        return self.model.startswith(LOCAL)

    @property
    def speaks_openai(self) -> bool:
        """Whether the model is asked as OpenAI's are, by whichever server."""
        return self.model.startswith("openai/")

    @property
    def shown(self) -> str:
        """The model, and the host that it contacts where that is not the provider's own."""
        server = self.api_base or server_in_environment(self.model)
        return f"{self.model} at {urlsplit(without_secrets(server)).netloc}" if server else self.model

    @property
    def name(self) -> str:
        """The model without the ``local/`` prefix."""
        return self.model.removeprefix(LOCAL)


def server_in_environment(model: str) -> str | None:
    """The server that variables such as ``OPENAI_BASE_URL`` name for a provider's models, without secrets.

    Args:
        model: a model string of DSPy.

    Example:
        >>> import os
        >>> from hoptimizer.models.settings import server_in_environment
        >>> os.environ["OPENAI_BASE_URL"] = "http://me:word@host/v1"
        >>> server_in_environment("openai/gpt-4o"), server_in_environment("local/smollm2-135m-instruct")
        ('http://host/v1', None)
        >>> del os.environ["OPENAI_BASE_URL"]
        >>> os.environ["OLLAMA_API_BASE"] = "http://host:11434"
        >>> server_in_environment("ollama_chat/llama3")
        'http://host:11434'
        >>> del os.environ["OLLAMA_API_BASE"]
    """
    provider, slash, _ = model.partition("/")
    if not slash or model.startswith(LOCAL) or not provider.isascii():
        return None
    provider = _ITS_VARIABLES.get(provider, provider)
    values = (os.environ.get(f"{provider.upper()}_{ending}") for ending in _SERVER)
    return next((without_secrets(value) for value in values if value), None)


def secrets_in(body: JsonValue) -> Iterator[str]:
    """The texts in the body of a request whose names say that they are secrets.

    Args:
        body: what is added to requests.

    Example:
        >>> from hoptimizer.models.settings import secrets_in
        >>> list(secrets_in({"team": {"token": "abc"}, "top_k": 5}))
        ['abc']
    """
    if isinstance(body, dict):
        for name, value in body.items():
            if says_secret(name) and isinstance(value, str):
                yield value
            else:
                yield from secrets_in(value)
    elif isinstance(body, list):
        for value in body:
            yield from secrets_in(value)
