"""Where runs are kept, as a config says it."""

import os
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_serializer

from hoptimizer.common.urls import without_secrets

TRACKING_URI = "MLFLOW_TRACKING_URI"
"""MLflow's variable of the environment, which says where runs are kept if a config does not."""

Traces = Literal["failures", "sample", "all", "none"]


def _default_uri() -> str:
    return os.environ.get(TRACKING_URI) or "sqlite:///mlflow.db"


class TrackingSettings(BaseModel):
    """Where runs are kept, and how much of each.

    Attributes:
        uri: any MLflow tracking URI; by default that of the environment's ``MLFLOW_TRACKING_URI``, else
            ``sqlite:///mlflow.db``; dumped without a user's name and password.
        experiment: the MLflow experiment; the data set's name by default.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    uri: str = Field(default_factory=_default_uri)
    experiment: str | None = None

    @field_serializer("uri")
    def _public(self, uri: str) -> str:
        return without_secrets(uri)
