"""A compiled program as an MLflow model. MLflow runs this file when it loads the model; nothing is unpickled.

A copy of this file stays with every logged model, so that it stands on hoptimizer's public names alone.
"""

from typing import Any

import mlflow
from mlflow.models import set_model
from mlflow.pyfunc import PythonModelContext


class VariantModel(mlflow.pyfunc.PythonModel):
    """Answers questions with the variant that lies beside the model's code."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load the variant."""
        from hoptimizer import load_variant

        self.program = load_variant(context.artifacts["variant"])

    # MLflow makes a schema of the type of what comes out, warns where it is open, and steps differ by program.
    def predict(  # type: ignore[no-untyped-def] # noqa: ANN201
        self,
        context: PythonModelContext,
        model_input: list[str],
        params: dict[str, Any] | None = None,
    ):
        """Answer questions.

        Args:
            context: MLflow's.
            model_input: the questions.
            params: not used.

        Returns:
            for each question its ``answer``, the ``passages`` it came from and the ``steps`` that led to it.
        """
        from hoptimizer import answer_all

        return answer_all(self.program, model_input)


set_model(VariantModel())
