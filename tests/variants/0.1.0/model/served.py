"""A compiled program as an MLflow model. MLflow runs this file when it loads the model; nothing is unpickled."""

import json
from pathlib import Path
from typing import Any

import mlflow
import yaml
from mlflow.models import set_model
from mlflow.pyfunc import PythonModelContext


class ServedProgram(mlflow.pyfunc.PythonModel):
    """Answers questions with the variant that lies beside the model's code."""

    def load_context(self, context: PythonModelContext) -> None:
        """Build the program from its config and state."""
        from hoptimizer.config import make_config
        from hoptimizer.restore import restore
        from hoptimizer.workbench import Workbench

        folder = Path(context.artifacts["variant"])
        config = make_config(yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8")))
        self.bench = Workbench(config)
        with self.bench.active():
            state = json.loads((folder / "program.json").read_text(encoding="utf-8"))
            self.program = restore(self.bench, state, str(folder))

    # MLflow makes a schema of the type of what comes out, warns where it is open, and steps differ by program.
    def predict(  # type: ignore[no-untyped-def]
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
            for each question its ``answer``, the ids of the ``passages`` and the ``steps`` that led to it.
        """
        from hoptimizer.workbench import ask_all

        return ask_all(self.bench, self.program, model_input)


set_model(ServedProgram())
