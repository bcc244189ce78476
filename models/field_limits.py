"""How long the text fields of an answer may be, so that a server's tokens do not run out before its last field."""

import copy
import json
from collections.abc import Mapping
from typing import Any

FIELD_RESERVE = 32
"""Tokens kept for every field that is still to come, where the budget allows it."""

# Nine of ten stretches of atlas' passages have more characters to a token, by SmolLM2's and Qwen2.5's tokenizers alike.
TEXT = 3
# By Qwen2.5's, Chinese, Japanese and Korean sentences have 1.3 to 1.5, Hindi ones 1.1 and Russian ones 2.4.
_OTHER_SCRIPTS = 1
DENSITIES = (TEXT, _OTHER_SCRIPTS)
"""The characters of a token that are reckoned with."""
# Braces, quotes and names have fewer.
_MARKS = 2
# llama.cpp refuses a schema with longer ones, and vLLM takes a second to compile any.
_LONGEST = 2000


def characters_per_token(inputs: Mapping[str, Any]) -> int:
    """How many characters of an answer a token has at least, in all likelihood: by the script of what is asked.

    Args:
        inputs: the fields of a request. One that is a text, as a question is, tells the language of the answer; lists,
            as of passages, need not.

    Example:
        >>> from hoptimizer.models.field_limits import characters_per_token
        >>> [characters_per_token({"question": one}) for one in ("Où est-elle née ?", "她在哪里出生？")]
        [3, 1]
    """
    texts = [text for text in inputs.values() if isinstance(text, str)]
    is_other = any(2 * len(text.encode("ascii", "ignore")) < len(text) for text in texts)
    return _OTHER_SCRIPTS if is_other else TEXT


def with_limits(schema: dict[str, Any], max_tokens: int, per_token: int = TEXT) -> dict[str, Any]:
    """A schema in which every text before the last field has a ``maxLength``, in characters.

    A server writes tokens until they run out: a long thought leaves none for the answer after it, and what was written
    can't be parsed. Decoding in this process counts tokens as they are written; a schema can only say beforehand how
    many characters a field may have. So every later field has its reserve, and the texts share what is left. Limits
    that no runaway text would keep a server from for long, of 2,000 characters and more, are left out.

    Args:
        schema: of an object.
        max_tokens: of the answer.
        per_token: the characters that a token has at least, in all likelihood.

    Example:
        >>> from hoptimizer.models.field_limits import with_limits
        >>> fields = {"thought": {"type": "string"}, "answer": {"type": "string"}}
        >>> with_limits({"type": "object", "properties": fields}, max_tokens=48)["properties"]
        {'thought': {'type': 'string', 'maxLength': 51}, 'answer': {'type': 'string'}}
    """
    fields = schema["properties"]
    texts = [name for name in list(fields)[:-1] if fields[name].get("type") == "string" and "enum" not in fields[name]]
    if not texts:
        return schema
    room = max(0, max_tokens - len(json.dumps(dict.fromkeys(fields, ""))) // _MARKS)
    reserve = min(FIELD_RESERVE, room // len(fields))
    longest = (room - reserve * (len(fields) - len(texts))) // len(texts) * per_token
    if longest >= _LONGEST:
        return schema
    limited = copy.deepcopy(schema)
    for name in texts:
        limited["properties"][name].setdefault("maxLength", longest)
    return limited
