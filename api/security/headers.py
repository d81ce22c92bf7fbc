"""A request's headers as the server passes them on: names in lower case, in the order they came."""

from starlette.types import Scope


def header_of(scope: Scope, name: bytes) -> bytes:
    """The first header of that name, in lower case; empty where there is none."""
    for each, value in scope["headers"]:
        if each == name:
            found: bytes = value
            return found
    return b""
