"""DSPy adapters: the prompt formats of local models, and one adapter that gives every language model its own."""

import copy
import json
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import dspy
import pydantic
from dspy.adapters.utils import format_field_value
from dspy.clients.base_lm import BaseLM
from dspy.utils.exceptions import AdapterParseError

from hoptimizer.models.engine.engine import is_local
from hoptimizer.models.field_limits import DENSITIES, TEXT, characters_per_token, with_limits
from hoptimizer.models.reading_adapters import ReadingChatAdapter, ReadingJSONAdapter
from hoptimizer.models.settings import server_in_environment


class SchemaAdapter(ReadingJSONAdapter):
    """DSPy's JSON prompt format with the signature's schema in every case.

    DSPy's own adapter gives up the schema for outputs such as ``dict[str, int]``, which providers refuse; decoding in
    this process can follow it.

    Args:
        per_token: the characters that a token of an answer has at least, in all likelihood.
    """

    def __init__(self, per_token: int = TEXT) -> None:
        super().__init__()
        self._per_token = per_token

    def _prepare_response_format(self, lm: BaseLM, lm_kwargs: dict[str, Any], signature: type[dspy.Signature]) -> None:
        options = lm.kwargs | lm_kwargs
        max_tokens = options.get("max_tokens") if _takes_limits(lm, options) else None
        closed = not is_local(lm)
        made = _schema(signature, closed, max_tokens, self._per_token)  # type: ignore[arg-type] # hashable
        schema = copy.deepcopy(made)  # callers may change it
        lm_kwargs["response_format"] = {"type": "json_schema", "json_schema": {"name": "Outputs", "schema": schema}}

    def format_finetune_data(
        self,
        signature: type[dspy.Signature],
        demos: list[dict[str, Any]],
        inputs: dict[str, Any],
        outputs: dict[str, Any],
    ) -> dict[str, list[Any]]:
        """A conversation whose last message is the reply that holds these outputs."""
        reply = self.format_assistant_message_content(signature, outputs)
        return {"messages": [*self.format(signature, demos, inputs), {"role": "assistant", "content": reply}]}


def _takes_limits(lm: BaseLM, options: dict[str, Any]) -> bool:
    """Whether the length of a text may stand in a schema: servers of one's own that are asked as OpenAI's are, such as
    vLLM, follow it. Providers may refuse the call: Anthropic does. Decoding in this process counts tokens instead."""
    asked_alike = lm.model.partition("/")[0] in ("openai", "hosted_vllm")
    return asked_alike and bool(options.get("api_base") or server_in_environment(lm.model))


@lru_cache(maxsize=256)  # making it takes most of a millisecond, for each call
def _schema(signature: type[dspy.Signature], closed: bool, max_tokens: int | None, per_token: int) -> dict[str, Any]:
    """The schema of a signature's outputs; a closed one allows no others, as Anthropic wants it, and one for so many
    tokens has limits of length."""
    fields: dict[str, Any] = {name: (field.annotation, ...) for name, field in signature.output_fields.items()}
    outputs: type[pydantic.BaseModel] = pydantic.create_model("Outputs", **fields)
    schema = outputs.model_json_schema()
    if closed:
        for part in (schema, *schema.get("$defs", {}).values()):
            if "properties" in part:
                part.setdefault("additionalProperties", False)
    return with_limits(schema, max_tokens, per_token) if max_tokens else schema


class PlainAdapter(SchemaAdapter):
    """Instructions, demonstrations and the request one after the other, each field on a line of its own.

    A model of some hundred million parameters copies a demonstration's pattern, but gets lost among field markers,
    format rules and chat turns: with the same four demonstrations on atlas, SmolLM2-135M has more than twice the F1 in
    this prompt format than in DSPy's JSON prompt format (docs/log.md). Outputs are JSON objects bound to the schema.

    Double quotes are shown as single ones, in demonstrations' outputs too: such a model copies a quoted title without
    the backslash that JSON wants, and its text would end there.
    """

    def format_system_message(self, signature: type[dspy.Signature]) -> str:
        """The instructions, and what the reply holds."""
        fields = ", ".join(
            f"{name} ({info.json_schema_extra['desc']})" for name, info in signature.output_fields.items()
        )
        return f"{signature.instructions}\nReply with JSON: {fields}"

    def format_user_message_content(
        self,
        signature: type[dspy.Signature],
        inputs: dict[str, Any],
        prefix: str = "",
        suffix: str = "",
        main_request: bool = False,
    ) -> str:
        """The inputs, each after its name; a list of texts has one text on each line.

        No text has a line break of its own: after it, a passage could go on as another field.
        """
        fields = [(name, info) for name, info in signature.input_fields.items() if name in inputs]
        lines = [f"{_label(name)}:{_shown(_on_one_line(_requoted(inputs[name])), info)}" for name, info in fields]
        return "\n".join(part for part in (prefix, *lines, suffix) if part)

    def format_assistant_message_content(
        self,
        signature: type[dspy.Signature],
        outputs: dict[str, Any],
        missing_field_message: str | None = None,
    ) -> str:
        """The outputs as the JSON object that the model is to write."""
        values = {name: _requoted(outputs.get(name, missing_field_message)) for name in signature.output_fields}
        return json.dumps(values, indent=2, ensure_ascii=False, default=str)


