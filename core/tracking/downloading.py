"""Downloads of what MLflow keeps. A store may be a stranger's: where its files are, and what they are, is its say."""

from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import mlflow
from mlflow.utils.file_utils import local_file_uri_to_path
from mlflow.utils.uri import append_to_uri_path, is_local_uri

from hoptimizer.common.errors import UserError
from hoptimizer.common.paths import check_links, is_within
from hoptimizer.common.urls import without_secrets

# Artifacts that MLflow asks a tracking server for, with the user's name, password or token.
_OF_SERVERS = ("http", "https", "mlflow-artifacts")


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
    return download(run.info.artifact_uri, part, uri, folder)


def download(root: str, part: str, uri: str, folder: Path) -> Path:
    """Download a part of a run's or a model's artifacts.

    Args:
        root: the URI of all of them.
        part: its place among them.
        uri: the tracking URI.
        folder: where it goes.

    Raises:
        UserError: it lies elsewhere than the others, or another server would be asked for it.
        mlflow.exceptions.MlflowException: or ``OSError``, where it can't be had.

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
