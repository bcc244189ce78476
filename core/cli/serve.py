"""``hop serve`` and ``hop index serve``."""

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from hoptimizer.cli.screen.options import Json, Overrides, check_parts, is_config, read_overrides, store_uri

_EXTRA = ("fastapi", "uvicorn", "prometheus_client")
_LOCAL = ("127.0.0.1", "::1", "localhost")

Host = Annotated[str, typer.Option(help="The address to listen at; 0.0.0.0 for all of this machine's.")]
Port = Annotated[int, typer.Option(help="The port; 0 for a free one.", min=0, max=65535)]
Keys = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A file of API keys, one a line; without it, HOP_SERVE_KEYS has them."),
]
InFlight = Annotated[
    int | None, typer.Option(help="Requests that are worked on at once; by default workers of the config.", min=1)
]
Queue = Annotated[int, typer.Option(help="Requests that wait for those; beyond it: 503 and Retry-After.", min=0)]
Timeout = Annotated[
    float, typer.Option(help="Seconds for a request, its waiting too; then 504.", min=0.001, max=86_400)
]
Longest = Annotated[int, typer.Option(help="Characters of a question; beyond it: 413.", min=1)]
Body = Annotated[int, typer.Option(help="Bytes of a request; beyond it: 413.", min=1)]


def serve_command(
    source: Annotated[
        str,
        typer.Argument(
            help="A variant: a run's id or the start of it, runs:/ID, models:/NAME/VERSION, or its folder. Or "
            "a config file, or key=value, of a program that is not compiled."
        ),
    ],
    overrides: Overrides = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    name: Annotated[str | None, typer.Option(help="What OpenAI clients call it; by default its program.")] = None,
    keys: Keys = None,
    in_flight: InFlight = None,
    queue: Queue = 1000,
    timeout: Timeout = 300.0,
    longest: Longest = 4000,
    body: Body = 1_000_000,
    as_json: Json = False,
) -> None:
    """Serve a program over HTTP: /answer, and OpenAI's /v1/chat/completions; /health, /ready and /metrics.

    Questions in flight share the batches of models and retriever. SIGTERM and Ctrl-C let what was taken on be answered
    first. API keys are asked for where HOP_SERVE_KEYS or --keys has some.

    Examples:

        hop serve 1f2e3d

        hop serve models:/capitals/1 --port 8080 --in-flight 32

        hop serve data=atlas program=ircot
    """
    check_extra("hop serve")
    from hoptimizer.cli.screen.console import working
    from hoptimizer.serving.admission import Limits
    from hoptimizer.serving.keys import read_keys
    from hoptimizer.serving.server import listening

    known, words = read_keys(keys), list(overrides or ())
    with listening(host, port) as listener:
        with working() as report:
            program = _program(source, words, report)
            from hoptimizer.serving.program import load_models, program_app

            load_models(program)

            config = program.config
            limits = Limits(in_flight or config.workers, queue, timeout, longest, body)
            shown = name or config.program.name
            app = program_app(program, shown, limits, known)
        # Of a config its first word alone would be shown, which may be a key.
        of = config.data.name if is_config(source) else source
        _serve(app, listener, f"{shown} of {of}", timeout, keyed=bool(known), as_json=as_json)


def _program(source: str, words: Sequence[str], report: Any) -> Any:  # noqa: ANN401 - imported late
    if is_config(source):
        config = read_overrides([source, *words], splits=())
        from hoptimizer.compiled import NOT_ASKED

        check_parts(config, skipped=NOT_ASKED)
        from hoptimizer.serving.sources import uncompiled

        return uncompiled(config, report)
    from hoptimizer.serving.sources import variant

    return variant(source, words, store_uri([word for word in words if "=" in word]), report)


def serve_index_command(
    overrides: Overrides = None,
    host: Host = "127.0.0.1",
    port: Port = 8893,
    keys: Keys = None,
    in_flight: Annotated[int, typer.Option(help="Searches that are worked on at once.", min=1)] = 256,
    queue: Queue = 1000,
    timeout: Timeout = 60.0,
    longest: Longest = 32_000,  # with what a model thought, as ITER-RETGEN searches; more does not go into a URL
    as_json: Json = False,
) -> None:
    """Serve an index over HTTP, as dspy.ColBERTv2 and retriever.url ask one: /api/search?query=...&k=...

    Searches that come together are one batch. /health, /ready and /metrics are there, too.

    Examples:

        hop index serve data=atlas

        hop index serve data=atlas retriever=bm25 --port 9000
    """
    check_extra("hop index serve")
    from hoptimizer.cli.screen.console import tell, working
    from hoptimizer.serving.admission import Limits
    from hoptimizer.serving.keys import read_keys
    from hoptimizer.serving.server import listening
    from hoptimizer.workbench import Workbench

    known = read_keys(keys)
    with listening(host, port) as listener:
        with working() as report:
            bench = Workbench(read_overrides(overrides, splits=()), report)
            tell(bench.search_summary())
            retriever = bench.retriever
            from hoptimizer.serving.app import make_app
            from hoptimizer.serving.search_route import search_routes
            from hoptimizer.serving.work import Work

            work = Work("search", Limits(in_flight, queue, timeout, longest))
            app = make_app(f"hoptimizer: {bench.data.name}", work, known, search_routes(retriever, work))
        _serve(
            app, listener, f"{retriever.name} index of {bench.data.name}", timeout, keyed=bool(known), as_json=as_json
        )


def check_extra(command: str) -> None:
    """Make sure that what serves is installed.

    Raises:
        UserError: it is not.
    """
    from hoptimizer.common.errors import UserError

    for module in _EXTRA:
        if importlib.util.find_spec(module) is None:
            raise UserError(f"{command} needs {module.replace('_', '-')}: pip install 'hoptimizer[server]'")


def _serve(app: Any, listener: Any, what: str, timeout: float, *, keyed: bool, as_json: bool) -> None:  # noqa: ANN401 - imported late
    from hoptimizer.cli.screen.console import show, tell
    from hoptimizer.serving.server import address, serve

    url = address(listener)
    open_to_all = not keyed and listener.getsockname()[0] not in _LOCAL
    tell(f"{what}: {url}{' (no API keys: whoever reaches it may ask)' if open_to_all else ''}")
    if as_json:
        show({"serving": what, "url": url, "keys": keyed}, as_json)
        sys.stdout.flush()  # it is read while the server runs
    serve(app, listener, timeout)
