"""Reads an answer: its type, title and links, in the form that the archive and the outcome need. Pure functions."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from shared.domain.explain.excluded_links import MAX_EXAMPLES
from shared.domain.web.fetch import Answer
from shared.domain.web.url import Location, locate
from workers.extract.page_rules import Html
from workers.outlinks import Outlinks, header_text, redirect_target, without_url
from workers.parse.charset import sniff
from workers.parse.directives import x_robots_tag
from workers.parse.html import LinkKind, PageLink, ParsedPage, parse_html, parse_refresh
from workers.parse.mime import XHTML_TYPES, Media, classify, media_type
from workers.visit_crawls import VisitCrawl

_SEQUENCE: Final = frozenset(("next", "prev"))
_VALUE: Final = re.compile(r"[ \t,]*+<([^>]*+)>((?:[^\",]|\"(?:[^\"\\]|\\.)*+\"?)*+)", re.DOTALL)
_PARAMETER: Final = re.compile(
    r";[ \t]*+([^;=\" \t]*+)[ \t]*+(?:=[ \t]*+(?:\"((?:[^\"\\]|\\.)*+)\"?|([^;\"]*+)))?", re.DOTALL
)


def sequence_links(value: str) -> Iterator[str]:
    """Yield the targets with relation `next` or `prev` in a Link header, as written. Stop at malformed text."""
    position = 0
    while (match := _VALUE.match(value, position)) is not None:
        position = match.end()
        parameters: dict[str, str] = {}
        for name, quoted, bare in _PARAMETER.findall(match[2]):
            parameters.setdefault(name.lower(), quoted or bare)
        if "anchor" not in parameters and not _SEQUENCE.isdisjoint(parameters.get("rel", "").lower().split()):
            yield match[1]


REDIRECTS: Final = frozenset((300, 301, 302, 303, 307, 308))
"""Statuses whose Location is a link. A 300 without a Location is a page."""

READ_ON_LOOP: Final = 384 << 10
"""A larger body is read in a thread: 30 MiB of markup could block the event loop for 8 s. READ_ON_LOOP bytes of the
costliest markup known take 190 ms. A thread for each page above 128 KiB cost a tenth of a worker's CPU on
documentation. The size is multiplied by the cost of the scope's patterns (`CompiledScope.weight`)."""

_SNIFFED: Final = {
    Media.HTML: "text/html",
    Media.XML: "text/xml",
    Media.TEXT: "text/plain",
    Media.OTHER: "application/octet-stream",
}
SHELL_BYTES: Final = 8 << 10
"""A larger page is no mere shell for scripts, and would take too long to search."""

_UNSEEN: Final = re.compile(
    rb"<!--.*?-->|<(script|style|title|noscript|template)\b.*?</\1\s*>|<[^>]*>", re.IGNORECASE | re.DOTALL
)
_TITLE: Final = 512
_MIME: Final = 128


@dataclass(frozen=True, slots=True)
class PageReading:
    """What was read from an answer.

    - `found`: the links to report, at `depth` and `hops`.
    - `outlinks`: set for a page, to be acknowledged after the report of its links was.
    - `links`: the number of outlinks in scope.
    - `archived`, `notes`: the outlinks and the other fields of the metadata record.
    - `html`: the HTML that items are taken from, None for another type.
    - `needs_scripts`: the page has scripts and neither text nor links.
    - `links_found`: the number of all outlinks, -1 if the answer can have none.
    - `left_out`, `examples`: the number of outlinks left out and some of their URLs, by reason.
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


def read(crawl: VisitCrawl, page: Location, depth: int, hops: int, answer: Answer) -> PageReading:
    """Read the type, title and links of an `answer`. Its URL is `page`, at `depth`, and was reached by `hops`
    redirects.
    """
    content_type = answer.joined("content-type")
    body = answer.decoded
    if answer.status in REDIRECTS and not (answer.status == 300 and answer.header("location") is None):
        return _redirect(crawl, page, depth, hops, answer, _mime(body, content_type))
    if not 200 <= answer.status < 300:
        return PageReading(_mime(body, content_type))
    media = classify(body, content_type)
    mime = (media_type(content_type) or (_SNIFFED[media] if body else ""))[:_MIME]
    if media is not Media.HTML:
        return PageReading(mime)
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
    return PageReading(
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


def _with_link_field(parsed: ParsedPage, value: str, page_url: str, max_count: int) -> ParsedPage:
    """Return the page with the links of its Link header, up to `max_count` links in all.

    They are relative to the page's own URL, and its base element does not apply (RFC 8288 §3.1).
    """
    targets = dict.fromkeys(sequence_links(value))
    urls = [redirect_target(target, page_url) or target for target in targets]
    left = max(0, max_count - len(parsed.anchors) - len(parsed.marked))
    links = tuple([PageLink(url, LinkKind.SEQUENCE, False) for url in urls[:left]])
    cut = urls[left:]
    return replace(
        parsed,
        marked=parsed.marked + links,
        links_cut=parsed.links_cut + len(cut),
        cut_links=(*parsed.cut_links, *cut)[:MAX_EXAMPLES],
    )


def _scripts_alone(body: bytes) -> bool:
    """Return True if a small page has scripts and no text. The contents of `noscript` do not count as text."""
    if len(body) > SHELL_BYTES or b"<script" not in body.lower():
        return False
    return not _UNSEEN.sub(b"", body).strip()


def _redirect(crawl: VisitCrawl, page: Location, depth: int, hops: int, answer: Answer, mime: str) -> PageReading:
    """Read a redirect: its target is a discovery at the same depth. So depth 0 has only seeds and their redirects."""
    location = answer.header("location")
    if location is None:
        return PageReading(mime)
    named = header_text(location)
    target = redirect_target(location, page.url)
    to = None if target is None else locate(target)
    if to is None:
        reason = without_url(named)
        examples = crawl.outlinks.example(reason, named)
        return PageReading(mime, location=named, links_found=1, left_out={str(reason): 1}, examples=examples)
    rule = crawl.scope.judge(
        to.url, to.host, depth=depth, via_host=page.host, via_seed_redirect=depth == 0, hops=hops + 1
    )
    found = (to,) if rule is None and to.url != page.url else ()
    return PageReading(
        mime=mime,
        location=named,
        found=found,
        depth=depth,
        hops=hops + 1,
        links=len(found),
        archived=((to.url, "R Location:"),),
        links_found=1,
        left_out={} if rule is None else {rule.name.value: 1},
        examples={} if rule is None else crawl.outlinks.example(rule.name, to.url),
    )


def _nofollow_by_header(crawl: VisitCrawl, answer: Answer) -> bool:
    values = [value for name, value in answer.headers if name == "x-robots-tag"]
    return bool(values) and x_robots_tag(values, crawl.product).nofollow


def _mime(body: bytes, content_type: str | None) -> str:
    declared = media_type(content_type)
    return (declared or (_SNIFFED[classify(body, content_type)] if body else ""))[:_MIME]
