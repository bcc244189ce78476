"""What a small model must offer to take a step of a program over."""

from typing import Any, Protocol


class StepModel(Protocol):
    """Fulfils one step's signature in place of a language model.

    It is awaited as a predictor is, once a step; calls that are under way together may be answered in one batch.
    """

    async def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Take the step.

        Args:
            inputs: the signature's input fields by name; a passage is shown as text, ``"title: text"``.

        Returns:
            the signature's output fields by name, each of its type or as text that reads as one; also, where the
            model has it, ``probability``: how sure it is, from 0 to 1.
        """
        ...
