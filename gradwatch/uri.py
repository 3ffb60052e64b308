"""Addresses of MLflow stores, as they may be written down."""

from urllib.parse import urlsplit, urlunsplit


def public_uri(uri: str) -> str:
    """`uri` without the user name and password it may hold: what may go to a file, a log or the screen."""
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if "@" in parts.netloc else uri
