"""MLflow's pages of a store: a server that shows them, and the address of the page that is looked for."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import mlflow
import requests
from mlflow.entities import Run

from hoptimizer.common.errors import ServiceError, UserError
from hoptimizer.common.urls import http_address, without_secrets
from hoptimizer.tracking.holding import SQLITE, located
from hoptimizer.tracking.naming import FOLDED, KIND, NO_VARIANTS
from hoptimizer.tracking.server import STORE_ERRORS, check_server, outage

# The columns of the page of runs: MLflow keeps such a view as a tag of the experiment.
_VIEW = "hop"
_SHARED_VIEW = f"mlflow.sharedViewState.{_VIEW}"
_MODEL_TRAINING = "workflowType=machine_learning"
# What a run is of, before its scores.
_SAID = ("program.name", "optimizer.name", "lm.default.model")
_RUNS_READ = 200
_START_SECONDS = 120.0
# litellm, which a job of the server imports, fetches its price list and would wait for the network for ever.
_OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


def page_of(uri: str, run: Run | None = None, experiment: str | None = None) -> str:
    """The path of the page to open: a run's; or that of an experiment's runs, whose columns are what they are of and
    the headlines, or MLflow's own where the store refuses to keep these.

    Args:
        uri: the store's tracking URI.
        run: the run that is asked for.
        experiment: the name of the experiment that is asked for; by default that of the latest run.
    """
    if run is not None:
        return f"/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}?{_MODEL_TRAINING}"
    client = mlflow.MlflowClient(tracking_uri=located(uri))
    found = [one for one in client.search_experiments() if experiment in (None, one.name)]
    ids = [one.experiment_id for one in found]
    words = " and ".join(f"tags.`{KIND}` != '{kind}'" for kind in NO_VARIANTS)
    runs = (
        client.search_runs(ids, words, max_results=_RUNS_READ, order_by=["attributes.start_time DESC"]) if ids else []
    )
    if not runs:
        return "/"
    chosen = runs[0].info.experiment_id
    shown = sorted(
        {name for one in runs if one.info.experiment_id == chosen for name in one.data.metrics if _is_headline(name)}
    )
    columns = [*(f"params.`{name}`" for name in _SAID), *(f"metrics.`{name}`" for name in shown)]
    view = {"selectedColumns": columns}
    page = f"/#/experiments/{chosen}/runs"
    try:
        client.set_experiment_tag(chosen, _SHARED_VIEW, json.dumps(view))
    except STORE_ERRORS as error:
        if outage(uri, error):
            raise
        return f"{page}?{_MODEL_TRAINING}"  # an account that may only read
    return f"{page}?viewStateShareKey={_VIEW}&{_MODEL_TRAINING}"


def _is_headline(name: str) -> bool:
    return not name.startswith(FOLDED) and name.count("/") == 1 and name.partition("/")[0] in ("train", "dev", "test")


@contextlib.contextmanager
def served(uri: str, host: str, port: int) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """MLflow's pages of a local store, for as long as this is entered.

    Args:
        uri: the store's tracking URI.
        host: the address to listen at.
        port: the port to listen at; a free one if that is taken.

    Returns:
        the address of the pages, and the process that shows them.

    Raises:
        UserError: there is no such store, or nothing can listen at that address.
        Unreachable: its database gives no answer.
        ServiceError: MLflow does not start.
    """
    if uri.startswith(SQLITE) and not (file := Path(uri.removeprefix(SQLITE))).is_file():
        raise UserError(f"tracking.uri: there is no store at {file} yet; `hop compile` and `hop eval` make one")
    check_server(uri)
    chosen = _free_port(host, port)
    address = http_address(host, chosen)
    command = [sys.executable, "-m", "mlflow", "server", "--workers", "1"]
    # Everybody on the machine can read arguments, and the URI may hold a password.
    environment = os.environ | _OFFLINE | {"MLFLOW_BACKEND_STORE_URI": uri}
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [*command, "--host", host, "--port", str(chosen)], env=environment, stdout=said, stderr=said
        )
        try:
            deadline = time.monotonic() + _START_SECONDS
            while not _is_up(address):
                if process.poll() is not None or time.monotonic() > deadline:
                    said.seek(0)
                    lines = said.read().decode("utf-8", "replace").strip().splitlines()
                    raise ServiceError(f"MLflow does not start on {without_secrets(uri)}: {lines[-1:] or 'no word'}")
                time.sleep(0.1)
            yield address, process
        finally:
            process.terminate()
            process.wait()


def _is_up(address: str) -> bool:
    with contextlib.suppress(requests.RequestException), requests.Session() as session:
        session.trust_env = False  # no proxy leads to a server of this machine
        return session.get(f"{address}/health", timeout=5).ok
    return False


def _free_port(host: str, port: int) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for wanted in (port, 0):
        with contextlib.suppress(OSError), socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, wanted))
            return int(probe.getsockname()[1])
    raise UserError(f"--host {host}: nothing can listen there; give an address of this machine, such as 127.0.0.1")
