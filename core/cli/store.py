"""``hop sync, register``: what MLflow's store gets."""

from typing import Annotated

import typer

from hoptimizer.cli.screen.options import Json, Overrides, read_overrides, store_uri


def sync_command(overrides: Overrides = None, as_json: Json = False) -> None:
    """Deliver the runs that were kept in the journal, because the MLflow server of tracking.uri gave no answer.

    With tracking.uri, or a config that has it, those of that server are delivered; without, those of every server.
    What can't be delivered stays in the journal, and the exit code is then 1.

    Examples:

        hop sync

        hop sync tracking.uri=http://mlflow.example.org:5000
    """
    from hoptimizer.cli.screen import tables
    from hoptimizer.cli.screen.console import show, tell, working
    from hoptimizer.common.errors import UserError
    from hoptimizer.tracking.journal import journals
    from hoptimizer.tracking.sync import DeliveredRun, deliveries

    uris = [read_overrides(overrides, {"data": "atlas"}).tracking.uri] if overrides else journals()
    delivered: list[DeliveredRun] = []
    failures = []
    with working() as report:
        for uri in uris:
            try:
                delivered.extend(deliveries(uri, report))  # what comes before a failure stays
            except UserError as error:
                failures.append(error)
    show({"delivered": [run.as_dict() for run in delivered]}, as_json, tables.delivered(delivered))
    for failure in failures[:-1]:
        tell(f"hop: {failure}")
    if failures:
        raise failures[-1]


def register_command(
    run: Annotated[str, typer.Argument(help="The MLflow run of a variant: its id, or the start of it.")],
    overrides: Overrides = None,
    name: Annotated[str | None, typer.Option("--name", help="What MLflow's registry calls the model.")] = None,
    as_json: Json = False,
) -> None:
    """Register a variant's model in MLflow's registry, as the next version of a name.

    The run is that of a compile, or of an evaluation of an uncompiled program. Without --name, it is called as the
    MLflow model is: by its program, optimizer and language model.

    Examples:

        hop register 1f2e3d --name capitals

        hop register 1f2e3d --name capitals tracking.uri=http://mlflow.example.org:5000
    """
    from hoptimizer.cli.screen.console import show, working
    from hoptimizer.common.errors import UserError
    from hoptimizer.tracking.holding import located
    from hoptimizer.tracking.journal import find_run
    from hoptimizer.tracking.models import register_variant

    uri = store_uri(overrides or ())
    with working():
        tracker, run_id = find_run(uri, run)
        if tracker.uri != located(uri):
            raise UserError(f"run {run_id} waits in the journal: `hop sync` delivers it; register it then")
        made = register_variant(uri, run_id, name)
    show(made.as_dict(), as_json, f"run {run_id[:8]} is {made.uri}")
