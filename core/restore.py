"""What the MLflow models that version 0.1.0 logged import: their code is a copy of that version's."""

from typing import Any

from hoptimizer import compiled
from hoptimizer.programs import Program
from hoptimizer.upgrade import upgraded_state
from hoptimizer.workbench import Workbench


def restore(bench: Workbench, state: dict[str, Any], variant: str) -> Program:
    """As :func:`hoptimizer.compiled.restore`, from a state in the names of version 0.1.0."""
    return compiled.restore(bench, upgraded_state(state), variant)
