"""Reading what a language model wrote: its answer without the thinking before it, the choice that it made, how much
of a list came whole, and what of it can be written down; and keeping apart from that what it read.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

END_OF_THOUGHTS = "</think>"
"""What reasoning models write between their thoughts and the answer; for those known it is one token."""

# Chat templates of some open the tag in the prompt.
_THOUGHTS = re.compile(rf"\s*(?:<think>)?.*?{END_OF_THOUGHTS}", re.DOTALL)
_UNFINISHED = re.compile(r"\s*<think>")
# What an answer's parts are found by: DSPy's field markers, and the ends of thoughts.
_MARKS = re.compile(r"\[(?=\[ ## \w+ ## ]])|<(?=/?think>)")
# What may stand around a choice: spaces, quotes, brackets, markdown, the full stop.
_AROUND = re.compile(r"^[\W_]+|[\W_]+$")
# A string in JSON, whole or cut off.
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*(?:"|$)', re.DOTALL)
# What may stand after an item of a list.
_NEXT_ITEM = re.compile(r"\s*(?:,\s*|$)")
# What ends a choice that an explanation follows.
_EXPLAINED = r"[*_`\"']*(?:\s*(?:[.,:;!(\n–—]|- )|\s+(?:because|since|as)\b)"
# What may stand after the last list of a whole answer: braces, fences, the mark that DSPy's chat format ends with.
_END = re.compile(r"[\s}`]*(?:\[\[ ## completed ## ]]\s*)?$")


def without_thoughts(text: str) -> str:
    """What a reasoning model answered after its thoughts; nothing, if it came to no end of them.

    >>> without_thoughts("<think>Warsaw is a city.</think> yes")
    'yes'
    >>> without_thoughts("<think>Warsaw is")
    ''
    """
    if found := _THOUGHTS.match(text):
        return text[found.end() :].strip()
    return "" if _UNFINISHED.match(text) else text


def without_marks(value: Any) -> Any:  # noqa: ANN401 - any field of any signature
    """A value whose texts, quoted in an answer, look like no part of it.

    >>> without_marks(["[[ ## answer ## ]] Zanzibar", "A </think> B"])
    ['[ [ ## answer ## ]] Zanzibar', 'A < /think> B']
    """
    if isinstance(value, str):
        return _MARKS.sub(r"\g<0> ", value)
    if isinstance(value, dict):
        return {key: without_marks(inner) for key, inner in value.items()}
    return [without_marks(inner) for inner in value] if isinstance(value, list) else value


def writable(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """A value whose texts can be written to a file: halves of a character, which JSON may name, are question marks.

    >>> writable({"answer": ["Lyon \\ud83d"]})
    {'answer': ['Lyon ?']}
    """
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {writable(key): writable(inner) for key, inner in value.items()}
    return [writable(inner) for inner in value] if isinstance(value, list) else value


def chosen(text: str, choices: Sequence[object]) -> object | None:
    """The one of several choices that a text names, alone or before an explanation; ``None`` if it names none.

    Case, markdown and punctuation around it do not count, unless choices differ in nothing else.

    >>> [chosen(text, ["yes", "no"]) for text in ("**Yes.**", "No, it was in Paris.", "no (not named)", "not sure")]
    ['yes', 'no', 'no', None]
    """
    names = {_plain(str(choice)): choice for choice in choices}
    if len(names) < len(choices) or "" in names:
        return None
    said = _plain(text)
    # The longest first: one choice may begin as another.
    for name in sorted(names, key=len, reverse=True):
        if said == name or re.match(re.escape(name) + _EXPLAINED, said):
            return names[name]
    return None


def whole_items(text: str, field: str) -> int | None:
    """How many items of a field's list came whole, where the answer was cut off in the list; else ``None``.

    Args:
        text: an answer in DSPy's chat or JSON prompt format.
        field: the field's name.

    >>> whole_items('{"subquestions": ["Who built the mill?", "What is the name of the', "subquestions")
    1
    >>> whole_items('{"subquestions": ["Who built the mill?"]}', "subquestions") is None
    True
    >>> whole_items("[[ ## subquestions ## ]]\\n['Is it a 5\\" gun?', 'Who made it?']", "subquestions") is None
    True
    >>> whole_items('{"subquestions": ["Who built [1]?", "What is the name [2] of', "subquestions")
    1
    """
    opened = re.search(rf'(?:"{field}"\s*:|\[\[ ## {field} ## ]])\s*\[', text)
    if not opened:
        return None
    rest = text[opened.end() :]
    count, end = _leading_items(rest)
    rest = rest[end:]
    # Where a quote stands alone, as in '5" gun', all that follows seems to be a string.
    return None if "]" in _TEXT.sub("", rest) or _END.sub("", rest).endswith("]") else count


def _leading_items(text: str) -> tuple[int, int]:
    """How many values in JSON stand at the start of a text, a comma after each but the last one of the text, and where
    they end.
    """
    decoder, count, place = json.JSONDecoder(), 0, len(text) - len(text.lstrip())
    while place < len(text):
        try:
            _, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            break
        follows = _NEXT_ITEM.match(text, place)
        if follows is None:
            break
        count, place = count + 1, follows.end()
    return count, place


def _plain(text: str) -> str:
    return _AROUND.sub("", text).casefold()
