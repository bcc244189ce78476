"""Finding the small model for a step: in a folder, in a repository of the hub, or among what a tracker keeps."""

from collections.abc import Callable
from pathlib import Path

from hoptimizer.common.errors import UserError
from hoptimizer.models.small.base import SmallModel
from hoptimizer.models.small.card import Card, read_card
from hoptimizer.models.small.classifier import Classifier
from hoptimizer.models.small.confidence import Confidence
from hoptimizer.models.small.generator import StepGenerator
from hoptimizer.models.small.knn import KNNClassifier
from hoptimizer.models.small.labeler import Labeler, QueryFilter
from hoptimizer.models.small.source import Fetch, source_folder

_KINDS: dict[str, Callable[[Path, Card], SmallModel]] = {
    "classifier": Classifier,
    "knn": KNNClassifier,
    "generator": StepGenerator,
    "labeler": Labeler,
    "filter": QueryFilter,
}


def load_step_model(source: str, step: str, fetch: Fetch | None = None) -> SmallModel:
    """The small model that a config names for a step.

    Args:
        source: a folder, a hub id, or with ``fetch`` a URI such as ``runs:/ID/PATH``.
        step: name of the step that it is for.
        fetch: downloads a source that has a scheme such as ``runs:`` or ``models:``.

    Raises:
        UserError: there is no such model, it is for another step, or its files are broken.
    """
    folder = source_folder(source, fetch)
    card = read_card(folder)
    if card.step != step:
        raise UserError(f"{source}: is a small model for the step {card.step!r}, not for {step!r}; name it there")
    if card.kind == "confidence":
        return Confidence(folder, card)
    if not any(folder.glob("*.safetensors")):
        raise UserError(f"{folder}: no safetensors in it; copy the whole folder that the training wrote")
    return _KINDS[card.kind](folder, card)
