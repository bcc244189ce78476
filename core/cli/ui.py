"""``hop ui``."""

import contextlib
import signal
import sys
import webbrowser
from typing import Annotated

import typer

from hoptimizer.cli.screen.options import Overrides, RunOption, read_overrides, store_uri


def ui_command(
    overrides: Overrides = None,
    run: RunOption = None,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; another one if it is taken.", min=0, max=65535)] = 5000,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser, too.")] = True,
) -> None:
    """Show runs in MLflow: those of an experiment, with their headline metrics, or with --run one of them.

    The address is printed. Ctrl-C ends it. Of a tracking.uri that is a server, the page there is opened.

    Examples:

        hop ui

        hop ui data=atlas tracking.uri=sqlite:///mlflow.db

        hop ui --run 1f2e3d --port 5001
    """
    from hoptimizer.cli.screen.console import working
    from hoptimizer.comparison import page_of
    from hoptimizer.tracking.journal import find_run
    from hoptimizer.tracking.pages import served
    from hoptimizer.tracking.server import check_server, is_mlflow_server, store_errors, store_failure

    uri = store_uri(overrides or ())
    check_server(uri)
    named = None
    with working():
        if run is not None:
            tracker, run_id = find_run(uri, run)
            uri, found = tracker.uri, tracker.get(run_id)
        else:
            found = None
            if any(not word.startswith("tracking.uri=") for word in overrides or ()):
                named = read_overrides(overrides, {"data": "atlas"}).experiment
    if is_mlflow_server(uri):
        try:
            page = page_of(uri, found, named)
        except store_errors() as error:
            raise store_failure(uri, error) or error from error
        _open(uri.rstrip("/") + page, browser)
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the pages' server ends as well
    with contextlib.suppress(KeyboardInterrupt), served(uri, host, port) as (address, process):
        _open(address + page_of(uri, found, named), browser)
        process.wait()


def _open(page: str, browser: bool) -> None:
    """Tell a page's address, and open it where somebody looks at the terminal."""
    from hoptimizer.cli.screen.console import tell
    from hoptimizer.common.urls import without_secrets

    tell(f"MLflow: {without_secrets(page)}")
    if browser and sys.stdout.isatty():
        webbrowser.open(page)
