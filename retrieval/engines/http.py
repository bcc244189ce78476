"""One request to an engine over HTTP, and which of its failures may pass."""

from typing import Any

import requests

from hoptimizer.retrieval.engines.engine import EngineRetriever, NoAnswer

BUSY = (429, 500, 502, 503, 504)
"""Statuses of a server that may answer in a moment."""

UNAUTHORIZED = (401, 403)
"""Statuses of a server that wants another key, or any."""


def respond(engine: EngineRetriever, method: str, url: str, **options: Any) -> requests.Response:  # noqa: ANN401 - of requests
    """What a server answers, whatever its status; no redirect is followed, since a key is for this server.

    Args:
        engine: for whom it is asked.
        method: such as ``GET``.
        url: of the API.
        options: of ``requests.request``.

    Raises:
        NoAnswer: there is none at the moment.
        UserError: it can't be asked so.
    """
    try:
        return requests.request(method, url, allow_redirects=False, **options)
    except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as error:
        raise NoAnswer(type(error).__name__) from error
    except requests.RequestException as error:
        raise engine.refused(str(error)) from error
