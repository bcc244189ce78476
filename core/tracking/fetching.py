"""What a ``runs:/`` or ``models:/`` URI names, wherever its run is kept."""

import hashlib
import re
from pathlib import Path

import mlflow
from filelock import FileLock
from mlflow.exceptions import MlflowException

from hoptimizer.common.errors import UserError
from hoptimizer.common.paths import draft_of, home
from hoptimizer.common.urls import line_without_secrets, without_secrets
from hoptimizer.tracking.downloading import download, fetch_part
from hoptimizer.tracking.holding import located
from hoptimizer.tracking.journal import store_of
from hoptimizer.tracking.models import IN_MODEL, model_of
from hoptimizer.tracking.naming import VARIANT
from hoptimizer.tracking.server import answering, store_errors

_OF_A_RUN = re.compile(r"runs:/+(?P<run>[^/]+)")
_LATEST = "latest"
_OF_A_VERSION = re.compile(rf"models:/+(?P<name>[^/@]+)(/(?P<version>\d+|{_LATEST})|@(?P<alias>[^/@]+))")
_OF_A_MODEL = re.compile(r"models:/+(?P<model>m-[^/@]+)")
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
        UserError: there is no such thing, or it lies elsewhere than the store's other files.
        Unreachable: the server of the tracking URI gives no answer.
    """
    named = _OF_A_RUN.match(source)
    uri = located(store_of(uri, named["run"]) if named else uri)
    found = _OF_A_VARIANT.fullmatch(source)
    try:
        with answering(uri):
            if found is None:
                return Path(mlflow.artifacts.download_artifacts(source, dst_path=str(folder), tracking_uri=uri))
            return fetch_part(found["run"], found["part"], uri, folder)
    except store_errors(OSError) as error:
        try:
            if found and (kept := _in_model(found["run"], uri)):
                return download(kept, f"{IN_MODEL}/{found['part']}", uri, folder)
        except store_errors(OSError):
            pass  # the first error names what was asked for
        reason = line_without_secrets(error)
        store = without_secrets(uri)
        raise UserError(f"{source}: can't be fetched from {store}: {reason}; name what a run there holds") from error


def fetch_once(source: str, uri: str) -> Path:
    """Download a folder of what MLflow keeps, for good.

    DSPy's cache knows a local model by its folder, and answers of a compile or an evaluation that was killed are looked
    for there.

    Args:
        source: as of :func:`fetch`.
        uri: the tracking URI.

    Returns:
        the folder, which is in ``finetuned`` under hoptimizer's home.

    Raises:
        UserError: there is no such thing.
    """
    parent = home() / "finetuned" / hashlib.sha256(source.encode()).hexdigest()[:16]
    folder = parent / Path(source).name
    parent.mkdir(parents=True, exist_ok=True)
    with FileLock(parent / ".lock"):
        if not folder.exists():
            with draft_of(folder) as draft:
                fetch(source, uri, draft).replace(folder)
    return folder


def run_of_model(source: str, uri: str) -> str:
    """The run that made an MLflow model.

    Args:
        source: ``models:/NAME/VERSION``, ``models:/NAME/latest`` or ``models:/NAME@ALIAS`` of the registry, or
            ``models:/ID``.
        uri: the tracking URI, whose registry it is.

    Raises:
        UserError: there is no such model, or the URI names none.
        Unreachable: the server of the tracking URI gives no answer.
    """
    client = mlflow.MlflowClient(tracking_uri=located(uri))
    try:
        with answering(uri):
            if found := _OF_A_VERSION.fullmatch(source):
                name, version, alias = found["name"], found["version"], found["alias"]
                if alias:
                    return str(client.get_model_version_by_alias(name, alias).run_id)
                if version == _LATEST:
                    version = _latest_of(client, name)
                return str(client.get_model_version(name, version).run_id)
            if found := _OF_A_MODEL.fullmatch(source):
                return str(client.get_logged_model(found["model"]).source_run_id)
    except MlflowException as error:
        raise UserError(f"{source}: {line_without_secrets(error)} (in {without_secrets(uri)})") from error
    raise UserError(f"{source}: names no model; expected models:/NAME/VERSION, models:/NAME@ALIAS or models:/ID")


def _latest_of(client: mlflow.MlflowClient, name: str) -> str:
    """The last version of a registered model."""
    versions = client.search_model_versions(f"name = '{name}'", max_results=1, order_by=["version_number DESC"])
    if not versions:
        raise MlflowException(f"the registry has no model {name!r}")
    return str(versions[0].version)


def _in_model(run_id: str, uri: str) -> str | None:
    """Where the MLflow model of a run is kept; ``None`` where it has none."""
    client = mlflow.MlflowClient(tracking_uri=uri)
    model = model_of(client, client.get_run(run_id))
    return model.artifact_location if model else None
