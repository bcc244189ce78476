"""Messages as the text that a language model reads."""

from collections.abc import Sequence

import jinja2
from transformers import PreTrainedTokenizerBase

Message = dict[str, str]
"""``role`` and ``content``."""


def render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], templated: bool) -> str:
    """The prompt of a conversation.

    Args:
        tokenizer: has the chat template; a base model's has none.
        messages: the first one may be the system's.
        templated: whether to use the template; else messages follow one another as they are.
    """
    if not templated or tokenizer.chat_template is None:
        return "\n\n".join(message["content"] for message in messages) + "\n\n"
    try:
        return _template(tokenizer, list(messages))
    except jinja2.TemplateError:  # some templates know no system role
        system, first, *rest = messages
        return _template(tokenizer, [{**first, "content": f"{system['content']}\n\n{first['content']}"}, *rest])


def _template(tokenizer: PreTrainedTokenizerBase, messages: list[Message]) -> str:
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
