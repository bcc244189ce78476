"""Addresses for logs and files."""

from urllib.parse import urlsplit, urlunsplit


def without_password(url: str) -> str:
    """A URL without the user's name and password, where it has them."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
