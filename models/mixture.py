"""One answer from several prompts, whose distributions of each next token are mixed."""

import copy
from typing import Any

import dspy
from dspy.clients.base_lm import BaseLM

from hoptimizer.models.adapters import LMAdapter


class MixtureAdapter(dspy.Adapter):
    """Lays out one call as several prompts, each with one item of an input, for a model in this process.

    The model chooses each token from the mixture of its distributions after all prompts, within the same grammar as
    after one. A mixture is one call: it is cached as one, its prompt tokens are those of all prompts, and what it
    writes counts once. An answer in the chat prompt format that can't be parsed is not asked for again as JSON.

    Args:
        adapter: lays out each prompt, and reads the answer.
        field: the input whose items have a prompt each.
        weights: of the items in the mixture; they sum to 1.

    Example:
        >>> import dspy
        >>> from hoptimizer.models import LMSettings, build_adapter, build_lm
        >>> from hoptimizer.models.mixture import MixtureAdapter
        >>> read = dspy.Predict("context: list[str], question -> answer")
        >>> context = ["Marie Curie was born in Warsaw.", "Marie Curie lived in Paris."]
        >>> lm = build_lm(LMSettings(model="local/smollm2-135m-instruct", max_tokens=24))
        >>> with dspy.context(lm=lm, adapter=MixtureAdapter(build_adapter(), "context", [0.9, 0.1])):
        ...     prediction = read(context=context, question="Where was Marie Curie born?")
        >>> "Warsaw" in prediction.answer
        True
    """

    def __init__(self, adapter: LMAdapter, field: str, weights: list[float]) -> None:
        super().__init__()
        self._adapter, self._field, self._weights = adapter, field, weights

    def __call__(
        self,
        lm: BaseLM,
        lm_kwargs: dict[str, Any],
        signature: type[dspy.Signature],
        demos: list[Any],
        inputs: dict[str, Any],
    ) -> list[dict[str, Any]]:
        """One call, whose answer is written after all prompts."""
        adapter, options, first = self._laid_out(lm, lm_kwargs, signature, demos, inputs)
        return adapter(lm, options, signature, demos, first)

    async def acall(
        self,
        lm: BaseLM,
        lm_kwargs: dict[str, Any],
        signature: type[dspy.Signature],
        demos: list[Any],
        inputs: dict[str, Any],
    ) -> list[dict[str, Any]]:
        """The same, asynchronously."""
        adapter, options, first = self._laid_out(lm, lm_kwargs, signature, demos, inputs)
        return await adapter.acall(lm, options, signature, demos, first)

    def _laid_out(
        self,
        lm: BaseLM,
        lm_kwargs: dict[str, Any],
        signature: type[dspy.Signature],
        demos: list[Any],
        inputs: dict[str, Any],
    ) -> tuple[dspy.Adapter, dict[str, Any], dict[str, Any]]:
        """What lays out the first prompt, the options of the call, which hold the other ones, and the first inputs."""
        first, *others = [inputs | {self._field: [item]} for item in inputs[self._field]]
        if not others:
            return self._adapter, lm_kwargs, first
        adapter = copy.copy(self._adapter.of(lm))
        # The chat prompt format would ask again in JSON, and know of the first prompt alone.
        adapter.use_json_adapter_fallback = False
        prompts = [adapter.format(signature, demos, one) for one in others]
        # Of what DSPy lets through to an engine, metadata alone has a form that is left to us.
        return adapter, lm_kwargs | {"metadata": {"mixture": {"others": prompts, "weights": self._weights}}}, first
