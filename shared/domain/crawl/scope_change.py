"""Decide which URLs that a crawl found earlier are in scope now, after a change of its scope. The module does no I/O.

A URL is judged by what is stored of how it was found: its depth, its redirects, its kind, and the host of the page that
led to it. No page led to a seed, so only schemes, length and exclude patterns apply to a seed.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

from msgspec import Struct

from shared.domain.crawl.host_specs import HostSpecs
from shared.domain.crawl.override_spec import SCOPE_FIELDS
from shared.domain.crawl.scope import CompiledScope, ExclusionReason, ScopeRule, home, prefixes
from shared.domain.crawl.spec import CrawlSpec, ScopeMode
from shared.domain.frontier.states import ALSO_PAGE, UrlKind, extra_hops_of, kind_of
from shared.domain.ids import CrawlId, Revision

BY_SCOPE: Final = frozenset(ExclusionReason) - {ExclusionReason.ROBOTS}
"""The exclusion reasons that are rules of the scope, such as `depth`. Another scope may admit URLs excluded for them.

`robots` is the only member of ExclusionReason that is no rule of the scope."""


def same_scope(before: CrawlSpec, after: CrawlSpec) -> bool:
    """Return True if both specs judge each link in the same way: their scopes are equal, also in overrides.

    A link is mostly judged relative to the page that has it, so the seeds of the specs may differ. But in two cases
    the seeds decide about links, too, and are compared:

    - `extra_hops` is set: the seeds must have the same hosts, or in mode domain the same registrable domains.
    - The mode is prefix, or an override sets a mode: the seeds must have the same prefixes.
    """
    if before.scope != after.scope or (after.scope.extra_hops and home(before) != home(after)):
        return False
    overrides = _scopes_of_hosts(after)
    if overrides != _scopes_of_hosts(before):
        return False
    # An override of the mode may make other seeds matter.
    modes = after.scope.mode is ScopeMode.PREFIX or any(each.mode is not None for each in after.overrides)
    return not modes or prefixes(before) == prefixes(after)


def needs_seeds(spec: CrawlSpec) -> bool:
    """Return True if the seeds of the spec decide which links are in scope: in mode prefix, and with extra hops."""
    modes = spec.scope.mode, *(override.mode for override in spec.overrides)
    return spec.scope.extra_hops > 0 or ScopeMode.PREFIX in modes


def same_admission(before: CrawlSpec, after: CrawlSpec) -> bool:
    """Return True if the scopes are equal (`same_scope`), and no host has a higher limit of pages in `after`.

    A lower limit also gives True, because it admits no further URL.
    """
    return same_scope(before, after) and not _host_limit_rises(before, after)


def _host_limit_rises(before: CrawlSpec, after: CrawlSpec) -> bool:
    if not HostSpecs(before).limits_pages_per_host:
        return False
    patterns = {host for spec in (before, after) for override in spec.overrides for host in override.hosts}
    earlier, later = HostSpecs(before), HostSpecs(after)
    pairs = [(before, after), *((earlier.of(host), later.of(host)) for host in patterns)]
    return any(limit_rises(old.budget.max_pages_per_host, new.budget.max_pages_per_host) for old, new in pairs)


def limit_rises(old: int | None, new: int | None) -> bool:
    """Return True if the limit `new` is higher than `old`. None means no limit."""
    return old is not None and (new is None or new > old)


def _scopes_of_hosts(spec: CrawlSpec) -> list[tuple[object, ...]]:
    """Return the hosts and scope fields of each override, or an empty list if no override changes the scope.

    The order is that of the spec.
    """
    if not any(override.changes_scope for override in spec.overrides):
        return []
    return [(each.hosts, *(getattr(each, name) for name in SCOPE_FIELDS)) for each in spec.overrides]


def scope_command_of(crawl_id: CrawlId, revision: Revision) -> str:
    """Return the id of the RESCOPE command for a revision of a crawl.

    It depends on the arguments only, so duplicates of the command have the same id.
    """
    return f"rescope-{crawl_id}-{revision}"


def judge_found(
    scope: CompiledScope, url: str, host: str, *, depth: int, hops: int, flags: int, via_host: str | None
) -> ScopeRule | None:
    """Return the first rule of the scope that excludes a URL found earlier, or None if the scope admits the URL.

    A URL that is both a requisite and a page is admitted if the scope admits it as one of the two.

    - `depth`, `hops`, `flags`: the depth, the redirects in a row and the flags that are stored in the URL's row.
    - `via_host`: the host of the page that led to the URL, None for a seed.
    """
    found = found_beyond(scope, url, host, depth=depth, hops=hops, flags=flags, via_host=via_host)
    return None if isinstance(found, int) else found


def found_beyond(
    scope: CompiledScope, url: str, host: str, *, depth: int, hops: int, flags: int, via_host: str | None
) -> ScopeRule | int:
    """Return the rule of `scope` that excludes a stored URL. If no rule does, return the URL's number of extra hops.

    An extra hop is a link that leads out of the scope, or on from there. The result is 0 if the URL is in scope. Seeds,
    sitemaps, feeds and the pages that sitemaps and feeds list never have extra hops. A redirect of a listed page may
    have.

    - `depth`, `flags`: the depth and the flags that are stored in the URL's row.
    - `hops`: the stored number of redirects in a row that led to the URL. These are redirects, not extra hops.
    - `via_host`: the host of the page that led to the URL, None for a seed.
    """
    kind, extra = kind_of(flags), extra_hops_of(flags)
    if kind.listing:
        return scope.judge_listing(url, host, depth=depth, via_host=via_host or host, hops=hops) or 0
    if kind is UrlKind.REQUISITE:
        rule = scope.judge_requisite(url, host, via_host=via_host or host, hops=hops)
        if not flags & ALSO_PAGE:
            return rule or 0
        if rule is None:
            return extra
    redirected = depth == 0 and hops > 0
    if kind is UrlKind.LISTED and not extra:
        return scope.judge(url, host, depth=depth, via_host=via_host, via_seed_redirect=redirected, hops=hops) or 0
    beyond = partial(
        scope.hops_beyond, url, host, depth=depth, via_host=via_host, via_seed_redirect=redirected, hops=hops
    )
    found = beyond(extra=extra_of_page(extra, hops))
    if found != 0 and not extra and via_host is not None and not scope.has_seeds_on(via_host):
        # The page that led to the URL was beyond the scope. Its links to the hosts of the seeds are in scope.
        return 0 if scope.extra_hops and beyond(extra=1) == 0 else found
    return found


def extra_of_page(extra: int, hops: int) -> int:
    """Return the extra hops of the page before a stored URL, computed from the extra hops of the URL itself.

    A page or URL in scope has 0 extra hops. Outside the scope, each link adds 1, and a redirect is assumed to add none:

    - A link led to the URL: `extra_of_page(2, hops=0)` returns 1.
    - A redirect led to the URL: `extra_of_page(2, hops=1)` returns 2.
    - The URL is in scope: `extra_of_page(0, hops=0)` returns 0.

    `extra`: the extra hops of the URL. `hops`: the number of redirects in a row that led to the URL.
    """
    return extra if hops else max(0, extra - 1)


class ChangedScope(Struct, frozen=True):
    """The scope that a RESCOPE command applies to the URLs of a crawl.

    `revisits`: the crawl fetches stored pages again. `host_specs`: the spec as it applies to each host.
    """

    scope: CompiledScope
    revisits: bool
    host_specs: HostSpecs

    def gives_more(self, host: str, pages: int) -> bool:
        """Return True if the limit of pages per host allows the crawl to store more pages of `host`.

        `pages`: how many pages of the host are stored already.
        """
        limit = self.host_specs.of(host).budget.max_pages_per_host
        return limit is None or pages < limit


class ScopeChange(Struct, frozen=True):
    """What a changed scope would remove from the queue of a crawl, counted or estimated from a sample of its URLs.

    - `queued`: how many URLs are queued now. Stored pages that wait for their next fetch are included.
    - `leaving`: how many of the queued URLs the new scope excludes, by rule.
    - `read`: how many URLs were judged. If it equals `queued`, the numbers of `leaving` are exact. Otherwise they are
      estimates.
    """

    queued: int
    read: int
    leaving: Mapping[str, int]
