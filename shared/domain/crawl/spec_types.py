"""Types that several sections of a crawl spec share: bounded numbers, patterns, and the mode of the scope."""

from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta

DAY_S: Final = 86_400.0

Natural = Annotated[int, Meta(ge=1, le=2**53)]
Seconds = Annotated[float, Meta(ge=0.0, le=DAY_S)]
Pattern = Annotated[str, Meta(min_length=1, max_length=1000)]
Patterns = Annotated[tuple[Pattern, ...], Meta(max_length=100)]


class ScopeMode(StrEnum):
    """Which outlinks of a page belong to the crawl.

    HOST: links to the page's host. DOMAIN: links to the page's registrable domain. PREFIX: links below the path of a
    seed. ANY: all links.
    """

    HOST = "host"
    DOMAIN = "domain"
    PREFIX = "prefix"
    ANY = "any"
