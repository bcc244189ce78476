"""Where runs are kept, as a config says it."""

import os

from pydantic import BaseModel, ConfigDict, Field, field_serializer

from hoptimizer.common.urls import without_secrets
from hoptimizer.genai.choice import Traces

TRACKING_URI = "MLFLOW_TRACKING_URI"
"""MLflow's variable of the environment, which says where runs are kept if a config does not."""


def _default_uri() -> str:
    return os.environ.get(TRACKING_URI) or "sqlite:///mlflow.db"


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

    @field_serializer("uri", "artifacts")
    def _public(self, uri: str | None) -> str | None:
        return uri and without_secrets(uri)
