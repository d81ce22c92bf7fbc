"""Fetches of pages that are stored already: the conditional request, and the archive's reference to the stored page.

The validators (ETag and Last-Modified) of the stored page come from the web. So only those that RFC 9110 allows in a
request are sent.
"""

from typing import TYPE_CHECKING

import msgspec
from blake3 import blake3

from shared.domain.archive.model import Exchange, Revisit, RevisitProfile, payload_digest
from shared.domain.crawl.recrawl_spec import Compare
from shared.domain.frontier.page_history import MARK_BYTES
from shared.domain.reads.items import PageItems
from shared.domain.web import validators
from shared.domain.web.fetch import Answer
from shared.domain.web.page_text import visible_text
from shared.domain.web.validators import NotModified
from shared.wire.messages import ShardUrl
from workers.extract.page_rules import Html

if TYPE_CHECKING:
    from workers.page_reading import PageReading
    from workers.visit_crawls import VisitCrawl


def conditions(entry: ShardUrl) -> tuple[tuple[str, str], ...]:
    """Return the headers that make the request for a URL conditional (RFC 9110).

    Return () if the URL has no stored page, or no usable validator.
    """
    return validators.conditions(entry.etag, entry.last_modified, entry.stored_ms / 1000) if entry.digest else ()


def as_revisit(exchange: Exchange, entry: ShardUrl, reading: "PageReading") -> Exchange:
    """Return the exchange marked as a revisit if its payload is that of the URL's stored page, else unmarked.

    The archive stores a revisit without the payload, with a reference to the stored page. If this function computed the
    digest of the payload for the comparison, the result's `digest` is set.

    `reading`: what was read from the answer. In two cases, a page with the stored payload is unmarked, too:

    - The stored fetch was a sitemap or feed.
    - The page got or lost a robots directive, such as `noindex`, which decides if lists of pages show it.

    The owner then replaces the stored fetch by this one, so the archive needs the payload again.
    """
    answer = exchange.answer
    if not entry.digest:
        return exchange
    if answer.status == 304:
        asked = conditions(entry)
        received = dict(reversed(answer.headers))
        if validators.judged(asked, received, exchange.fetched_at_ms / 1000) is not NotModified.CONFIRMED:
            return exchange
        reference = Revisit(RevisitProfile.NOT_MODIFIED, answer.url, entry.stored_ms, entry.digest)
        return msgspec.structs.replace(exchange, revisit=reference)
    digest = payload_digest(answer.body)
    same = 200 <= answer.status < 300 and digest == entry.digest
    same = same and (reading.entries >= 0 or entry.reason == (reading.not_indexed or ""))
    equal = Revisit(RevisitProfile.IDENTICAL_PAYLOAD, answer.url, entry.stored_ms, digest) if same else None
    return msgspec.structs.replace(exchange, digest=digest, revisit=equal)


def content_mark(crawl: "VisitCrawl", answer: Answer, html: Html | None, items: PageItems | None) -> bytes:
    """Return a hash of the text or the items of a page, by which the crawl compares versions of the page.

    Return b"" if the crawl compares whole payloads instead, if `html` is None, or if the status is not 2xx.
    """
    compare = crawl.spec.recrawl.compare if crawl.spec.recrawl.used else Compare.PAYLOAD
    if compare is Compare.PAYLOAD or html is None or not 200 <= answer.status < 300:
        return b""
    if compare is Compare.TEXT:
        text = visible_text(html.body, html.charset)
        return blake3("\n".join(text).encode("utf-8", "replace")).digest(MARK_BYTES)
    found = () if items is None else items.items
    return blake3(b"".join(sorted(item.id + item.data for item in found))).digest(MARK_BYTES)
