"""One adapter for programs whose steps use different kinds of language models."""

from typing import Any

import dspy
from dspy.clients.base_lm import BaseLM

from hoptimizer.models.engine.engine import LocalEngine
from hoptimizer.models.plain import PlainAdapter, SchemaAdapter


class LMAdapter(dspy.ChatAdapter):
    """Lays out every call as its own LM wants it.

    Local models get DSPy's JSON layout and a schema, to which their decoding is bound; other models get DSPy's chat
    layout, which asks once more in JSON if an answer can't be parsed (DSPy's own default: two calls, and two in every
    count). ``LMSettings.adapter`` overrides either.
    """

    def __init__(self) -> None:
        super().__init__()
        self._chat, self._json = dspy.ChatAdapter(), dspy.JSONAdapter()
        self._plain, self._schema = PlainAdapter(), SchemaAdapter()

    def of(self, lm: BaseLM) -> dspy.Adapter:
        """The adapter of one LM."""
        local = isinstance(getattr(lm, "engine", None), LocalEngine)
        kind = getattr(lm, "adapter_kind", "auto")
        if kind == "chat" or (kind == "auto" and not local):
            return self._chat
        if kind == "plain":
            return self._plain
        return self._schema if local else self._json

    def __call__(
        self,
        lm: BaseLM,
        lm_kwargs: dict[str, Any],
        signature: type[dspy.Signature],
        demos: list,
        inputs: dict[str, Any],
    ) -> list[dict[str, Any]]:
        return self.of(lm)(lm, lm_kwargs, signature, demos, inputs)

    def format_finetune_data(
        self,
        signature: type[dspy.Signature],
        demos: list[dict[str, Any]],
        inputs: dict[str, Any],
        outputs: dict[str, Any],
    ) -> dict[str, list[Any]]:
        """A conversation to fine-tune DSPy's configured LM on, laid out as that LM is asked.

        Args:
            signature: of the step.
            demos: shown before the request.
            inputs: the request's fields.
            outputs: the fields of the reply, which is the last message.
        """
        adapter = self.of(dspy.settings.lm)
        # DSPy's own JSON adapter can't; the messages are the same.
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
        return await self.of(lm).acall(lm, lm_kwargs, signature, demos, inputs)
