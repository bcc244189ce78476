"""What a server says where it gives no answer."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from hoptimizer.common.errors import as_line


class Refusal(Exception):
    """A request that gets no answer.

    Args:
        status: of HTTP.
        kind: a word for programs, such as ``overloaded``.
        message: a line for people.
        retry_after: seconds after which the same request may succeed.
    """

    def __init__(self, status: int, kind: str, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.retry_after = status, kind, retry_after

    def as_dict(self) -> dict[str, Any]:
        """The error in the form that OpenAI's clients read."""
        return {"error": {"message": as_line(str(self)), "type": self.kind, "param": None, "code": self.kind}}

    def response(self) -> JSONResponse:
        """The response over HTTP."""
        headers = {"Retry-After": str(self.retry_after)} if self.retry_after else {}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.as_dict(), self.status, headers)


def invalid(message: str, status: int = 422) -> Refusal:
    """The refusal of what was asked wrongly."""
    return Refusal(status, "invalid_request", message)


def say_refusals(app: FastAPI) -> None:
    """Let every error of an app have the same form, that of :meth:`Refusal.as_dict`."""

    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> JSONResponse:
        return error.response()

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        return invalid("; ".join(map(_line, error.errors()))).response()

    @app.exception_handler(HTTPException)
    async def failed(request: Request, error: HTTPException) -> JSONResponse:
        kind = "too_large" if error.status_code == 413 else "invalid_request"
        return Refusal(error.status_code, kind, str(error.detail)).response()


def _line(error: dict[str, Any]) -> str:
    if error["type"] == "json_invalid":
        return f"the request is no JSON: {error['ctx']['error']}"
    where: Sequence[Any] = error["loc"][1:] or error["loc"]
    return f"{'.'.join(map(str, where))}: {error['msg']}"
