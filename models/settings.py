"""The config section that names a language model."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_serializer, model_validator

from hoptimizer.common.urls import without_password

LOCAL = "local/"

PromptFormat = Literal["json", "chat", "plain"]
"""How a call's prompt and answer are laid out."""


class LMSettings(BaseModel):
    """Which language model to use, and how. A plain string stands for a mapping with that ``model`` alone.

    Attributes:
        model: ``local/NAME`` for a model that runs in this process (a name of the weights store, a folder or a hub id),
            else a model string of DSPy such as ``openai/gpt-4o``.
        temperature: 0 for the likeliest text; ``None`` for what the provider does by default.
        max_tokens: the most tokens of an answer; ``None`` for 256 with a local model, else for the provider's limit.
        api_base: URL of an OpenAI-compatible server; dumped without a user's name and password.
        api_key: its key; by default the provider's environment variable. Never dumped.
        prompt_format: how prompts and answers are laid out: ``json`` (DSPy's JSON prompt format), ``chat`` (DSPy's
            field markers), ``plain`` (a document without a chat template, for small models), or ``auto``: what the
            weights store says of a model, json for other local models, chat for all others. With json and plain, a
            local model's answers are bound to the signature's schema.
        cache: whether to keep answers on disk, so that the same prompt is asked once.
        seed: seed of the sampling, where the temperature is above 0.

    Example:
        >>> from hoptimizer.models import LMSettings
        >>> LMSettings(model="local/smollm2-135m-instruct").is_local
        True
        >>> LMSettings(model="openai/gpt-4o", temperature=0.7, api_key="secret").model_dump(exclude_none=True)
        {'model': 'openai/gpt-4o', 'temperature': 0.7, 'prompt_format': 'auto', 'cache': True}
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(min_length=1)
    temperature: float | None = Field(default=0.0, ge=0)
    max_tokens: int | None = Field(default=None, ge=1)
    api_base: str | None = None
    api_key: SecretStr | None = Field(default=None, exclude=True)
    prompt_format: Literal["auto"] | PromptFormat = "auto"
    cache: bool = True
    seed: int | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_string(cls, value: Any) -> Any:  # noqa: ANN401 - pydantic hands over whatever the config holds
        return {"model": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _local_has_no_server(self) -> "LMSettings":
        if self.is_local and (self.api_base or self.api_key):
            raise ValueError(f"api_base and api_key have no meaning for {self.model}, which runs in this process")
        return self

    @field_serializer("api_base")
    def _public(self, url: str | None) -> str | None:
        return url and without_password(url)

    @property
    def is_local(self) -> bool:
        """Whether the model runs in this process."""
        return self.model.startswith(LOCAL)

    @property
    def name(self) -> str:
        """The model without the ``local/`` prefix."""
        return self.model.removeprefix(LOCAL)
