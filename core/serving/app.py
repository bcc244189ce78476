"""The routes that every server of ours has."""

from collections.abc import Collection
from importlib.metadata import version

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from starlette.middleware.base import RequestResponseEndpoint

from hoptimizer.serving.keys import key_check
from hoptimizer.serving.metrics import CONTENT_TYPE
from hoptimizer.serving.refusals import say_refusals
from hoptimizer.serving.work import Work


def make_app(title: str, work: Work, keys: Collection[str], *routers: APIRouter) -> FastAPI:
    """An app with routes of its own, and ``/health``, ``/ready`` and ``/metrics``.

    All but ``/health`` and ``/ready`` ask for a key where there are keys.

    Args:
        title: what it calls itself.
        work: counts and limits its requests.
        keys: of which a request has to bring one; empty where anyone may ask.
        routers: its own routes.
    """
    app = FastAPI(
        title=title, version=version("hoptimizer"), max_body_size=work.limits.body, docs_url=None, redoc_url=None
    )
    say_refusals(app)
    guarded = [Depends(key_check(keys))]

    @app.middleware("http")
    async def counted(request: Request, call_next: RequestResponseEndpoint) -> Response:
        status = 500
        try:
            response = await call_next(request)
            status = response.status_code
            return response
        finally:
            # Paths that no route has are whatever a client writes.
            route = request.scope.get("route")
            work.metrics.request(getattr(route, "path", "other"), status)

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether the process lives."""
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> dict[str, str | int]:
        """Whether another request is taken on."""
        work.admission.check()
        return {"status": "ready", "working": work.admission.working, "waiting": work.admission.waiting}

    @app.get("/metrics", dependencies=guarded)
    async def metrics() -> Response:
        """Counts for Prometheus."""
        return Response(work.metrics.text(), media_type=CONTENT_TYPE)

    for router in routers:
        app.include_router(router, dependencies=guarded)
    return app
