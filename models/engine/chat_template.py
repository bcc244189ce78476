"""Messages as the text that a language model reads."""

from collections.abc import Sequence

import jinja2
from transformers import PreTrainedTokenizerBase

Message = dict[str, str]
"""A message's ``role`` and ``content``."""


def render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], templated: bool) -> str:
    """The prompt of a conversation.

    Args:
        tokenizer: the model's tokenizer, which has the chat template; that of a base model has none.
        messages: the conversation, which may begin with a message of the system.
        templated: whether to use the template; else messages follow one another as they are.
    """
    if not templated or tokenizer.chat_template is None:
        return "\n\n".join(message["content"] for message in messages) + "\n\n"
    try:
        return _template(tokenizer, list(messages))
    except (
        jinja2.TemplateError
    ):  # some templates refuse the system role: its message goes before the first of the user's
        system, first, *rest = messages
        return _template(tokenizer, [{**first, "content": f"{system['content']}\n\n{first['content']}"}, *rest])


def _template(tokenizer: PreTrainedTokenizerBase, messages: list[Message]) -> str:
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
