"""The routes that every server of ours has."""

from collections.abc import Collection
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Response
from starlette.datastructures import Headers
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hoptimizer.serving.keys import key_check
from hoptimizer.serving.metrics import CONTENT_TYPE
from hoptimizer.serving.refusals import Refusal, say_refusals
from hoptimizer.serving.work import Work


class Counted:
    """Counts the requests of an app by route and status, and refuses those that say that they are too large.

    Args:
        app: the app.
        work: whose limits and counts these are.
    """

    def __init__(self, app: ASGIApp, work: Work) -> None:
        self._app, self._work = app, work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As of ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500

        async def told(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        most, length = self._work.limits.body, Headers(scope=scope).get("content-length", "0")
        try:
            if length.isdecimal() and int(length) > most:
                refusal = Refusal(413, "too_large", f"expected a request of at most {most} bytes, got {length}")
                await refusal.response()(scope, receive, told)
            else:
                await self._app(scope, receive, told)
        finally:
            # Paths that no route has are whatever a client writes.
            self._work.metrics.request(getattr(scope.get("route"), "path", "other"), status)


def make_app(title: str, work: Work, keys: Collection[str], *routers: APIRouter) -> FastAPI:
    """An app with routes of its own, and ``/health``, ``/ready`` and ``/metrics``.

    All but ``/health`` and ``/ready`` ask for a key where there are keys.

    Args:
        title: what it calls itself.
        work: counts and limits its requests.
        keys: of which a request has to bring one; empty where anyone may ask.
        routers: its own routes.
    """
    app = FastAPI(title=title, version=version("hoptimizer"), openapi_url=None, docs_url=None, redoc_url=None)
    say_refusals(app)
    guarded = [Depends(key_check(keys))]
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=work.limits.body)
    app.add_middleware(Counted, work=work)

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

    @app.get("/openapi.json", dependencies=guarded, include_in_schema=False)
    async def openapi() -> dict[str, Any]:
        """The routes and their fields."""
        return app.openapi()

    for router in routers:
        app.include_router(router, dependencies=guarded)
    return app
