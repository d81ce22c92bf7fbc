"""Selects the outlinks of a page that are to be reported: canonical, in scope and not reported before.

The steps: drop repeats within the page, resolve (shared/domain/web/url.py), drop links already reported, judge by
scope.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, islice
from typing import Final

import msgspec

from shared.domain.crawl.requisites_spec import REQUISITES_PER_PAGE
from shared.domain.crawl.scope import CompiledScope, ExclusionReason
from shared.domain.crawl.spec import Extract
from shared.domain.explain.excluded_links import INVALID, LINKS_PER_PAGE, MAX_EXAMPLES, NOFOLLOW, kept, written
from shared.domain.ids import CrawlId, Revision
from shared.domain.web.url import Location, Resolver, canonicalize, locate, names_other_scheme, origin_of
from workers.known_links import KnownLinks
from workers.parse.html import ParsedPage

MAX_OUTLINKS_BYTES: Final = 2 << 20
"""The maximum total size of the URLs in a page's metadata record. URLs beyond this size are only counted.

Canonical URLs are ASCII, so one character is one byte.
"""

_RELATIVE: Final = re.compile(r"[ \t\n\r]*(?![/\\]|[A-Za-z][A-Za-z0-9+.-]*:)")
"""Matches a reference that is relative to the directory of the base URL, such as `a/b.html`.

