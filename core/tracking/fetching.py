"""Downloads of what MLflow keeps."""

import re
from pathlib import Path

import mlflow
from mlflow.exceptions import MlflowException

from hoptimizer.common.errors import UserError
from hoptimizer.common.urls import line_without_secrets, without_secrets
from hoptimizer.tracking.artifacts import IN_MODEL, VARIANT
from hoptimizer.tracking.journal import store_of
from hoptimizer.tracking.server import answering

_OF_A_RUN = re.compile(r"runs:/+(?P<run>[^/]+)")
_OF_A_VARIANT = re.compile(rf"runs:/+(?P<run>[^/]+)/(?P<part>{VARIANT}(/.*)?)")


def fetch(source: str, uri: str, folder: Path) -> Path:
    """Download what MLflow keeps.

    Args:
        source: a URI such as ``runs:/ID/variant/steps/STEP`` or ``models:/NAME/VERSION``. What a run's own artifacts
            lack of its variant is looked for in the MLflow model that the run logged, where the weights are.
        uri: the tracking URI; a run that waits in its journal is taken from there.
        folder: where it goes.

    Returns:
        the downloaded folder.

    Raises:
        UserError: there is no such thing.
        Unreachable: the server of the tracking URI gives no answer.
    """
    if named := _OF_A_RUN.match(source):
        uri = store_of(uri, named["run"])
    try:
        with answering(uri):
            return _download(source, uri, folder)
    except (MlflowException, OSError) as error:
        try:
            if kept := _in_model(source, uri):
                return _download(kept, uri, folder)
        except (MlflowException, OSError):
            pass  # the first error names what was asked for
        reason = line_without_secrets(error)
        store = without_secrets(uri)
        raise UserError(f"{source}: can't be fetched from {store}: {reason}; name what a run there holds") from error


def _download(source: str, uri: str, folder: Path) -> Path:
    return Path(mlflow.artifacts.download_artifacts(source, dst_path=str(folder), tracking_uri=uri))


def _in_model(source: str, uri: str) -> str | None:
    """Where the MLflow model of a run keeps a part of its variant; ``None`` where the source is none."""
    found = _OF_A_VARIANT.fullmatch(source)
    if found is None:
        return None
    client = mlflow.MlflowClient(tracking_uri=uri)
    models = client.get_run(found["run"]).outputs.model_outputs
    if not models:
        return None
    return f"{client.get_logged_model(models[0].model_id).artifact_location}/{IN_MODEL}/{found['part']}"
