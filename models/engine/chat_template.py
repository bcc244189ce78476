"""Messages as the text that a language model reads."""

import contextlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import jinja2

from hoptimizer.common.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, str]
"""A message, with its ``role`` and ``content``."""

# What marks a turn in a chat template, token of its own or not: <|user|>, [INST].
_MARK = re.compile(r"<[^\s<>]+>|\[/?[A-Z_]+]")

_control_names: "WeakKeyDictionary[PreTrainedTokenizerBase, re.Pattern[str]]" = WeakKeyDictionary()


def render(tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message], templated: bool) -> str:
    """The text that a language model continues with its next message.

    Args:
        tokenizer: the model's tokenizer, which has the chat template; that of a base model has none.
        messages: the conversation, which may begin with a message of the system.
        templated: whether to use the template; else messages follow one another as they are.

    Raises:
        UserError: the template fails.

    Within a message, whatever its role, control tokens are mere words: a passage ends no turn.
    """
    messages = [{**message, "content": as_words(tokenizer, message["content"])} for message in messages]
    if not templated or tokenizer.chat_template is None:
        return "\n\n".join(message["content"] for message in messages) + "\n\n"
    try:
        return _template(tokenizer, messages)
    except jinja2.TemplateError as error:
        # Some templates refuse the system role: its message goes before the first of the user's.
        if len(messages) > 1 and messages[0]["role"] == "system":
            system, first, *rest = messages
            together = {**first, "content": f"{system['content']}\n\n{first['content']}"}
            with contextlib.suppress(jinja2.TemplateError):
                return _template(tokenizer, [together, *rest])
        reason = " ".join(str(error).split())
        raise UserError(
            f"{tokenizer.name_or_path}: its chat template fails ({reason}); mend it, or give prompt_format=plain"
        ) from error


def leading_tokens(tokenizer: "PreTrainedTokenizerBase", templated: bool) -> list[int]:
    """The special token that a text begins with, where the tokenizer has one; a chat template writes its own.

    Args:
        tokenizer: the model's tokenizer.
        templated: whether :func:`render` is to use the template.
    """
    if templated and tokenizer.chat_template is not None:
        return []
    first = tokenizer("")["input_ids"][:1]
    return first if first == [tokenizer.bos_token_id] else []


def as_words(tokenizer: "PreTrainedTokenizerBase", text: str) -> str:
    """A text in which the names of control tokens, such as ``<|im_end|>``, are mere words: ``< |im_end|>``.

    A space, which every tokenizer keeps apart, and which is seen where a model copies the name.

    Args:
        tokenizer: says what is a control token: its special tokens, and what marks the turns in its chat template.
        text: what a message says, or what a model learns to write.
    """
    if tokenizer not in _control_names:
        _control_names[tokenizer] = _pattern(tokenizer)
    return _control_names[tokenizer].sub(r"\g<0> ", text)


def _pattern(tokenizer: "PreTrainedTokenizerBase") -> re.Pattern[str]:
    """Finds the first character of each control token; names may overlap, so that the rest is looked at alone."""
    special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    template = tokenizer.chat_template
    # Some tokenizers have several templates, by name.
    sources = template.values() if isinstance(template, dict) else [template or ""]
    marks = {mark for source in sources for mark in _MARK.findall(source)}
    names: dict[str, list[str]] = {}
    for name in sorted(special | marks):
        if len(name) > 1:  # a single character is a part of ordinary texts
            names.setdefault(name[0], []).append(re.escape(name[1:]))
    # By the first character, which is what a long text is searched for.
    return re.compile("|".join(f"{re.escape(first)}(?={'|'.join(rest)})" for first, rest in names.items()) or "(?!)")


def _template(tokenizer: "PreTrainedTokenizerBase", messages: list[Message]) -> str:
    """The messages as the template, which anybody may have written, lays them out; transformers runs it in a sandbox.

    Raises:
        jinja2.TemplateError: it fails.
    """
    try:
        return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    except jinja2.TemplateError:
        raise
    except Exception as error:  # whatever its expressions raise
        raise jinja2.TemplateRuntimeError(f"{type(error).__name__}: {error}") from error
