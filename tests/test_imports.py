"""Import cost: the command line, the package's face and the faces that settings are read from stay light."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "dspy", "mlflow", "colbert", "pandas", "matplotlib", "scipy", "litellm")


@pytest.mark.parametrize(
    "statement",
    ["import hoptimizer", "import hoptimizer.cli.app", "import hoptimizer.models", "import hoptimizer.retrieval"],
)
def test_nothing_heavy_is_imported(statement):
    code = f"import sys; {statement}; print([name for name in {HEAVY!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
