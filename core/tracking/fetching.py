"""Downloads of what MLflow keeps. A store may be a stranger's: where its files are, and what they are, is its say."""

import re
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import mlflow
from mlflow.exceptions import MlflowException
from mlflow.utils.file_utils import local_file_uri_to_path
from mlflow.utils.uri import append_to_uri_path, is_local_uri

from hoptimizer.common.errors import UserError
from hoptimizer.common.paths import check_links, is_within
from hoptimizer.common.urls import line_without_secrets, without_secrets
from hoptimizer.tracking.artifacts import IN_MODEL, VARIANT

_OF_A_VARIANT = re.compile(rf"runs:/+(?P<run>[^/]+)/(?P<part>{VARIANT}(/.*)?)")
# Artifacts that MLflow asks a tracking server for, with the user's name, password or token.
_OF_SERVERS = ("http", "https", "mlflow-artifacts")


def fetch(source: str, uri: str, folder: Path) -> Path:
    """Download what MLflow keeps.

    Args:
        source: a URI such as ``runs:/ID/variant/steps/STEP`` or ``models:/NAME/VERSION``. What a run's own artifacts
            lack of its variant is looked for in the MLflow model that the run logged, where the weights are.
        uri: the tracking URI.
        folder: where it goes.

    Returns:
        the downloaded folder.

    Raises:
        UserError: there is no such thing, or it lies elsewhere than the store's other files.
    """
    found = _OF_A_VARIANT.fullmatch(source)
    try:
        if found is None:
            return Path(mlflow.artifacts.download_artifacts(source, dst_path=str(folder), tracking_uri=uri))
        return fetch_part(found["run"], found["part"], uri, folder)
    except (MlflowException, OSError) as error:
        try:
            if found and (kept := _in_model(found["run"], uri)):
                return _download(kept, f"{IN_MODEL}/{found['part']}", uri, folder)
        except (MlflowException, OSError):
            pass  # the first error names what was asked for
        reason = line_without_secrets(error)
        store = without_secrets(uri)
        raise UserError(f"{source}: can't be fetched from {store}: {reason}; name what a run there holds") from error


def fetch_part(run_id: str, part: str, uri: str, folder: Path) -> Path:
    """Download a file or a folder of a run's own artifacts.

    Args:
        run_id: the run.
        part: its place among the artifacts.
        uri: the tracking URI.
        folder: where it goes.

    Raises:
        UserError: it lies elsewhere than the run's other files.
        mlflow.exceptions.MlflowException: or ``OSError``, where it can't be had.
    """
    run = mlflow.MlflowClient(tracking_uri=uri).get_run(run_id)
    return _download(run.info.artifact_uri, part, uri, folder)


def _download(root: str, part: str, uri: str, folder: Path) -> Path:
    """Download a part of a run's or a model's artifacts.

    Not by ``runs:/ID``, where MLflow would let a model of the name that a part begins with take the part's place.
    """
    place = append_to_uri_path(root, part)
    server, store = urlsplit(root), urlsplit(uri)
    if server.scheme in _OF_SERVERS and server.netloc and _host(server) != _host(store):
        raise UserError(
            f"{without_secrets(place)}: another server than {without_secrets(uri)}, which is not asked: it would get "
            "your name and key; download the variant from there, and give its folder"
        )
    if is_local_uri(root, is_tracking_or_registry_uri=False):
        local = Path(local_file_uri_to_path(root))
        if not is_within(local, part):
            raise UserError(f"{local / part}: a link that leads out of {local}; put the file itself there")
        check_links(local / part, local)
    return Path(mlflow.artifacts.download_artifacts(place, dst_path=str(folder), tracking_uri=uri))


def _host(parts: SplitResult) -> tuple[str | None, int | None]:
    return parts.hostname, parts.port


def _in_model(run_id: str, uri: str) -> str | None:
    """Where the MLflow model of a run is kept; ``None`` where it has none."""
    client = mlflow.MlflowClient(tracking_uri=uri)
    models = client.get_run(run_id).outputs.model_outputs
    return client.get_logged_model(models[0].model_id).artifact_location if models else None