Used only if the base URL is longer than the spec permits. Then the URL of such a reference would be too long as well,
so the reference is excluded without being resolved.
"""

_MAX_ORIGINS: Final = 4096

MAX_EXAMPLES_SENT: Final = 100
"""How many examples of left-out links a worker sends at most per crawl, revision and reason. The owner keeps fewer."""


Reference = tuple[str, str | None] | tuple[str, str | None, int]
"""The text of a reference as written and its base URL. An entry of a sitemap or feed also has `lastmod` (Unix s)."""


class Outlinks(msgspec.Struct, frozen=True, gc=False):
    """The links of a page, sitemap or feed: the links to report, and counts of the others.

    The links to report are in three fields:

    - `fresh`: new links in scope.
    - `beyond`: new links out of scope that the crawl follows all the same (`scope.extra_hops`).
    - `renewed`: entries of a sitemap or feed that were reported before, and now have a newer date (`lastmod`).

    These counts are described here, the others at their fields:

    - `found`: the number of all links up to the limit of links per page. (`beyond_limit` says if links beyond this
      limit were left out.) Each link is counted once, in one of `fresh`, `beyond`, `excluded`, `known`, `nofollow`,
      `repeated`.
    - `known`: the number of links that were reported before. Each link in `renewed` is one of these.
    """

    fresh: tuple[Location, ...]
    """Links in scope that KnownLinks does not contain, in document order, without repeats. Their depth is `depth`."""

    depth: int
    found: int
    known: int
    nofollow: int
    repeated: int
    """The number of references whose canonical URL is that of an earlier link, or of the page itself."""

    excluded: Mapping[str, int]
    """For each reason, the number of links left out: a rule excludes them, or they are not valid http(s) URLs."""

    beyond_limit: int = 0
    """How many links were left out because the page has more than the limit. `found` does not count these links.

    - For links of a page: their number. For a very large page, the true number may be greater.
    - For requisites of a page (`requisites` of this object is True): only 0 or 1. 1 means one or more.
    """

    examples: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict)
    """URLs of some links that were left out, by reason, truncated to a bounded length."""

    urls: tuple[str, ...] = ()
    """The canonical URLs that the page links to, except its own, in document order, in scope or not.

    URLs longer than the spec's limit are not listed. The total length is at most `MAX_OUTLINKS_BYTES`: `urls_left_out`
    is the number of URLs beyond that.
    """

    urls_left_out: int = 0
    requisites: bool = False
    """True if the links are the requisites of a page."""

    beyond: tuple[Location, ...] = ()
    """New links out of scope that `scope.extra_hops` permits. All have the same number of extra hops: `extra`."""

    renewed: tuple[Location, ...] = ()
    """Entries of a sitemap or feed that were reported before, and whose `lastmod` is later than `changed_since`.

    They are also counted in `known`. `changed_since` is an argument of `OutlinkResolver.listed`.
    """

    lastmods: Mapping[str, int] = msgspec.field(default_factory=dict)
    """For URLs in `fresh` or `renewed`: when the page last changed, by its sitemap or feed (Unix seconds)."""

    extra: int = 0
    """The number of extra hops on the way to each link in `beyond`. Not used if `beyond` is empty.

    An extra hop is a link that leads out of the scope, or on from there. So a link from a page in scope has 1.
    """

    def left_out(self) -> dict[str, int]:
        """Return for each reason how many links are left out. Example: `{"other_host": 3, "nofollow": 1}`.

        The reasons are those in `excluded`, one for `nofollow`, and one for `beyond_limit`. A reason without links is
        missing. Links that were reported before and repeated links are not counted.
        """
        counts = {str(reason): n for reason, n in self.excluded.items()}
        if self.nofollow:
            counts[NOFOLLOW] = self.nofollow
        if self.beyond_limit:
            counts[REQUISITES_PER_PAGE if self.requisites else LINKS_PER_PAGE] = self.beyond_limit
        return counts


class _Examples:
    """Collects example URLs of the left-out links of one page, by reason, in `gathered`.

    Two limits apply to each reason:

    - At most MAX_EXAMPLES for this page: `gathered` has no more.
    - At most MAX_EXAMPLES_SENT for all pages of the crawl at one revision. The argument `sent` counts these examples by
      reason. The caller passes the same dict for each page, and `add` updates the dict.
    """

    __slots__ = ("_sent", "gathered")

    def __init__(self, sent: dict[str, int]) -> None:
        self._sent = sent
        self.gathered: dict[str, list[str]] = {}

    def add(self, reason: str, url: str, form: Callable[[str], str] = kept) -> None:
        sent = self._sent.get(reason, 0)
        if sent >= MAX_EXAMPLES_SENT:
            return
        gathered = self.gathered.setdefault(reason, [])
        if len(gathered) < MAX_EXAMPLES:
            gathered.append(form(url))
            self._sent[reason] = sent + 1


class OutlinkResolver:
    """Decides which links of one crawl's pages are reported, at one revision of its spec.

    Call `acknowledged` after the broker has acknowledged the report of the links that `outlinks` or `listed` returned.
    Until then the same links are reported again if another page has them, which is harmless.
    """

    __slots__ = ("_examples_sent", "_extract", "_generation", "_known", "_origins", "_place", "_requisites", "_scope")

    def __init__(
        self, crawl_id: CrawlId, revision: Revision, scope: CompiledScope, extract: Extract, known: KnownLinks
    ) -> None:
        self._scope = scope
        self._extract = extract
        self._known = known
        self._examples_sent: dict[str, int] = {}
        self._origins: set[str] = set()
        self._place = crawl_id, revision
        self._generation = known.generation(crawl_id, revision)
        self._requisites = known.generation(crawl_id, revision, requisites=True)

    def outlinks(
        self, page: Location, parsed: ParsedPage, *, depth: int, nofollow: bool = False, extra: int = 0
    ) -> Outlinks:
        """Return the links of the parsed `page`, fetched at `depth`: those to report, and counts of the others.

        - `nofollow`: the page's robots directives forbid following any link, even a canonical link or a refresh.
        - `extra`: how many extra hops led to the page, 0 if it is in scope.
        """
        references, unfollowed = self._references(parsed, nofollow)
        base = page.url if parsed.base_href is None else canonicalize(parsed.base_href, page.url) or page.url
        too_long = self._scope.max_url_length
        long_base = len(base) > too_long
        if long_base:
            base = origin_of(base) + "/"
        resolve, judge, contains = Resolver(base).resolve, self._scope.judge, self._known.contains
        generation, via_host, below = self._generation, page.host, depth + 1
        fresh: list[Location] = []
        beyond: list[Location] = []
        hop = extra + 1
        hopping = extra > 0 or self._scope.extra_hops > 0
        hop_generation = self._known.generation(*self._place, extra=hop) if hopping else 0
        excluded: dict[str, int] = {}
        examples = _Examples(self._examples_sent)
        seen = {page.url: None}
        known = repeated = 0
        for reference in references:
            if long_base and _RELATIVE.match(reference) is not None:
                excluded[ExclusionReason.LENGTH] = excluded.get(ExclusionReason.LENGTH, 0) + 1
                continue
            location = resolve(reference)
            if location is None:
                reason = without_url(reference)
                n = excluded[reason] = excluded.get(reason, 0) + 1
                if n <= MAX_EXAMPLES:
                    examples.add(reason, reference, written)
                continue
            url = location.url
            if len(url) > too_long:
                n = excluded[ExclusionReason.LENGTH] = excluded.get(ExclusionReason.LENGTH, 0) + 1
                if n <= MAX_EXAMPLES:
                    examples.add(ExclusionReason.LENGTH, url)
                continue
            if url in seen:
                repeated += 1
                continue
            seen[url] = None
            if contains(generation, location.fingerprint, below):
                known += 1
            elif hopping:
                place = self._scope.hops_beyond(url, location.host, depth=below, via_host=via_host, extra=extra)
                if not isinstance(place, int):
                    n = excluded[place.name] = excluded.get(place.name, 0) + 1
                    if n <= MAX_EXAMPLES:
                        examples.add(place.name, url)
                elif not place:
                    fresh.append(location)
                elif contains(hop_generation, location.fingerprint, below):
                    known += 1
                else:
                    beyond.append(location)
            elif (rule := judge(url, location.host, depth=below, via_host=via_host)) is None:
                fresh.append(location)
            else:
                n = excluded[rule.name] = excluded.get(rule.name, 0) + 1
                if n <= MAX_EXAMPLES:
                    examples.add(rule.name, url)
        for reason, some in ((NOFOLLOW, unfollowed), (LINKS_PER_PAGE, parsed.cut_links)):
            for reference in islice(some, MAX_EXAMPLES):
                if (location := resolve(reference)) is not None:
                    examples.add(reason, location.url)
        urls = tuple(seen)[1:]
        named = _fitting(urls)
        return Outlinks(
            fresh=tuple(fresh),
            depth=below,
            found=len(references) + len(unfollowed),
            known=known,
            nofollow=len(unfollowed),
            repeated=repeated,
            excluded=excluded,
            beyond_limit=parsed.links_cut,
            examples=examples.gathered,
            urls=urls[:named],
            urls_left_out=len(urls) - named,
            beyond=tuple(beyond),
            extra=hop,
        )

    def listed(
        self,
        page: Location,
        references: Iterable[Reference],
        judge: Callable[[Location], str | None],
        *,
        depth: int,
        max_requisites: int = 0,
        changed_since: int | None = None,
    ) -> Outlinks:
        """Return which of the URLs in `references` to report, and counts of the others.

        The URLs are those of a sitemap or feed, or the feeds or requisites that a page names, or sitemaps of a host.

        - `page`: the file or page to which the URLs belong. Its own URL is not reported.
        - `references`: for each URL, the text as written and its base. If the base is None, the text must be absolute.
        - `judge` returns the reason to exclude a URL, None to report it.
        - `depth`: the depth to report for the URLs.
        - `max_requisites`: if not 0, the URLs are requisites, and those after the first `max_requisites` are left out.
        - `changed_since` (Unix seconds): a URL that was reported before is put into `renewed` if its `lastmod` is later
          than this time. None: `renewed` stays empty.
        """
        contains, too_long = self._known.contains, self._scope.max_url_length
        generation = self._requisites if max_requisites else self._generation
        fresh: list[Location] = []
        excluded: dict[str, int] = {}
        examples = _Examples(self._examples_sent)
        seen = {page.url: None}
        renewed: list[Location] = []
        lastmods: dict[str, int] = {}
        found = known = repeated = cut = lastmod = 0
        for entry in references:
            reference, base = entry[0], entry[1]
            if changed_since is not None:
                lastmod = entry[2] if len(entry) > 2 else 0
            found += 1
            location = locate(reference, base)
            reason: str | None
            if location is None:
                reason = without_url(reference)
            elif len(location.url) > too_long:
                reason = ExclusionReason.LENGTH
            elif location.url in seen:
                repeated += 1
                continue
            else:
                if max_requisites and len(seen) > max_requisites:
                    cut = 1
                    break
                seen[location.url] = None
                if contains(generation, location.fingerprint, 0 if max_requisites else depth):
                    known += 1
                    if changed_since is not None and lastmod > changed_since:
                        renewed.append(location)
                        lastmods[location.url] = lastmod
                    continue
                reason = judge(location)
            if reason is None:
                assert location is not None
                fresh.append(location)
                if lastmod:
                    lastmods[location.url] = lastmod
                continue
            n = excluded[reason] = excluded.get(reason, 0) + 1
            if n <= MAX_EXAMPLES:
                examples.add(reason, reference if location is None else location.url, written)
        urls = tuple(seen)[1:]
        named = _fitting(urls)
        return Outlinks(
            fresh=tuple(fresh),
            depth=depth,
            found=found - cut,
            known=known,
            nofollow=0,
            repeated=repeated,
            excluded=excluded,
            beyond_limit=cut,
            examples=examples.gathered,
            urls=urls[:named],
            urls_left_out=len(urls) - named,
            requisites=max_requisites > 0,
            renewed=tuple(renewed),
            lastmods=lastmods,
        )

    def first_of(self, origin: str) -> bool:
        """Return True at the first call for `origin`, so that the caller counts its excluded sitemaps only once.

        Above `_MAX_ORIGINS` origins, all earlier ones are forgotten.
        """
        if origin in self._origins:
            return False
        if len(self._origins) >= _MAX_ORIGINS:
            self._origins.clear()
        self._origins.add(origin)
        return True

    def acknowledged(self, outlinks: Outlinks) -> None:
        """Remember the links in `fresh` and `beyond` as reported, because the broker has acknowledged their report."""
        fingerprints = (location.fingerprint for location in outlinks.fresh)
        if outlinks.requisites:
            self._known.remember(self._requisites, fingerprints, 0)
        else:
            self._known.remember(self._generation, fingerprints, outlinks.depth)
        if outlinks.beyond:
            generation = self._known.generation(*self._place, extra=outlinks.extra)
            beyond = (location.fingerprint for location in outlinks.beyond)
            self._known.remember(generation, beyond, outlinks.depth)

    def example(self, reason: str, url: str) -> Mapping[str, Sequence[str]]:
        """Return `{reason: [url]}`, an example of a link left out. Return `{}` if enough examples were sent."""
        examples = _Examples(self._examples_sent)
        examples.add(reason, url, written)
        return examples.gathered

    def _references(self, parsed: ParsedPage, page_nofollow: bool) -> tuple[dict[str, None], dict[str, None]]:
        """Return the distinct references to follow, and those not to follow, each in order."""
        follow_all = self._extract.follow_nofollow
        references = dict.fromkeys(parsed.anchors)
        refused: dict[str, None] = {}
        for link in parsed.marked:
            if link.nofollow and not follow_all:
                refused[link.href] = None
            else:
                references[link.href] = None
        if self._extract.canonical_links and parsed.canonical is not None:
            references[parsed.canonical] = None
        if self._extract.meta_refresh and parsed.refresh is not None:
            references[parsed.refresh.target] = None
        if page_nofollow and not follow_all:
            return {}, references | refused
        return references, {reference: None for reference in refused if reference not in references}


def _fitting(urls: Sequence[str]) -> int:
    """Return the greatest n for which the first n URLs have at most `MAX_OUTLINKS_BYTES` in all."""
    if sum(map(len, urls)) <= MAX_OUTLINKS_BYTES:
        return len(urls)
    return bisect_right(list(accumulate(map(len, urls))), MAX_OUTLINKS_BYTES)


def without_url(reference: str) -> str:
    """Return the reason to leave out a link that cannot be turned into an http(s) URL. `reference`: the link's text.

    The reason is ExclusionReason.SCHEME if the text names another scheme, such as `mailto:`. Otherwise it is INVALID.
    """
    return ExclusionReason.SCHEME if names_other_scheme(reference) else INVALID


def redirect_target(location: str, page_url: str) -> str | None:
    """Return the canonical URL that a redirect's Location header names, or None if it names no usable URL."""
    return canonicalize(header_text(location), page_url)


def header_text(value: str) -> str:
    """Return the text of a header value that was decoded as Latin-1. Like browsers, decode its bytes as UTF-8 if they
    are valid.
    """
    if not value.isascii():
        with suppress(UnicodeError):  # not Latin-1 or not UTF-8: return the value unchanged
            return value.encode("latin-1").decode()
    return value
