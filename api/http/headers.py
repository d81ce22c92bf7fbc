"""Read a request's headers from its ASGI scope, where names are in lower case and in the order of arrival."""

from starlette.types import Scope


def header_of(scope: Scope, name: bytes) -> bytes:
    """Return the value of the first header with this name (in lower case); empty if there is none."""
    for each, value in scope["headers"]:
        if each == name:
            first: bytes = value
            return first
    return b""
