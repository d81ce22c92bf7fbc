"""Decide if a new spec may admit more links, and which stored links of a page the present scope admits.

The archive stores the links of each page, and how each was found. The present scope judges these links as if the page
had just been fetched. The module does no I/O.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from shared.domain.archive.model import RecordLocation
from shared.domain.crawl.host_specs import HostSpecs
from shared.domain.crawl.requisites_spec import Requisites
from shared.domain.crawl.scope import CompiledScope, home, prefixes
from shared.domain.crawl.scope_change import found_beyond, limit_rises
from shared.domain.crawl.spec import CrawlSpec, Scope, ScopeMode, Traps
from shared.domain.frontier.seed_contexts import SeedContext
from shared.domain.frontier.states import UrlKind, kind_of
from shared.domain.ids import CrawlId, Fingerprint, HostId, Revision
from shared.domain.web.url import Location, locate

PAGES_A_CHUNK: Final = 100
"""One chunk of a REDISCOVER command reads at most this many pages from the archive."""

LINKS_A_CHUNK: Final = 5_000
"""A chunk of a REDISCOVER command reads no further page once it has found at least this many links."""

_NARROWER: Final = frozenset(
    {
        (ScopeMode.DOMAIN, ScopeMode.HOST),
        (ScopeMode.ANY, ScopeMode.HOST),
        (ScopeMode.ANY, ScopeMode.DOMAIN),
        (ScopeMode.ANY, ScopeMode.PREFIX),
    }
)
_REQUISITES: Final = (Requisites.NONE, Requisites.SAME_HOST, Requisites.ALL)


def may_admit_more(before: CrawlSpec, after: CrawlSpec) -> bool:
    """Return True if the scope of `after` may admit links that the scope of `before` excludes.

    True may be wrong, False is certain. The scopes of hosts with overrides are compared, too.
    """
    if _admits_more(before, after):
        return True
    patterns = {host for spec in (before, after) for override in spec.overrides for host in override.hosts}
    earlier, later = HostSpecs(before), HostSpecs(after)
    # A pattern such as `*.example.org` is looked up as a host: the overrides of all hosts below apply to it.
    return any(_admits_more(earlier.of(host), later.of(host)) for host in patterns)


def _admits_more(before: CrawlSpec, after: CrawlSpec) -> bool:
    old, new = before.scope, after.scope
    if old.mode is not new.mode and (old.mode, new.mode) not in _NARROWER:
        return True
    if new.mode is ScopeMode.PREFIX and old.mode is ScopeMode.PREFIX and prefixes(before) != prefixes(after):
        return True
    if new.extra_hops and home(before) != home(after):
        return True
    return _limits_rise(old, new) or _patterns_admit(old, new) or _traps_open(old.traps, new.traps)


def _limits_rise(old: Scope, new: Scope) -> bool:
    return (
        limit_rises(old.max_depth, new.max_depth)
        or new.max_url_length > old.max_url_length
        or new.extra_hops > old.extra_hops
        or bool(set(new.schemes) - set(old.schemes))
        or _REQUISITES.index(new.requisites) > _REQUISITES.index(old.requisites)
    )


def _patterns_admit(old: Scope, new: Scope) -> bool:
    included = bool(old.include) and (not new.include or bool(set(new.include) - set(old.include)))
    return included or bool(set(old.exclude) - set(new.exclude))


def _traps_open(old: Traps, new: Traps) -> bool:
    return (
        limit_rises(old.max_segment_repeats, new.max_segment_repeats)
        or limit_rises(old.max_parameter_repeats, new.max_parameter_repeats)
        or (old.cycles and not new.cycles)
    )


def rediscovery_of(crawl_id: CrawlId, revision: Revision) -> str:
    """Return the id of the REDISCOVER command for a revision of a crawl.

    It depends on the arguments only, so duplicates of the command have the same id.
    """
    return f"rediscover-{crawl_id}-{revision}"


class ReadablePage(Struct, frozen=True):
    """A fetched page whose links a REDISCOVER command judges again, since the scope excluded some of them before.

    The links are read from the archive. If the archive does not have all of them, the page is fetched again.

    - `via_host`: the host of the page that led to this page, None for a seed.
    - `location`: where the page's record is in the archive. None: it has no record, since `media.stored` leaves its
      type out.
    - `unlisted`: the archive does not have all links of the page.
    - `context`: the context of the seed from which the page was found.
    """

    host_id: HostId
    host: str
    fingerprint: Fingerprint
    url: str
    depth: int
    hops: int
    flags: int
    via_host: str | None
    location: RecordLocation | None
    unlisted: bool
    context: SeedContext | None = None


class ReadablePages(Struct, frozen=True):
    """The pages of one chunk of a REDISCOVER command. An owner runs the command in chunks of at most PAGES_A_CHUNK.

    - `pages`: the pages whose links the owner must read in this chunk.
    - `rest`: where the chunk after this one begins, as a progress number (module `command_progress`). None: this chunk
      is the last one.
    """

    pages: Sequence[ReadablePage]
    rest: int | None


class Rediscovered(Struct, frozen=True):
    """What a chunk of a REDISCOVER command did.

    - `pages`, `links`: how many pages were read, and how many links were published.
    - `again`: the pages to queue again.
    - `rest`: the progress number from which the next chunk continues. None: this was the last chunk.
    """

    pages: int
    links: int
    again: Sequence[tuple[HostId, Fingerprint]]
    rest: int | None


class FoundAgain(Struct, frozen=True):
    """A link of a stored page that the present scope admits.

    - `depth`: the number of links from a seed to the URL.
    - `hops`: the number of redirects in a row that led to the URL.
    - `extra`: by how many extra hops the URL is beyond the scope. 0: it is in scope.
    - `kind`: the kind of the URL that the link leads to, such as a page or a requisite.
    """

    location: Location
    depth: int
    hops: int
    kind: UrlKind
    extra: int


def hops_of_page(scope: CompiledScope, page: ReadablePage) -> int | None:
    """Return the number of extra hops of a stored page: 0 if the page is in scope, more if it lies beyond.

    Return None if a rule excludes the page.
    """
    found = found_beyond(
        scope, page.url, page.host, depth=page.depth, hops=page.hops, flags=page.flags, via_host=page.via_host
    )
    return found if isinstance(found, int) else None


def found_again(scope: CompiledScope, page: ReadablePage, outlinks: Iterable[tuple[str, str]]) -> list[FoundAgain]:
    """Return the stored links of a page that the present scope admits. Empty if the scope excludes the page itself.

    The result has each URL at most once as a page and once as a requisite. Entries of sitemaps and feeds are left out.
    `outlinks`: pairs of a URL and how it was found, as the archive stores them.
    """
    extra = hops_of_page(scope, page)
    if extra is None:
        return []
    found: dict[tuple[str, bool], FoundAgain] = {}
    for url, how in outlinks:
        location = locate(url)
        if location is None or location.url == page.url:
            continue
        link = _admitted(scope, page, extra, location, how[:1])
        if link is not None:
            found.setdefault((location.url, link.kind is UrlKind.REQUISITE), link)
    return list(found.values())


def _admitted(scope: CompiledScope, page: ReadablePage, extra: int, to: Location, hop: str) -> FoundAgain | None:
    """Return the stored link of `page` to the URL `to`, or None if the scope excludes it.

    - `extra`: by how many extra hops the page is beyond the scope. 0: it is in scope.
    - `hop`: how the link was found: `L` as a link, `R` as a redirect, `E` as a requisite. Return None for any other
      letter.
    """
    kind, depth, hops = kind_of(page.flags), page.depth, page.hops + 1
    beyond = 0
    match hop:
        case "E":
            hops = hops if kind is UrlKind.REQUISITE else 1
            kind = UrlKind.REQUISITE
            rule = scope.judge_requisite(to.url, to.host, via_host=page.host, hops=hops)
        case "R" if kind is UrlKind.REQUISITE:
            rule = scope.judge_requisite(to.url, to.host, via_host=page.host, hops=hops)
        case "R" if kind.listing:
            rule = scope.judge_listing(to.url, to.host, depth=depth, via_host=page.host, hops=hops)
        case "R" | "L":
            redirect = hop == "R"
            kind = kind if redirect else UrlKind.PAGE
            depth, hops = (depth, hops) if redirect else (depth + 1, 0)
            verdict = scope.hops_beyond(
                to.url,
                to.host,
                depth=depth,
                via_host=page.host,
                via_seed_redirect=redirect and depth == 0,
                hops=hops,
                extra=extra,
            )
            if isinstance(verdict, int):
                beyond, rule = verdict, None
            else:
                rule = verdict
        case _:
            return None
    return FoundAgain(to, depth, hops, kind, beyond) if rule is None else None
