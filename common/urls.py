"""URLs in the form that logs and files may show."""

import re
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

_SECRET = re.compile(r"key|token|secret|passw|pwd|auth|sig|credential", re.IGNORECASE)


_URL = re.compile(r"\b\w+://[^\s'\"]+")


def text_without_secrets(text: str) -> str:
    """A text whose URLs are shown as :func:`without_secrets` shows them.

    Args:
        text: any text, such as an error's.

    Example:
        >>> from hoptimizer.common.urls import text_without_secrets
        >>> text_without_secrets("no answer from http://me:word@host/v1?key=abc (refused)")
        'no answer from http://host/v1 (refused)'
    """
    return _URL.sub(lambda found: without_secrets(found[0]), text)


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
    """
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    public = [(name, value) for name, value in query if not _SECRET.search(name)]
    if "@" not in parts.netloc and public == query:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=urlencode(public)))
