"""Describes a field of the spec, for the API's document."""

from typing import Any

from msgspec import Meta


def described(description: str, *examples: Any) -> Meta:
    """Return the description of a field, with examples where the type does not say enough."""
    return Meta(description=description, examples=list(examples) or None)
