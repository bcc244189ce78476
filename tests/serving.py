"""What a variant's run keeps: its files, and its MLflow model, asked in a process that refuses to unpickle anything."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from hoptimizer.tracking.fetching import fetch


def kept(run_id, uri, part):
    """The folder of a part of a run's variant."""
    return fetch(f"runs:/{run_id}/variant/{part}", uri, Path(tempfile.mkdtemp()))


def answer_in_fresh_process(variant, question, folder):
    script = f"""
import json
import cloudpickle
def refuse(*args, **kwargs):
    raise AssertionError("something was unpickled")
cloudpickle.load = cloudpickle.loads = refuse
import mlflow
mlflow.set_tracking_uri("{variant.config.tracking.uri}")
[logged] = mlflow.get_run("{variant.run_id}").outputs.model_outputs
model = mlflow.pyfunc.load_model(f"models:/{{logged.model_id}}")
print(json.dumps(model.predict([{question!r}])))
"""
    result = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    [answer] = json.loads(result.stdout.splitlines()[-1])
    return answer
