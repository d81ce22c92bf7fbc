"""What an answer comes to: its type, its title and where it leads (pure), ready for the archive and the outcome."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from shared.domain.fetch import Answer
from shared.domain.left_out import MAX_EXAMPLES
from shared.domain.url import Location, locate
from workers.crawls import ActiveCrawl
from workers.extract.applying import Html
from workers.outlinks import Outlinks, header_text, redirect_target
from workers.parse.charset import sniff
from workers.parse.directives import x_robots_tag
from workers.parse.html import Link, LinkKind, ParsedPage, parse_html, parse_refresh
from workers.parse.link_field import sequence_links
from workers.parse.mime import XHTML_TYPES, Media, classify, media_type

REDIRECTS: Final = frozenset((300, 301, 302, 303, 307, 308))
"""Statuses whose Location is a link; a 300 without one is a page."""

READ_ON_LOOP: Final = 384 << 10
"""A larger body is read in a thread: 30 MiB of markup could hold the event loop for 8 s. So much of the costliest
markup known takes 190 ms. A thread for each page above 128 KiB cost a tenth of a worker's CPU on documentation. A body
counts as many times larger as the scope's patterns make it costly (`CompiledScope.weight`)."""

_SNIFFED: Final = {
    Media.HTML: "text/html",
    Media.XML: "text/xml",
    Media.TEXT: "text/plain",
    Media.OTHER: "application/octet-stream",
}
SHELL_BYTES: Final = 8 << 10
"""A larger page is no shell for scripts, and would take too long to look through."""

_UNSEEN: Final = re.compile(
    rb"<!--.*?-->|<(script|style|title|noscript|template)\b.*?</\1\s*>|<[^>]*>", re.IGNORECASE | re.DOTALL
)
_TITLE: Final = 512
_MIME: Final = 128


@dataclass(frozen=True, slots=True)
class Reading:
    """An answer, read.

    `found` are the links to report, at `depth` and `hops`; `outlinks`, where it is a page, is to be acknowledged when
    their report was. `links` counts outlinks in scope, `archived` is what the metadata record says of them, `notes`
    what it says besides. `html`: what items may be taken from. `needs_scripts`: the page
    has scripts and neither text nor links. `links_found` counts all outlinks (-1 if the answer can have none),
    `left_out` those that were left out, by reason, `examples` are URLs of these.
    """

    mime: str
    title: str | None = None
    location: str | None = None
    found: tuple[Location, ...] = ()
    depth: int = 0
    hops: int = 0
    links: int = 0
    outlinks: Outlinks | None = None
    archived: tuple[tuple[str, str], ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    html: Html | None = None
    needs_scripts: bool = False
    links_found: int = -1
    left_out: Mapping[str, int] = field(default_factory=dict)
    examples: Mapping[str, Sequence[str]] = field(default_factory=dict)


def read(crawl: ActiveCrawl, page: Location, depth: int, hops: int, answer: Answer) -> Reading:
    """What `answer`, to a URL of the crawl at `depth` reached by `hops` redirects, comes to."""
    content_type = answer.joined("content-type")
    body = answer.decoded
    if answer.status in REDIRECTS and not (answer.status == 300 and answer.header("location") is None):
        return _redirect(crawl, page, depth, hops, answer, _mime(body, content_type))
    if not 200 <= answer.status < 300:
        return Reading(_mime(body, content_type))
    media = classify(body, content_type)
    mime = (media_type(content_type) or (_SNIFFED[media] if body else ""))[:_MIME]
    if media is not Media.HTML:
        return Reading(mime)
    charset = sniff(body, content_type)
    parsed = parse_html(
        body, charset=charset, options=crawl.spec.extract, product=crawl.product, xml=mime in XHTML_TYPES
    )
    refresh = answer.header("refresh") if parsed.refresh is None else None
    if refresh is not None:
        parsed = replace(parsed, refresh=parse_refresh(refresh))
    if (links := answer.joined("link")) is not None:
        parsed = _with_link_field(parsed, links, page.url, crawl.spec.extract.max_links_per_page)
    forbidden = crawl.obeys_robots and (parsed.robots.nofollow or _nofollow_by_header(crawl, answer))
    outlinks = crawl.outlinks.outlinks(page, parsed, depth=depth, nofollow=forbidden)
    return Reading(
        mime=mime,
        title=parsed.title[:_TITLE] or None,
        found=outlinks.fresh,
        depth=outlinks.depth,
        links=len(outlinks.fresh) + outlinks.known,
        outlinks=outlinks,
        archived=tuple([(url, "L a/@href") for url in outlinks.urls]),
        notes=(("outlinksLeftOut", str(outlinks.urls_left_out)),) if outlinks.urls_left_out else (),
        html=Html(body, charset, parsed.base_href),
        needs_scripts=not (parsed.anchors or parsed.marked or parsed.refresh) and _scripts_alone(body),
        links_found=outlinks.found + outlinks.cut,
        left_out=outlinks.left_out(),
        examples=outlinks.examples,
    )


def _with_link_field(parsed: ParsedPage, value: str, page_url: str, most: int) -> ParsedPage:
    """Return the page with the links of its Link header, up to `most` links in all.

    They are relative to the page's own URL, whatever its base element says (RFC 8288 §3.1).
    """
    targets = dict.fromkeys(sequence_links(value))
    urls = [url for target in targets if (url := redirect_target(target, page_url)) is not None]
    left = max(0, most - len(parsed.anchors) - len(parsed.marked))
    found = tuple([Link(url, LinkKind.SEQUENCE, False) for url in urls[:left]])
    cut = urls[left:]
    return replace(
        parsed,
        marked=parsed.marked + found,
        links_cut=parsed.links_cut + len(cut),
        cut_links=(*parsed.cut_links, *cut)[:MAX_EXAMPLES],
    )


def _scripts_alone(body: bytes) -> bool:
    """Return True if a small page without links holds scripts and no text. What stands in `noscript` is no text."""
    if len(body) > SHELL_BYTES or b"<script" not in body.lower():
        return False
    return not _UNSEEN.sub(b"", body).strip()


def _redirect(crawl: ActiveCrawl, page: Location, depth: int, hops: int, answer: Answer, mime: str) -> Reading:
    """A redirect is a discovery at the same depth; from a seed on, only redirects keep the depth at 0."""
    location = answer.header("location")
    if location is None:
        return Reading(mime)
    target = redirect_target(location, page.url)
    to = None if target is None else locate(target)
    if to is None:
        return Reading(mime, location=header_text(location))
    rule = crawl.scope.judge(
        to.url, to.host, depth=depth, via_host=page.host, via_seed_redirect=depth == 0, hops=hops + 1
    )
    found = (to,) if rule is None and to.url != page.url else ()
    return Reading(
        mime=mime,
        location=header_text(location),
        found=found,
        depth=depth,
        hops=hops + 1,
        links=len(found),
        archived=((to.url, "R Location:"),),
        links_found=1,
        left_out={} if rule is None else {rule.name.value: 1},
        examples={} if rule is None else crawl.outlinks.example(rule.name, to.url),
    )


def _nofollow_by_header(crawl: ActiveCrawl, answer: Answer) -> bool:
    values = [value for name, value in answer.headers if name == "x-robots-tag"]
    return bool(values) and x_robots_tag(values, crawl.product).nofollow


def _mime(body: bytes, content_type: str | None) -> str:
    declared = media_type(content_type)
    return (declared or (_SNIFFED[classify(body, content_type)] if body else ""))[:_MIME]
