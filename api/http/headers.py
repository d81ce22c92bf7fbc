"""Read a request's headers from its scope: names are in lower case, in the order of arrival."""

from starlette.types import Scope


def header_of(scope: Scope, name: bytes) -> bytes:
    """Return the first header with this name, which is in lower case; empty if there is none."""
    for each, value in scope["headers"]:
        if each == name:
            first: bytes = value
            return first
    return b""
