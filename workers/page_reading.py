"""Reads an answer: its type, title and links, in the form that the archive and the outcome need. Pure functions."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import islice
from typing import Final

import msgspec

from shared.domain.crawl.media_spec import NOT_PARSED
from shared.domain.crawl.requisites_spec import Requisites
from shared.domain.crawl.scope import ExclusionReason, ScopeRule
from shared.domain.explain.excluded_links import MAX_EXAMPLES
from shared.domain.frontier.states import UrlKind
from shared.domain.web.fetch import Answer
from shared.domain.web.robots import BY_TYPE, NotIndexed
from shared.domain.web.url import Location, canonicalize, locate
from workers.extract.page_rules import Html
from workers.outlinks import Outlinks, header_text, redirect_target, without_url
from workers.parse.charset import sniff
from workers.parse.directives import NOTHING_FORBIDDEN, Directives, x_robots_tag
from workers.parse.html import LinkKind, PageLink, ParsedPage, parse_html, parse_refresh
from workers.parse.mime import HTML_TYPES, XHTML_TYPES, Media, classify, media_type
from workers.visit_crawls import VisitCrawl, is_page

_SEQUENCE: Final = frozenset(("next", "prev"))
_CANONICAL: Final = frozenset(("canonical",))
_ROBOTS_IGNORED: Final = ("robots", "ignore")
"""The field, in the metadata of an archived response, that says that the robots rules of the host were ignored."""

_VALUE: Final = re.compile(r"[ \t,]*+<([^>]*+)>((?:[^\",]|\"(?:[^\"\\]|\\.)*+\"?)*+)", re.DOTALL)
_PARAMETER: Final = re.compile(
    r";[ \t]*+([^;=\" \t]*+)[ \t]*+(?:=[ \t]*+(?:\"((?:[^\"\\]|\\.)*+)\"?|([^;\"]*+)))?", re.DOTALL
)


def field_links(value: str, relations: Set[str] = _SEQUENCE) -> Iterator[str]:
    """Yield the targets of the links in a Link header, if their `rel` parameter names one of the `relations`.

    Targets are not resolved: `field_links('</b>; rel="next"')` yields `/b`. Links with an `anchor` parameter are left
    out. Stop at malformed text.
    """
    position = 0
    while (match := _VALUE.match(value, position)) is not None:
        position = match.end()
        parameters: dict[str, str] = {}
        for name, quoted, bare in _PARAMETER.findall(match[2]):
            parameters.setdefault(name.lower(), quoted or bare)
        if "anchor" not in parameters and not relations.isdisjoint(parameters.get("rel", "").lower().split()):
            yield match[1]


REDIRECTS: Final = frozenset((300, 301, 302, 303, 307, 308))
"""Statuses whose Location is a link. A 300 without a Location is a page."""

# With a limit of 128 KiB, the threads used a tenth of a worker's CPU in a crawl of documentation.
READ_ON_LOOP: Final = 384 << 10
"""A body is read in a thread if `size * CompiledScope.weight` exceeds this (bytes). `weight` is the cost of the scope's
patterns. As measured, a body of this size blocks the event loop for at most 190 ms.
"""

_SNIFFED: Final = {
    Media.HTML: "text/html",
    Media.XML: "text/xml",
    Media.TEXT: "text/plain",
    Media.OTHER: "application/octet-stream",
}
SHELL_BYTES: Final = 8 << 10
"""The maximum size in bytes of a shell: a page with scripts but no text, which a browser would fill by the scripts.

