"""URLs in the form that logs and files may show."""

from urllib.parse import urlsplit, urlunsplit


def without_password(url: str) -> str:
    """A URL without the user name and password that it may hold."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
