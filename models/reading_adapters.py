"""DSPy's prompt formats, which write what calls have in common once, and read answers as people would."""

import marshal
import re
from functools import lru_cache
from typing import Any, Literal, get_args, get_origin

import dspy
from dspy.adapters.utils import parse_value
from dspy.utils.exceptions import AdapterParseError

from hoptimizer.common.strict import shallow
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
            return super().format_demos(signature, without_marks(plain))

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
    return super(_Reading, adapter).format_demos(signature, without_marks(marshal.loads(demos)))


def _lists(signature: type[dspy.Signature]) -> list[str]:
    """The outputs that are lists."""
    return [name for name, field in signature.output_fields.items() if get_origin(field.annotation) is list]


def choices(signature: type[dspy.Signature]) -> dict[str, Any]:
    """The outputs that are one of several choices, with their types.

    Args:
        signature: a step's signature.

    Example:
        >>> from hoptimizer.models.reading_adapters import choices
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
