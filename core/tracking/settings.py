"""Where runs are kept, as a config says it."""

import os
from importlib.metadata import entry_points
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_serializer, field_validator

from hoptimizer.common.errors import UserError
from hoptimizer.common.urls import without_secrets
from hoptimizer.genai.choice import Traces
from hoptimizer.tracking.holding import SQLITE

TRACKING_URI = "MLFLOW_TRACKING_URI"
"""MLflow's variable of the environment, which says where runs are kept if a config does not."""

# Of MLflow's stores; its plugins bring others.
_SCHEMES = {"file", "sqlite", "postgresql", "mysql", "mssql", "http", "https", "databricks", "databricks-uc", "uc"}


def _default_uri() -> str:
    return os.environ.get(TRACKING_URI) or "sqlite:///mlflow.db"


class UnknownRun(UserError):
    """A run is not in the store.

    Args:
        run_id: the run, or the start of its id.
        uri: the store's tracking URI.
    """

    def __init__(self, run_id: str, uri: str) -> None:
        super().__init__(
            f"run {run_id!r}: not in {without_secrets(uri)}; `hop compare data=NAME` lists runs, "
            "tracking.uri=URI names another store"
        )


def is_empty(uri: str) -> bool:
    """Whether a store holds nothing, because its SQLite file is not there; MLflow takes seconds to say the same.

    Args:
        uri: the store's tracking URI.
    """
    plain = uri.startswith(SQLITE) and "?" not in uri and ":memory:" not in uri
    return plain and not Path(uri.removeprefix(SQLITE)).exists()


def _is_known(scheme: str) -> bool:
    return scheme in _SCHEMES or any(point.name == scheme for point in entry_points(group="mlflow.tracking_store"))


class TrackingSettings(BaseModel):
    """Where runs are kept, and how much of each.

    Attributes:
        uri: any MLflow tracking URI; by default that of the environment's ``MLFLOW_TRACKING_URI``, else
            ``sqlite:///mlflow.db``; dumped without a user's name and password.
        experiment: the MLflow experiment; the data set's name by default.
        artifacts: where the experiment keeps its artifacts, such as ``s3://team-mlflow``, if a database is the store;
            an MLflow server has a place of its own for them.
        traces: of which questions a run keeps traces: of up to 20 spread evenly (``sample``), of up to 200 on which a
            step failed or whose answer has an F1 of 0 (``failures``), of ``all``, or of ``none``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    uri: str = Field(default_factory=_default_uri)
    experiment: str | None = None
    # Left out of a config that has none, which is then the one that it was before.
    artifacts: str | None = Field(None, min_length=1, exclude_if=lambda artifacts: artifacts is None)
    traces: Traces = "sample"

    @field_validator("uri")
    @classmethod
    def _has_a_store(cls, uri: str) -> str:
        scheme, separator, _ = uri.partition("://")
        if separator and not _is_known(scheme.partition("+")[0].lower()):
            raise UserError(
                f"tracking.uri: MLflow knows no store {scheme!r}; give sqlite:///FILE, postgresql://HOST/DATABASE or "
                "the URL of an MLflow server"
            )
        return uri

    @field_serializer("uri", "artifacts")
    def _public(self, uri: str | None) -> str | None:
        return uri and without_secrets(uri)
