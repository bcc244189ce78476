"""The keys that a server asks for."""

import hmac
import os
from collections.abc import Awaitable, Callable, Collection
from hashlib import sha256
from pathlib import Path

from fastapi import Request

from hoptimizer.common.errors import UserError
from hoptimizer.serving.admission import client
from hoptimizer.serving.refusals import Refusal

VARIABLE = "HOP_SERVE_KEYS"
_SHORTEST = 8


def read_keys(file: Path | None) -> list[str]:
    """The keys of a file, one a line, or else of the environment, between commas; none where neither has any.

    Args:
        file: its lines that begin with # are comments; ``None`` for the environment's ``HOP_SERVE_KEYS``.

    Raises:
        UserError: the file can't be read or has no key, or a key can't be sent or is easily guessed. No message shows
            a key.
    """
    if file is None:
        where, texts = VARIABLE, os.environ.get(VARIABLE, "").split(",")
    else:
        where = f"--keys {file}"
        try:
            texts = file.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise UserError(
                f"{where}: can't be read: {type(error).__name__}; give a text file, one key a line"
            ) from None
        texts = [line for line in texts if not line.lstrip().startswith("#")]
    keys = [text.strip() for text in texts if text.strip()]
    if not keys and (file is not None or VARIABLE in os.environ):
        remedy = "unset it" if file is None else "write one a line, or leave --keys out"
        raise UserError(f"{where}: no key in it; {remedy} to ask for none")
    for number, key in enumerate(keys, 1):
        if len(key) < _SHORTEST or not key.isascii() or not key.isprintable() or " " in key:
            raise UserError(f"{where}: key {number} needs {_SHORTEST} or more letters, digits or signs, and no spaces")
    return keys


def key_check(keys: Collection[str]) -> Callable[[Request], Awaitable[None]]:
    """What lets a request pass that brings one of the keys, as ``Authorization: Bearer KEY`` or ``X-API-Key: KEY``;
    without keys, every request passes. Whose it is, the request knows from then on.
    """
    # Digests have one length, and all are compared: how long it takes tells nothing of a key.
    known = [_digest(key) for key in keys]

    async def check(request: Request) -> None:
        if not known:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            given = request.headers.get("x-api-key", "")
        digest = _digest(given.strip())
        if not sum(hmac.compare_digest(digest, one) for one in known):
            message = "no key, or a wrong one: send Authorization: Bearer KEY, or X-API-Key: KEY"
            raise Refusal(401, "invalid_api_key", message)
        client.set(digest)

    return check


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()