def _requoted(value: Any) -> Any:  # noqa: ANN401 - any field of any signature
    if isinstance(value, list):
        return [_requoted(one) for one in value]
    return value.replace('"', "'") if isinstance(value, str) else value


def _on_one_line(value: Any) -> Any:  # noqa: ANN401 - any field of any signature
    if isinstance(value, list):
        return [_on_one_line(one) for one in value]
    return " ".join(value.splitlines()) if isinstance(value, str) else value


def _label(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _shown(value: Any, info: Any) -> str:  # noqa: ANN401 - any field of any signature
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "".join(f"\n{item}" for item in value)
    return f" {format_field_value(field_info=info, value=value)}"


class LMAdapter(dspy.ChatAdapter):
    """Lays out every call in the prompt format of the LM that is called.

    Local models get DSPy's JSON prompt format and a schema, to which their decoding is bound. Other models get DSPy's
    chat prompt format, DSPy's own default, which asks a second time in JSON if an answer can't be parsed; both calls
    are counted then. ``LMSettings.prompt_format`` overrides either. With ``LMSettings.structured_outputs``, a server
    gets the schema, too.
    """

    def __init__(self) -> None:
        super().__init__()
        self._chat, self._json = ReadingChatAdapter(), ReadingJSONAdapter()
        # By the characters that a token has; what calls have in common is written once by each of them.
        self._plain = {number: PlainAdapter(number) for number in DENSITIES}
        self._schema = {number: SchemaAdapter(number) for number in DENSITIES}

    def schema(self, lm: BaseLM, signature: type[dspy.Signature]) -> dict[str, Any]:
        """The option of a call by which an answer is bound to the signature's outputs; none, where it is not.

        Args:
            lm: the LM that is to be called.
            signature: what is asked.
        """
        options: dict[str, Any] = {}
        if isinstance(adapter := self.of(lm), SchemaAdapter):
            adapter._prepare_response_format(lm, options, signature)
        return options

    def of(self, lm: BaseLM, inputs: Mapping[str, Any] = MappingProxyType({})) -> dspy.ChatAdapter:
        """The adapter that lays out a call of one LM.

        Args:
            lm: the LM.
            inputs: the request's fields, whose language tells that of the answer.
        """
        local = is_local(lm)
        kind = getattr(lm, "prompt_format", "auto")
        if kind == "chat" or (kind == "auto" and not local):
            return self._chat
        if kind == "plain":
            return self._plain[characters_per_token(inputs)]
        bound = getattr(lm, "structured_outputs", None)
        return self._schema[characters_per_token(inputs)] if local or bound else self._json

    def __call__(
        self,
        lm: BaseLM,
        lm_kwargs: dict[str, Any],
        signature: type[dspy.Signature],
        demos: list,
        inputs: dict[str, Any],
    ) -> list[dict[str, Any]]:
        return _some(self.of(lm, inputs)(lm, lm_kwargs, signature, demos, inputs), signature)

    def format_finetune_data(
        self,
        signature: type[dspy.Signature],
        demos: list[dict[str, Any]],
        inputs: dict[str, Any],
        outputs: dict[str, Any],
    ) -> dict[str, list[Any]]:
        """A conversation to fine-tune DSPy's configured LM on, laid out as that LM is asked.

        Args:
            signature: the step's signature.
            demos: shown before the request.
            inputs: the request's fields.
            outputs: the fields of the reply, which is the last message.
        """
        adapter = self.of(dspy.settings.lm)
        # DSPy's own JSON adapter can't write such conversations; the schema adapter's messages are the same.
        adapter = self._schema[TEXT] if adapter is self._json else adapter
        return adapter.format_finetune_data(signature, demos, inputs, outputs)

    async def acall(
        self,
        lm: BaseLM,
        lm_kwargs: dict[str, Any],
        signature: type[dspy.Signature],
        demos: list,
        inputs: dict[str, Any],
    ) -> list[dict[str, Any]]:
        return _some(await self.of(lm, inputs).acall(lm, lm_kwargs, signature, demos, inputs), signature)


def _some(outputs: list[dict[str, Any]], signature: type[dspy.Signature]) -> list[dict[str, Any]]:
    """The outputs of a call, which are none where a server's answer holds no choice; a prediction would have no field.

    Raises:
        AdapterParseError: there are none.
    """
    if not outputs:
        raise AdapterParseError("LMAdapter", signature, "", "The server's answer holds no text.")
    return outputs
