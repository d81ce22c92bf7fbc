"""Describe the fields of the crawl spec for the OpenAPI document."""

from typing import Any

from msgspec import Meta


def described(description: str, *examples: Any) -> Meta:
    """Return msgspec metadata with a field's description and examples. Without `examples` the metadata has none."""
    return Meta(description=description, examples=list(examples) or None)
