"""``hop sync``."""

from hoptimizer.cli.screen.options import Json, Overrides, read_overrides


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
    from hoptimizer.tracking.sync import sync_runs

    uris = [read_overrides(overrides, {"data": "atlas"}).tracking.uri] if overrides else journals()
    delivered, failures = [], []
    with working() as report:
        for uri in uris:
            try:
                delivered += sync_runs(uri, report)
            except UserError as error:
                failures.append(error)
    show({"delivered": [run.as_dict() for run in delivered]}, as_json, tables.delivered(delivered))
    for failure in failures[:-1]:
        tell(f"hop: {failure}")
    if failures:
        raise failures[-1]
