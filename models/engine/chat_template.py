"""Messages as the text that a language model reads."""

import contextlib
from collections.abc import Sequence

import jinja2
from transformers import PreTrainedTokenizerBase

from hoptimizer.common.errors import UserError

Message = dict[str, str]
"""A message's ``role`` and ``content``."""


def render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], templated: bool) -> str:
    """The prompt of a conversation.

    Args:
        tokenizer: the model's tokenizer, which has the chat template; that of a base model has none.
        messages: the conversation, which may begin with a message of the system.
        templated: whether to use the template; else messages follow one another as they are.

    Raises:
        UserError: the template fails.
    """
    if not templated or tokenizer.chat_template is None:
        return "\n\n".join(message["content"] for message in messages) + "\n\n"
    try:
        return _template(tokenizer, list(messages))
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


def _template(tokenizer: PreTrainedTokenizerBase, messages: list[Message]) -> str:
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
