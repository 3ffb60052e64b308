"""Addresses of MLflow stores, and errors that may hold one, as they may be written down."""

import re
from urllib.parse import urlsplit, urlunsplit

_USERINFO = re.compile(r"(\b[a-z][\w+.-]*://)[^\s/?#]*@", re.IGNORECASE)


def public_uri(uri: str) -> str:
    """`uri` without the user name and password it may hold: what may go to a file, a log or the screen."""
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if "@" in parts.netloc else uri


def public_text(text: str) -> str:
    """`text` with the user names and passwords of the addresses in it left out: what others say in their errors."""
    return _USERINFO.sub(r"\1", text)


def public_error(error: BaseException) -> str:
    """The error as one line of at most 300 characters, without the passwords of any address in it."""
    return public_text(" ".join(str(error).split()))[:300] or type(error).__name__
