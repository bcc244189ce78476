"""Finding the small model for a step: in a folder, in a repository of the hub, or among what a tracker keeps."""

from collections.abc import Callable
from pathlib import Path

from hoptimizer.common.errors import UserError
from hoptimizer.common.paths import expanded
from hoptimizer.models.small.base import SmallModel
from hoptimizer.models.small.card import Card, read_card
from hoptimizer.models.small.classifier import Classifier
from hoptimizer.models.small.confidence import Confidence
from hoptimizer.models.small.generator import StepGenerator
from hoptimizer.models.small.knn import KNNClassifier
from hoptimizer.models.small.labeler import Labeler, QueryFilter

# The files that are read of a repository; none of them can hold code.
_FILES = ["*.json", "*.safetensors", "*.txt", "*.model"]

_KINDS: dict[str, Callable[[Path, Card], SmallModel]] = {
    "classifier": Classifier,
    "knn": KNNClassifier,
    "generator": StepGenerator,
    "labeler": Labeler,
    "filter": QueryFilter,
}

Fetch = Callable[[str], Path]
"""Downloads the files that a URI names, and gives their folder."""


def load_step_model(source: str, step: str, fetch: Fetch | None = None) -> SmallModel:
    """The small model that a config names for a step.

    Args:
        source: a folder, a hub id, or with ``fetch`` a URI such as ``runs:/ID/PATH``.
        step: name of the step that it is for.
        fetch: downloads a source that has a scheme such as ``runs:`` or ``models:``.

    Raises:
        UserError: there is no such model, it is for another step, or its files are broken.
    """
    folder = _folder(source, fetch)
    card = read_card(folder)
    if card.step != step:
        raise UserError(f"{source}: is a small model for the step {card.step!r}, not for {step!r}; name it there")
    if card.kind == "confidence":
        return Confidence(folder, card)
    if not any(folder.glob("*.safetensors")):
        raise UserError(f"{folder}: no safetensors in it; copy the whole folder that the training wrote")
    return _KINDS[card.kind](folder, card)


def _folder(source: str, fetch: Fetch | None) -> Path:
    folder = expanded(source)
    if folder.is_dir():
        return folder
    if ":/" in source:
        if fetch is None:
            raise UserError(f"small model {source!r}: there is no tracker to fetch it from; give a folder or a hub id")
        return fetch(source)
    if source.count("/") == 1 and not source.startswith((".", "/", "~")):
        return _from_hub(source)
    raise UserError(f"small model {source!r}: no such folder; give a folder that a training finished in, or a hub id")


def _from_hub(name: str) -> Path:
    # Imported here: the hub's client takes half a second to import, and folders do not need it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=_FILES))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"small model {name!r}: no such folder, and the hub does not give it ({reason}); give a folder that a "
            "training finished in, or a hub id"
        ) from error
