"""What a model must offer to take over a step of a program, and what the small models have in common."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from hoptimizer.models.small.card import Card


class StepModel(Protocol):
    """Fulfils one step's signature in place of a language model.

    It is awaited as a predictor is, once per step; calls that are under way together may be answered in one batch.
    A model that needs more than the fields of its step's signature declares their names in an attribute
    ``extra_inputs``, a frozenset; programs that know them hand them over.
    """

    async def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Take the step.

        Args:
            inputs: the signature's input fields by name; a passage is shown as text, ``"title: text"``.

        Returns:
            The signature's output fields by name, each of its type or as text that can be parsed as it; and, if the
            model can tell, ``probability``: how sure it is, from 0 to 1.
        """
        ...


class SmallModel(ABC):
    """A model in a folder that fulfils a step (:class:`StepModel`). It runs on a GPU if there is one.

    Args:
        folder: its card and, for every kind that was trained, weights as safetensors, config and tokenizer.
        card: the folder's card.

    Raises:
        UserError: the model can't be loaded.

    Attributes:
        folder, card: as given.
        extra_inputs: what it needs beside the input fields of its step's signature.
    """

    extra_inputs: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, folder: Path, card: Card) -> None:
        self.folder, self.card = folder, card

    @abstractmethod
    async def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Take the step.

        Args:
            inputs: the card's input fields; passages as texts.

        Returns:
            The output field by name. A model that chooses also gives ``probability``: that of the positive label where
            there are two, else that of the chosen one.
        """

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        # Copies of a program share their small models: optimizers copy programs by the dozen.
        return self
