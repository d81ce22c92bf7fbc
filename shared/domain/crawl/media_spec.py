"""The section `media` of a crawl spec: which media types of pages are fetched, stored, and parsed for links."""

import re
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from shared.domain.crawl.described import described

NOT_PARSED: Final = "not_parsed"
"""The reason under which a page is counted if its links are not read, because `media.parsed` leaves out its type."""

MAX_MEDIA_TYPES: Final = 100

_EVERY: Final = "*/*"
_TYPE: Final = re.compile(r"(?:[a-z0-9!#$&^_.+-]+/(?:[a-z0-9!#$&^_.+-]+|\*)|\*/\*)").fullmatch

MediaType = Annotated[str, Meta(min_length=3, max_length=128)]
MediaTypes = Annotated[tuple[MediaType, ...], Meta(max_length=MAX_MEDIA_TYPES)]


class Media(msgspec.Struct, frozen=True, kw_only=True):
    """The section `media` of a crawl spec: which pages are fetched, stored and parsed, by their media type.

    The section does not apply to requisites and sitemaps. A type is `type/subtype`, `type/*` or `*/*`, in lower case
    and without parameters.
    """

    fetched: Annotated[
        Annotated[tuple[MediaType, ...], Meta(min_length=1, max_length=MAX_MEDIA_TYPES)] | None,
        described(
            "The media types of the pages whose body is transferred. The transfer of another page ends after the head "
            "of its answer, and the page counts as `not_fetched`. A page without a Content-Type is fetched. Null: all "
            "types.",
            ["text/html", "application/pdf"],
        ),
    ] = None
    stored: Annotated[
        Annotated[tuple[MediaType, ...], Meta(min_length=1, max_length=MAX_MEDIA_TYPES)] | None,
        described(
            "The media types of the pages that are stored: archived, listed, exported, and counted in "
            "`budget.max_pages`. Links are also read from others. Null: all types.",
            ["application/pdf", "image/*"],
        ),
    ] = None
    parsed: Annotated[
        MediaTypes | None,
        described(
            "The media types of the pages whose links, titles, items and requisites are read. Only HTML has them. "
            "Null: all types.",
            ["text/html"],
        ),
    ] = None

    def fetches(self, media_type: str) -> bool:
        """Return True if the body of a page with this media type (lower case, without parameters) is transferred."""
        return self.fetched is None or _listed(self.fetched, media_type)

    def stores(self, media_type: str) -> bool:
        """Return True if pages with this media type (lower case, without parameters) are stored."""
        return self.stored is None or _listed(self.stored, media_type)

    def parses(self, media_type: str) -> bool:
        """Return True if the links of pages with this media type (lower case, without parameters) are read."""
        return self.parsed is None or _listed(self.parsed, media_type)


def _listed(types: tuple[str, ...], media_type: str) -> bool:
    return media_type in types or f"{media_type.partition('/')[0]}/*" in types or _EVERY in types


def media_type_problem(entry: str) -> tuple[str, str] | None:
    """Return the problem of an entry of the section `media`, and a hint what to write instead.

    Return None if the entry is valid.
    """
    if _TYPE(entry) is not None:
        return None
    plain = entry.partition(";")[0].strip().lower()
    hint = f"write {plain}" if _TYPE(plain) is not None else "write it as text/html, image/* or */*"
    return f"{entry!r} is not a media type", hint
