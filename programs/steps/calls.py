"""The language model calls of one step."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback


class StepCalls(BaseCallback):
    """Hears of the calls that a step really makes: an adapter may ask a second time, in another prompt format.

    DSPy's settings are context variables, so that steps that are taken at the same time each hear of their own.

    Attributes:
        number: calls so far; one that DSPy's cache answers is counted, and so is one that fails.
    """

    def __init__(self) -> None:
        self.number = 0

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Within it, the predictor is called once, and the calls that this takes are counted."""
        before = self.number
        try:
            with dspy.context(callbacks=[*dspy.settings.callbacks, self]):
                yield
        finally:
            # A language model of one's own that overrides ``acall`` tells no callback of its calls.
            self.number = max(self.number, before + 1)

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:  # noqa: ANN401 - DSPy's hook
        self.number += 1
