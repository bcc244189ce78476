"""DSPy adapters: the prompt formats of local models, and one adapter that gives every language model its own."""

import copy
import json
import marshal
import re
from functools import lru_cache
from typing import Any, Literal, get_args, get_origin

import dspy
import pydantic
from dspy.adapters.utils import format_field_value, parse_value
from dspy.clients.base_lm import BaseLM
from dspy.utils.exceptions import AdapterParseError

from hoptimizer.common.strict import shallow
from hoptimizer.models.engine.engine import is_local
from hoptimizer.models.reading import chosen, whole_items, without_marks, without_thoughts, writable

# A mark at the end of a line on which something else stands; one in the middle is a mention.
_MARK = re.compile(r"(?<!\n)(\[\[ ## \w+ ## \]\])(?=[ \t]*$)", re.MULTILINE)


class _Reading(dspy.Adapter):
    """Reads answers as people would: thoughts before an answer are none of it, "**Yes.**" is a yes, and the item of a
    list at which the tokens ran out is no item. What a passage says in the marks of the prompt format is mere words.

    DSPy's own adapters take an output of a ``Literal`` type only if it is letter by letter one of the choices, ``True``
    and ``False`` with nothing around them, and half an item for a whole one.
    """

    def format(self, signature: type[dspy.Signature], demos: list[Any], inputs: dict[str, Any]) -> list[dict[str, Any]]:
        """The messages of a call, in which only the prompt format itself has its marks."""
        return super().format(signature, demos, without_marks(dict(inputs)))

    def format_system_message(self, signature: type[dspy.Signature]) -> str:
        """What every call of a step begins with, which is written once."""
        return _system_message(self, signature, signature.instructions)  # type: ignore[arg-type] # classes are hashable

    def format_demos(self, signature: type[dspy.Signature], demos: list[Any]) -> list[dict[str, Any]]:
        """The messages of the demonstrations, which are the same in many calls and written once."""
        # An example made from an annotation has fields for the steps of every program.
        plain = [{name: demo[name] for name in signature.fields if name in demo} for demo in demos]
        try:
            return list(map(dict, _demonstrations(self, signature, marshal.dumps(plain))))  # type: ignore[arg-type] # likewise
        except ValueError:  # they hold more than Python's own kinds of values, such as images
            return super().format_demos(signature, list(map(without_marks, plain)))

    def parse(self, signature: type[dspy.Signature], completion: str) -> dict[str, Any]:
        """The fields of an answer.

        Raises:
            AdapterParseError: it can't be read.
        """
        text = without_thoughts(completion)
        if not text:
            message = "The answer holds nothing but thoughts; raise max_tokens if they were cut off."
            raise AdapterParseError(type(self).__name__, signature, completion, message)
        try:
            # What is nested further than anything that is meant would be repaired for minutes.
            fields = writable(super().parse(_with_texts(signature), shallow(text)))  # type: ignore[arg-type] # classes are hashable
        except (ValueError, RecursionError) as error:
            raise AdapterParseError(type(self).__name__, signature, completion, str(error)) from error
        fields |= {name: fields[name][: whole_items(text, name)] for name in _lists(signature)}
        try:
            return fields | {name: _choice(fields[name], type_) for name, type_ in choices(signature).items()}
        except ValueError as error:
            raise AdapterParseError(type(self).__name__, signature, completion, str(error), fields) from error


@lru_cache(maxsize=256)
def _system_message(adapter: _Reading, signature: type[dspy.Signature], instructions: str) -> str:
    """DSPy's, with the instructions that the signature has by now: DSPy allows them to be set."""
    return super(_Reading, adapter).format_system_message(signature)


@lru_cache(maxsize=256)
def _demonstrations(adapter: _Reading, signature: type[dspy.Signature], demos: bytes) -> list[dict[str, Any]]:
    """The messages of demonstrations, which come as bytes of this process so that equal ones are known by them."""
    return super(_Reading, adapter).format_demos(signature, list(map(without_marks, marshal.loads(demos))))


def _lists(signature: type[dspy.Signature]) -> list[str]:
    """The outputs that are lists."""
    return [name for name, field in signature.output_fields.items() if get_origin(field.annotation) is list]


def choices(signature: type[dspy.Signature]) -> dict[str, Any]:
    """The outputs that are one of several choices, with their types.

    Args:
        signature: a step's signature.

    Example:
        >>> from hoptimizer.models.adapters import choices
        >>> choices(dspy.Signature("question -> sure: bool, answer: str"))
        {'sure': <class 'bool'>}
    """
    types = {name: field.annotation for name, field in signature.output_fields.items()}
    return {name: type_ for name, type_ in types.items() if type_ is bool or get_origin(type_) is Literal}