A larger page never counts as a shell, so its `PageReading.needs_scripts` is False."""

_UNSEEN: Final = re.compile(
    rb"<!--.*?-->|<(script|style|title|noscript|template)\b.*?</\1\s*>|<[^>]*>", re.IGNORECASE | re.DOTALL
)
_MAX_REFERENCES: Final = 20_000
"""The maximum number of references to requisites that are resolved for a page or stylesheet."""

_TITLE: Final = 512
_MIME: Final = 128


class PageReading(msgspec.Struct, frozen=True, gc=False):
    """What was read from a response.

    The links to report:

    - `found`: the new links in scope, with their `depth`, `hops` (how many redirects or sitemaps lead to them) and
      `kind` (such as page or feed).
    - `beyond`: the new links out of scope that `scope.extra_hops` permits. `extra`: how many extra hops lead to them.
    - `feeds`: the feeds that the page names, if the crawl reads feeds.
    - `requisites`: the requisites of the page or stylesheet, if the crawl fetches requisites. `requisite_hops`: 1 for
      the requisites of a page, and 1 more for each stylesheet and redirect in between.
    - `lastmods`: by URL, when a link last changed according to a sitemap or feed (Unix seconds).
    - `outlinks`: what the link resolver returned, from which `found` and `beyond` come. None if no links were read.

    When the links are reported, the reporter passes each of `outlinks`, `feeds` and `requisites` that is not None to
    `OutlinkResolver.acknowledged`. The same links are then not reported again.

    Numbers of links:

    - `links_found`: the number of all links in the response, even excluded and repeated ones. -1 if no links were read.
      It is not the length of `found`, and does not count `feeds` and `requisites`.
    - `links`: the number of links that the crawl follows: those in `found` and `beyond`, and those reported before.
      It does not count `feeds` and `requisites` either.
    - `left_out`: for each reason, how many links are not reported. `examples`: some of their URLs, by reason.

    What the archive stores beside the response, in the metadata record:

    - `archived`: the URLs of the links, reported or not, up to a maximum size. `notes`: further fields of the record.
    - `unlisted`: how many links the command `rediscover` cannot find in this record later. For a page or stylesheet,
      these are the links that are not in `archived`. For a sitemap or feed, these are all excluded entries, because
      `rediscover` ignores the entries of sitemaps and feeds.

    Other results:

    - `html`: the HTML from which items are extracted. None if no HTML was parsed, or if `not_indexed` is set.
    - `needs_scripts`: the page has scripts and neither text nor links.
    - `entries`: the number of entries of a sitemap or feed, -1 for any other response.
    - `problem`: why the sitemap or feed was not read to its end, "" if it was.
    - `not_indexed`: why the page must not appear in lists, exports and items. None if it may.
    - `dated`: the page has a date from which on it must not appear there.
    """

    mime: str
    title: str | None = None
    location: str | None = None
    found: tuple[Location, ...] = ()
    depth: int = 0
    hops: int = 0
    links: int = 0
    outlinks: Outlinks | None = None
    archived: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict)
    notes: tuple[tuple[str, str], ...] = ()
    html: Html | None = None
    needs_scripts: bool = False
    links_found: int = -1
    kind: UrlKind = UrlKind.PAGE
    entries: int = -1
    problem: str = ""
    feeds: Outlinks | None = None
    requisites: Outlinks | None = None
    requisite_hops: int = 1
    left_out: Mapping[str, int] = msgspec.field(default_factory=dict)
    examples: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict)
    not_indexed: NotIndexed | None = None
    dated: bool = False
    beyond: tuple[Location, ...] = ()
    extra: int = 0
    unlisted: int = 0
    lastmods: Mapping[str, int] = msgspec.field(default_factory=dict)

    @property
    def unstored(self) -> bool:
        """True if the response must not be archived, because of its media type. There are two such cases:

        - `media.stored` of the spec leaves out the type.
        - `media.fetched` leaves out the type, so only the head of the response was transferred.
        """
        return self.not_indexed in BY_TYPE


def read(
    crawl: VisitCrawl,
    page: Location,
    depth: int,
    hops: int,
    answer: Answer,
    at_ms: int,
    kind: UrlKind = UrlKind.PAGE,
    extra: int = 0,
) -> PageReading:
    """Return the type, title and links of an `answer` that was requested at `at_ms` (Unix ms).

    - `page`: the URL of the answer, found as `kind` at `depth`.
    - `hops`: how many redirects, sitemaps or stylesheets in a row led to the URL.
    - `extra`: how many extra hops led to the URL, 0 if it is in scope.
    """
    reading = _read(crawl, page, depth, hops, answer, at_ms, kind, extra)
    return (
        reading
        if crawl.obeys_robots(page.host)
        else msgspec.structs.replace(reading, notes=(*reading.notes, _ROBOTS_IGNORED))
    )


def _read(
    crawl: VisitCrawl, page: Location, depth: int, hops: int, answer: Answer, at_ms: int, kind: UrlKind, extra: int
) -> PageReading:
    content_type = answer.joined("content-type")
    body = answer.decoded
    if answer.status in REDIRECTS and not (answer.status == 300 and answer.header("location") is None):
        return _redirect(crawl, page, depth, hops, answer, _mime(body, content_type), kind, extra)
    obeys_robots = crawl.obeys_robots(page.host)
    directives = _directives_by_header(crawl, answer) if obeys_robots else NOTHING_FORBIDDEN
    if answer.status == 304:
        mime = _mime(body, content_type)
        return PageReading(mime, not_indexed=directives.not_indexed(at_ms), dated=directives.dated)
    if not 200 <= answer.status < 300:
        return PageReading(_mime(body, content_type))
    if crawl.skips_body is not None and is_page(kind) and crawl.skips_body(answer.status, content_type):
        return PageReading(media_type(content_type)[:_MIME], not_indexed=NotIndexed.NOT_FETCHED)
    media = classify(body, content_type)
    mime = (media_type(content_type) or (_SNIFFED[media] if body else ""))[:_MIME]
    if kind is UrlKind.REQUISITE:
        return _requisite(crawl, page, depth, hops, answer, mime)
    of_type = "text/html" if media is Media.HTML and mime not in HTML_TYPES else mime
    unstored = None if crawl.spec.media.stores(of_type) else NotIndexed.MEDIA_TYPE
    if media is not Media.HTML:
        return PageReading(mime, not_indexed=unstored or directives.not_indexed(at_ms), dated=directives.dated)
    if not crawl.spec.media.parses(of_type):
        not_indexed, left_out = unstored or directives.not_indexed(at_ms), {NOT_PARSED: 1}
        return PageReading(mime, not_indexed=not_indexed, dated=directives.dated, left_out=left_out)
    charset = sniff(body, content_type)
    xml = mime in XHTML_TYPES
    parsed = parse_html(body, charset=charset, options=crawl.spec.extract, product=crawl.product, xml=xml)
    refresh = answer.header("refresh") if parsed.refresh is None else None
    if refresh is not None:
        parsed = msgspec.structs.replace(parsed, refresh=parse_refresh(refresh))
    if (links := answer.joined("link")) is not None:
        parsed = _with_link_field(parsed, links, page.url, crawl.spec.extract.max_links_per_page)
    if obeys_robots:
        directives |= parsed.robots
    not_indexed = unstored or directives.not_indexed(at_ms)
    outlinks = crawl.outlinks.outlinks(page, parsed, depth=depth, nofollow=directives.nofollow, extra=extra)
    follows_feeds = crawl.spec.discover.feeds and not directives.nofollow and not extra
    feeds = _feeds(crawl, page, parsed, depth) if follows_feeds else None
    reading = PageReading(
        mime=mime,
        title=parsed.title[:_TITLE] or None,
        found=outlinks.fresh,
        depth=outlinks.depth,
        links=len(outlinks.fresh) + len(outlinks.beyond) + outlinks.known,
        outlinks=outlinks,
        archived={"L a/@href": outlinks.urls},
        notes=(("outlinksLeftOut", str(outlinks.urls_left_out)),) if outlinks.urls_left_out else (),
        html=Html(body, charset, parsed.base_href, xml=xml) if not_indexed is None else None,
        needs_scripts=not (parsed.anchors or parsed.marked or parsed.refresh) and _scripts_alone(body),
        links_found=outlinks.found + outlinks.beyond_limit,
        feeds=feeds,
        left_out=outlinks.left_out() if feeds is None else added(outlinks.left_out(), feeds.left_out()),
        examples=outlinks.examples if feeds is None else {**feeds.examples, **outlinks.examples},
        not_indexed=not_indexed,
        dated=directives.dated,
        beyond=outlinks.beyond,
        extra=outlinks.extra,
        unlisted=outlinks.urls_left_out + outlinks.excluded.get(ExclusionReason.LENGTH, 0),
    )
    if crawl.spec.scope.requisites is Requisites.NONE:
        return reading
    # Its expressions take 15 ms to compile, and few crawls use them.
    from workers.parse.requisites import requisites_of

    references = requisites_of(body, charset, xml=xml)
    return _with_requisites(crawl, page, depth, 1, reading, references, parsed.base_href)


def _requisite(crawl: VisitCrawl, page: Location, depth: int, hops: int, answer: Answer, mime: str) -> PageReading:
    """Return the reading of a requisite. Only a stylesheet has links: further requisites, if the crawl fetches any."""
    reading = PageReading(mime)
    if mime != "text/css" or crawl.spec.scope.requisites is Requisites.NONE:
        return reading
    from workers.parse.css import css_text, css_urls
    from workers.parse.requisites import MAX_REQUISITE_BYTES, loads

    text = css_text(answer.decoded[:MAX_REQUISITE_BYTES], answer.joined("content-type"))
    return _with_requisites(crawl, page, depth, hops + 1, reading, filter(loads, css_urls(text)), None)


def _with_requisites(
    crawl: VisitCrawl,
    page: Location,
    depth: int,
    hops: int,
    reading: PageReading,
    references: Iterator[str],
    base_href: str | None,
) -> PageReading:
    """Return a copy of `reading` that also has the requisites of `page`, an HTML page or a stylesheet.

    - `references`: all requisites that `page` names, as written there.
    - `base_href`: the page's `<base href>`, against which `references` are resolved. None if there is none.
    - `depth`: the depth to report for the requisites, the same for all.
    - `hops`: the distance of the requisites from the HTML page, stored as `requisite_hops`. 1: the page itself names
      the requisites. 2: a stylesheet of the page names them. Each further stylesheet or redirect adds 1.

    The scope decides which requisites are reported (the field `requisites`). Excluded requisites are counted in
    `left_out`, with some URLs in `examples`. The archive gets the URLs of all valid requisites, reported or not
    (`archived`). URLs beyond MAX_OUTLINKS_BYTES are not archived but only counted (`unlisted`).
    """
    base = page.url if base_href is None else canonicalize(base_href, page.url) or page.url

    def judge(location: Location) -> str | None:
        rule = crawl.scope.judge_requisite(location.url, location.host, via_host=page.host, hops=hops)
        return None if rule is None else rule.name

    requisites = crawl.outlinks.listed(
        page,
        ((reference, base) for reference in dict.fromkeys(islice(references, _MAX_REFERENCES))),
        judge,
        depth=depth,
        max_requisites=crawl.spec.budget.max_requisites_per_page,
    )
    return msgspec.structs.replace(
        reading,
        requisites=requisites,
        requisite_hops=hops,
        archived={**reading.archived, "E */@src": requisites.urls},
        left_out=added(reading.left_out, requisites.left_out()),
        examples={**requisites.examples, **reading.examples},
        unlisted=reading.unlisted + requisites.urls_left_out,
    )


def added(counts: Mapping[str, int], others: Mapping[str, int]) -> dict[str, int]:
    """Return the sum of two mappings of counts, key by key."""
    return dict(Counter(counts) + Counter(others))


def _feeds(crawl: VisitCrawl, page: Location, parsed: ParsedPage, depth: int) -> Outlinks | None:
    """Return the feeds that `page` names. Their depth is `depth`, that of the page. Return None without feeds."""
    if not parsed.feeds:
        return None
    base = page.url if parsed.base_href is None else canonicalize(parsed.base_href, page.url) or page.url
    return crawl.outlinks.listed(
        page, ((feed, base) for feed in parsed.feeds), listing_judge(crawl, page, depth, hops=1), depth=depth
    )


def page_judge(crawl: VisitCrawl, page: Location, depth: int) -> Callable[[Location], str | None]:
    """Return a function that decides if the URL of a link or entry of `page` is in scope.

    The function returns None if the URL is in scope, else the name of the rule that excludes it. `depth`: the depth of
    all these links and entries, which is that of `page` plus 1.
    """

    in_scope, via_host = crawl.scope.judge, page.host

    def judge(location: Location) -> str | None:
        rule = in_scope(location.url, location.host, depth=depth, via_host=via_host)
        return None if rule is None else rule.name

    return judge


def listing_judge(crawl: VisitCrawl, page: Location, depth: int, *, hops: int) -> Callable[[Location], str | None]:
    """Return a function that decides if the crawl reads a sitemap or feed that `page` names.

    The function returns None if the crawl reads it, else the name of the rule that excludes it. `hops`: how many
    redirects and sitemap indexes lead to the sitemap or feed.
    """

    def judge(location: Location) -> str | None:
        rule = crawl.scope.judge_listing(location.url, location.host, depth=depth, via_host=page.host, hops=hops)
        return None if rule is None else rule.name

    return judge


def _with_link_field(parsed: ParsedPage, value: str, page_url: str, max_count: int) -> ParsedPage:
    """Return the page with the links of its Link header `value` added, up to `max_count` links in all.

    Relative links in the header are resolved against `page_url`, not against the page's base element (RFC 8288 §3.1).
    If the page itself names a canonical link, a canonical link in the header is ignored.
    """
    canonical = next(field_links(value, _CANONICAL), None) if parsed.canonical is None else None
    if canonical is not None:
        parsed = msgspec.structs.replace(parsed, canonical=redirect_target(canonical, page_url) or canonical)
    targets = dict.fromkeys(field_links(value))
    urls = [redirect_target(target, page_url) or target for target in targets]
    left = max(0, max_count - len(parsed.anchors) - len(parsed.marked))
    links = tuple([PageLink(url, LinkKind.SEQUENCE, False) for url in urls[:left]])
    cut = urls[left:]
    return msgspec.structs.replace(
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


def _redirect(
    crawl: VisitCrawl, page: Location, depth: int, hops: int, answer: Answer, mime: str, kind: UrlKind, extra: int
) -> PageReading:
    """Return the reading of a redirect.

    The link to report is the target of the redirect, with the same depth. So depth 0 has seeds and their redirects.
    """
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
    verdict: ScopeRule | int | None
    if kind is UrlKind.REQUISITE:
        verdict = crawl.scope.judge_requisite(to.url, to.host, via_host=page.host, hops=hops + 1)
    elif kind.listing:
        verdict = crawl.scope.judge_listing(to.url, to.host, depth=depth, via_host=page.host, hops=hops + 1)
    else:
        verdict = crawl.scope.hops_beyond(
            to.url, to.host, depth=depth, via_host=page.host, via_seed_redirect=depth == 0, hops=hops + 1, extra=extra
        )
    rule = verdict if isinstance(verdict, ScopeRule) else None
    beyond = verdict if isinstance(verdict, int) else 0
    found = (to,) if rule is None and to.url != page.url else ()
    return PageReading(
        mime=mime,
        location=named,
        found=() if beyond else found,
        beyond=found if beyond else (),
        extra=beyond,
        depth=depth,
        hops=hops + 1,
        kind=kind,
        links=len(found),
        archived={"R Location:": (to.url,)},
        links_found=1,
        left_out={} if rule is None else {rule.name.value: 1},
        examples={} if rule is None else crawl.outlinks.example(rule.name, to.url),
    )


def _directives_by_header(crawl: VisitCrawl, answer: Answer) -> Directives:
    values = [value for name, value in answer.headers if name == "x-robots-tag"]
    return x_robots_tag(values, crawl.product) if values else NOTHING_FORBIDDEN


def _mime(body: bytes, content_type: str | None) -> str:
    declared = media_type(content_type)
    return (declared or (_SNIFFED[classify(body, content_type)] if body else ""))[:_MIME]
