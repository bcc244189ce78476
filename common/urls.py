"""URLs in the form that logs and files may show."""

import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes, urlencode, urlsplit, urlunsplit

# At the end of a name: "stop_token_ids" and "max_tokens" are none.
_SECRET = re.compile(
    r"(key|token|secret|(?<![a-z])pass|passphrase|password|passwd|pwd|auth|authorization|sig|signature|credentials?"
    r"|odbc_connect|extra_headers(\.[^.]+)?)$",
    re.IGNORECASE,
)
# Drivers take a password as it is, with "/" and "#" in it.
_USER = re.compile(r"://[^:/@]*(:[^@]*)?@")
_DATABASES = ("postgresql", "postgres", "mysql", "mariadb", "mssql", "oracle")
_URL = re.compile(r"\b[\w+]+://[^\s'\"]+")
# Clients quote a header that they can't send, as one with a line break, and a key may be in it.
_HEADER = re.compile(r"(header value[^'\"]{0,60}?)b?(['\"]).*?\2", re.IGNORECASE | re.DOTALL)


def says_secret(name: str) -> bool:
    """Whether a name says that its value is a secret.

    Args:
        name: of a parameter, a key, or a dotted path to one.

    Example:
        >>> from hoptimizer.common.urls import says_secret
        >>> says_secret("api-key"), says_secret("api-version")
        (True, False)
    """
    return bool(_SECRET.search(name))


def text_without_secrets(text: str) -> str:
    """A text whose URLs are shown as :func:`without_secrets` shows them, without the headers of requests.

    Args:
        text: any text, such as an error's.

    Example:
        >>> from hoptimizer.common.urls import text_without_secrets
        >>> text_without_secrets("no answer from http://me:word@host/v1?key=abc (refused)")
        'no answer from http://host/v1 (refused)'
        >>> text_without_secrets("Illegal header value b'Bearer sk-1\\n'")
        'Illegal header value ***'
    """
    return _HEADER.sub(r"\1***", _URL.sub(lambda found: without_secrets(found[0]), text))


def line_without_secrets(error: BaseException) -> str:
    """An error's message on one line, its URLs as :func:`without_secrets` shows them.

    Args:
        error: any error, of a library too.

    Example:
        >>> from hoptimizer.common.urls import line_without_secrets
        >>> line_without_secrets(OSError("no answer\\n  from http://me:word@host/v1"))
        'no answer from http://host/v1'
    """
    return text_without_secrets(" ".join(str(error).split()))


def without_secrets(url: str) -> str:
    """A URL without the user name and password, and without the keys in its query, that it may hold.

    Args:
        url: any URL; of its query, what the names say to be secret is dropped.

    Example:
        >>> from hoptimizer.common.urls import without_secrets
        >>> without_secrets("https://me:word@host:8000/v1?api-version=2&api-key=abc")
        'https://host:8000/v1?api-version=2'
        >>> without_secrets("sqlite:///mlflow.db")
        'sqlite:///mlflow.db'
        >>> without_secrets("postgresql://me:pass/word@host/mlflow")
        'postgresql://host/mlflow'
        >>> without_secrets("http://me:word@[")
        'http://...'
    """
    if url.partition("://")[0].partition("+")[0] in _DATABASES:
        url = _USER.sub("://", url)
    try:
        parts = urlsplit(url)
    except ValueError:  # nothing in it can be told apart
        return f"{url.partition('://')[0]}://..."
    query = parse_qsl(parts.query, keep_blank_values=True)
    shown = [(name, value) for name, value in query if not says_secret(name)]
    if "@" not in parts.netloc and shown == query:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=urlencode(shown)))


def public(value: Any, hidden: str | None = None) -> Any:  # noqa: ANN401 - plain data
    """Plain data without what its names say to be secret, its URLs as :func:`without_secrets` shows them.

    Args:
        value: mappings, lists and values.
        hidden: stands in the place of a secret; by default its key is left out, too.

    Example:
        >>> from hoptimizer.common.urls import public
        >>> public({"api_key": "abc", "url": "http://me:word@host", "k": 5})
        {'url': 'http://host', 'k': 5}
        >>> public({"lm.default.api_key": "abc"}, hidden="***")
        {'lm.default.api_key': '***'}
    """
    if isinstance(value, Mapping):
        kept = {key: inner for key, inner in value.items() if hidden is not None or not says_secret(str(key))}
        return {key: hidden if says_secret(str(key)) else public(inner, hidden) for key, inner in kept.items()}
    if isinstance(value, str):
        return text_without_secrets(value)
    return [public(inner, hidden) for inner in value] if isinstance(value, list) else value


def names_host(url: str) -> bool:
    """Whether a text is a URL of HTTP that says which host is asked.

    Args:
        url: any text.

    Example:
        >>> from hoptimizer.common.urls import names_host
        >>> [names_host(url) for url in ("http://localhost:8893/api", "http://[", "http://host:port", "http:///api")]
        [True, False, False, False]
    """
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna")
        return parts.scheme in ("http", "https") and bool(host) and parts.port != 0
    except ValueError:  # of brackets, ports, and names that no host can have
        return False


def http_address(host: str, port: int) -> str:
    """The URL of a server at an address of this machine.

    Args:
        host: a name, or an address of version 4 or 6.
        port: its port.

    Example:
        >>> from hoptimizer.common.urls import http_address
        >>> http_address("localhost", 5000), http_address("::1", 5000)
        ('http://localhost:5000', 'http://[::1]:5000')
    """
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def with_basic_auth(url: str) -> tuple[str, dict[str, str]]:
    """A URL without its user name and password, and the header that says them.

    Args:
        url: any URL.

    Example:
        >>> from hoptimizer.common.urls import with_basic_auth
        >>> with_basic_auth("http://me:word@host/v1")
        ('http://host/v1', {'Authorization': 'Basic bWU6d29yZA=='})
        >>> with_basic_auth("http://host/v1")
        ('http://host/v1', {})
    """
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, {}
    basic = b64encode(unquote_to_bytes(user)).decode()
    return urlunsplit(parts._replace(netloc=host)), {"Authorization": f"Basic {basic}"}
