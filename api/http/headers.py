"""Read a request's headers from its ASGI scope, where names are in lower case."""

from starlette.types import Scope


def header_of(scope: Scope, name: bytes) -> bytes:
    """Return the value of the first header with this name. Return b"" if there is none. `name` is in lower case."""
    for each, value in scope["headers"]:
        if each == name:
            first: bytes = value
            return first
    return b""
