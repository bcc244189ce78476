"""What the small models that take steps over have in common."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Self

from hoptimizer.models.small.card import Card


class SmallModel(ABC):
    """A model in a folder that fulfils a step (:class:`~hoptimizer.models.small.step_model.StepModel`).

    Args:
        folder: its files.
        card: the folder's.

    Attributes:
        folder, card: as given.
    """

    def __init__(self, folder: Path, card: Card) -> None:
        self.folder, self.card = folder, card

    @abstractmethod
    async def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Take the step.

        Args:
            inputs: the card's input fields; passages as texts.

        Returns:
            the output field; of one that chooses also ``probability``: of two labels the positive one's, else the
            chosen one's.
        """

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        # Copies of a program share their small models: optimizers copy programs by the dozen.
        return self