@lru_cache(maxsize=256)  # making a signature takes most of a millisecond
def _with_texts(signature: type[dspy.Signature]) -> type[dspy.Signature]:
    """A signature whose choices are texts, so that they are read before they are checked."""
    for name in choices(signature):
        signature = signature.with_updated_fields(name, type_=str)
    return signature


def _choice(text: Any, type_: Any) -> Any:  # noqa: ANN401 - the text, or a default; a type annotation
    named = chosen(text, get_args(type_) or (True, False)) if isinstance(text, str) else None
    return parse_value(text, type_) if named is None else named


class ReadingChatAdapter(_Reading, dspy.ChatAdapter):
    """DSPy's chat prompt format. A mark behind an answer ends it; DSPy takes it for a part of the answer."""

    def parse(self, signature: type[dspy.Signature], completion: str) -> dict[str, Any]:
        """As DSPy's, with marks that end a line on one of their own."""
        return super().parse(signature, _MARK.sub(r"\n\1", completion))

    def _make_json_adapter_fallback(self) -> dspy.JSONAdapter:
        return ReadingJSONAdapter(use_native_function_calling=self.use_native_function_calling)


class ReadingJSONAdapter(_Reading, dspy.JSONAdapter):
    """DSPy's JSON prompt format."""


class SchemaAdapter(ReadingJSONAdapter):
    """DSPy's JSON prompt format with the signature's schema in every case.

    DSPy's own adapter gives up the schema for outputs such as ``dict[str, int]``, which providers refuse; decoding in
    this process can follow it.
    """

    def _prepare_response_format(self, lm: BaseLM, lm_kwargs: dict[str, Any], signature: type[dspy.Signature]) -> None:
        # Callers may change it.
        schema = copy.deepcopy(_schema(signature, closed=not is_local(lm)))  # type: ignore[arg-type] # classes are hashable
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


@lru_cache(maxsize=256)  # making it takes most of a millisecond, for each call
def _schema(signature: type[dspy.Signature], *, closed: bool) -> dict[str, Any]:
    """The schema of a signature's outputs; a closed one allows no others, as Anthropic wants it."""
    fields: dict[str, Any] = {name: (field.annotation, ...) for name, field in signature.output_fields.items()}
    outputs: type[pydantic.BaseModel] = pydantic.create_model("Outputs", **fields)
    schema = outputs.model_json_schema()
    if closed:
        for part in (schema, *schema.get("$defs", {}).values()):
            if "properties" in part:
                part.setdefault("additionalProperties", False)
    return schema


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
        self._plain, self._schema = PlainAdapter(), SchemaAdapter()

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

    def of(self, lm: BaseLM) -> dspy.Adapter:
        """The adapter that lays out the calls of one LM."""
        local = is_local(lm)
        kind = getattr(lm, "prompt_format", "auto")
        if kind == "chat" or (kind == "auto" and not local):
            return self._chat
        if kind == "plain":
            return self._plain
        bound = getattr(lm, "structured_outputs", None)
        return self._schema if local or bound else self._json

    def __call__(
        self,
        lm: BaseLM,
        lm_kwargs: dict[str, Any],
        signature: type[dspy.Signature],
        demos: list,
        inputs: dict[str, Any],
    ) -> list[dict[str, Any]]:
        return _some(self.of(lm)(lm, lm_kwargs, signature, demos, inputs), signature)

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
        adapter = self._schema if adapter is self._json else adapter
        return adapter.format_finetune_data(signature, demos, inputs, outputs)

    async def acall(
        self,
        lm: BaseLM,
        lm_kwargs: dict[str, Any],
        signature: type[dspy.Signature],
        demos: list,
        inputs: dict[str, Any],
    ) -> list[dict[str, Any]]:
        return _some(await self.of(lm).acall(lm, lm_kwargs, signature, demos, inputs), signature)


def _some(outputs: list[dict[str, Any]], signature: type[dspy.Signature]) -> list[dict[str, Any]]:
    """The outputs of a call, which are none where a server's answer holds no choice; a prediction would have no field.

    Raises:
        AdapterParseError: there are none.
    """
    if not outputs:
        raise AdapterParseError("LMAdapter", signature, "", "The server's answer holds no text.")
    return outputs
