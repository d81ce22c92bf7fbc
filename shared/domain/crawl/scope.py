"""Scope: decide which URLs belong to a crawl, and which rule excludes the others.

A link is judged relative to the page that has it. For example, mode host admits a link to another URL of the page's
host. Of all rules, only `schemes`, `max_url_length` and `exclude` apply to a seed.

The target of a seed's redirect is judged like a link on the seed's page, but less strictly:

- It may be on another host of the same registrable domain (example.org -> www.example.org).
- `include` and the traps do not apply to it.

In mode prefix, a linked page or a redirect's target must lie below the path of a seed of the spec. Seeds of uploads and
seed sets do not count.

With `extra_hops`, a crawl also follows links that lead out of the scope. Each URL then has a number of extra hops. The
number is 0 for a URL in scope. A URL whose number exceeds `extra_hops` is excluded. The number of a link's target
depends on the page that has the link:

- The page has 0, so it is in scope. Then the target is judged relative to this page, as without `extra_hops`. If the
  target is admitted, it has 0. If only `mode` or `include` excludes it, it has 1.
- The page has 1 or more, so it is out of scope. Then the target is judged relative to the seeds of the spec. If
  `include` admits the target, and it is on the host, on the domain or below the prefix of such a seed, as `mode` says,
  it has 0. Otherwise it has one more than the page. In mode any, `include` alone decides.

For example, the mode is host, and the seeds are on a.test and b.test. A link from a.test to b.test gives 1, because the
hosts differ. A link from c.test, which has 1, to b.test gives 0, because b.test is the host of a seed.
"""

import re
from collections.abc import Iterator
from enum import StrEnum
from functools import lru_cache
from typing import Final, assert_never

from msgspec import Struct

from shared.domain.crawl.patterns import PatternRefused, Patterns
from shared.domain.crawl.requisites_spec import MAX_REQUISITE_HOPS, REQUISITE_HOST, Requisites
from shared.domain.crawl.spec import CrawlSpec, ScopeMode
from shared.domain.crawl.spec_rules import refused_pattern
from shared.domain.crawl.traps import trap
from shared.domain.web.url import host_of, registrable_domain, scheme_of

MAX_HOPS: Final = 10
"""A crawl follows at most this many redirects in a row: the target of the eleventh redirect is excluded. A step from a
sitemap to a sitemap that it lists counts like a redirect. Extra hops do not count."""

SIZE_OF_A_WEIGHT: Final = 200
"""The size of compiled patterns, in instructions, that adds 1 to `CompiledScope.weight`. The weight estimates the cost
of reading the links of a page."""

_FILE: Final = re.compile(r"\.[A-Za-z][A-Za-z0-9]{1,4}$").search
"""Finds the file extension at the end of a path, such as `.html`."""

_REQUISITES_WEIGHT: Final = 2
"""What requisites add to `CompiledScope.weight`, the estimated cost of reading the links of a page."""

_BEYOND: Final = frozenset(("other_host", "other_domain", "outside_prefix", "include_pattern"))
"""The rules that `extra_hops` relaxes: a URL that only they exclude may be followed as an extra hop."""

_CACHE: Final = 8192
"""Each of the two caches of a scope has at most this many entries (about 200 bytes each)."""


class ExclusionReason(StrEnum):
    """The exclusion reasons that are rules of a crawl's scope, and ROBOTS (the site's robots.txt, read at the visit).

    Exclusion reasons that come from elsewhere, such as `owner` and `seed_deleted`, are no members. SCHEME is also the
    reason for links with a scheme that no spec allows (`mailto:`).
    """

    HOPS = "redirects"
    DEPTH = "depth"
    HOST = "other_host"
    PORT = "other_port"
    DOMAIN = "other_domain"
    PREFIX = "outside_prefix"
    SCHEME = "scheme"
    LENGTH = "url_length"
    EXCLUDE = "exclude_pattern"
    INCLUDE = "include_pattern"
    TRAP = "trap"
    ROBOTS = "robots"
    REQUISITE = REQUISITE_HOST


class ScopeRule(Struct, frozen=True):
    """The rule of the scope that excludes a URL. `name`: the rule. `detail`: how it applies to the URL, in words."""

    name: ExclusionReason
    detail: str


class Verdict(Struct, frozen=True):
    """The result of one rule of the scope for a URL.

    `allowed`: True if the rule admits the URL. `detail`: the reason in words.
    """

    rule: ExclusionReason
    allowed: bool
    detail: str


class CompiledScope:
    """The compiled scope of a spec, which decides which URLs belong to the crawl.

    `problem`: a message if a pattern of the spec cannot be used, else None. `judge` then raises PatternRefused, and
    `explain` reports the message. Only a stored spec can have a problem, because `parse_spec` refuses such patterns.
    """

    def __init__(self, spec: CrawlSpec) -> None:
        self._scope = scope = spec.scope
        self.max_url_length: Final = scope.max_url_length
        self.problem: Final = refused_pattern(scope, spec.extract, overrides=spec.overrides)
        self._place_rule: Final = {
            ScopeMode.HOST: ExclusionReason.HOST,
            ScopeMode.DOMAIN: ExclusionReason.DOMAIN,
            ScopeMode.PREFIX: ExclusionReason.PREFIX,
            ScopeMode.ANY: ExclusionReason.HOST,
        }[scope.mode]
        self._max_depth: Final = 1 << 62 if scope.max_depth is None else scope.max_depth
        self._by_host: Final = scope.mode is ScopeMode.HOST or scope.mode is ScopeMode.DOMAIN
        self._any: Final = scope.mode is ScopeMode.ANY
        self._include: Final = Patterns(scope.include if self.problem is None else ())
        self._exclude: Final = Patterns(scope.exclude if self.problem is None else ())
        patterns = (self._include.size + self._exclude.size) // SIZE_OF_A_WEIGHT
        self.weight = 1 + patterns + (0 if scope.requisites is Requisites.NONE else _REQUISITES_WEIGHT)
        """The cost of reading the links of a page, relative to a scope without patterns and requisites."""
        self._prefixes: Final = prefixes(spec) if scope.mode is ScopeMode.PREFIX else {}
        self._all_prefixes: Final = tuple({prefix for paths in self._prefixes.values() for prefix in paths})
        self.extra_hops: Final = scope.extra_hops
        self._home: Final = home(spec) if scope.extra_hops else frozenset()
        self._alone: Final = lru_cache(_CACHE)(self._judge_alone)
        self._elsewhere: Final = lru_cache(_CACHE)(self._judge_host)

    def judge(
        self,
        url: str,
        host: str,
        *,
        depth: int,
        via_host: str | None,
        via_seed_redirect: bool = False,
        hops: int = 0,
    ) -> ScopeRule | None:
        """Return the first rule that excludes `url` (canonical, on `host`), or None if it belongs to the crawl.

        - `depth`: the number of links from a seed to the URL.
        - `via_host`: the host of the page or redirect that led to the URL, None for a seed.
        - `via_seed_redirect`: only redirects lie between a seed and the URL.
        - `hops`: the number of redirects in a row that led to the URL.
        """
        if via_host is None:
            return self._alone(url, True)
        if hops > MAX_HOPS:
            return ScopeRule(ExclusionReason.HOPS, f"more than {MAX_HOPS} redirects in a row")
        if depth > self._max_depth:
            return ScopeRule(ExclusionReason.DEPTH, f"depth {depth} is over {self._max_depth}")
        if not self._any:
            if self._by_host:
                if host != via_host and (rule := self._elsewhere(host, via_host, via_seed_redirect)):
                    return rule
            elif rule := self._judge_prefix(url, host, via_host, via_seed_redirect):
                return rule
        return self._alone(url, via_seed_redirect)

    def hops_beyond(
        self,
        url: str,
        host: str,
        *,
        depth: int,
        via_host: str | None,
        via_seed_redirect: bool = False,
        hops: int = 0,
        extra: int = 0,
    ) -> ScopeRule | int:
        """Return how many extra hops lead to `url`, or the rule that excludes `url`.

        - If `url` is in scope: 0.
        - If `url` is out of scope: `extra + 1`. If a redirect (`hops` > 0) from a URL out of scope (`extra` > 0) leads
          to `url`: only `extra`.
        - If this number exceeds the spec's `extra_hops`, or another rule such as `exclude` excludes `url`: the rule.

        The parameters:

        - `depth`: the number of links from a seed to the URL.
        - `via_host`: the host of the page or redirect that led to the URL, None for a seed.
        - `via_seed_redirect`: only redirects lie between a seed and the URL.
        - `hops`: the number of redirects in a row that led to the URL. 0: a link led to it. Extra hops do not count.
        - `extra`: the number of extra hops of the page or redirect that led to the URL. 0: it is in scope.
        """
        rule: ScopeRule | None
        if not extra:
            rule = self.judge(url, host, depth=depth, via_host=via_host, via_seed_redirect=via_seed_redirect, hops=hops)
            if rule is None or via_host is None or not self.extra_hops or rule.name not in _BEYOND:
                return 0 if rule is None else rule
        elif hops > MAX_HOPS or depth > self._max_depth:
            rule = self.judge(url, host, depth=depth, via_host=via_host, hops=hops)
            assert rule is not None, "a limit was exceeded"
            return rule
        elif not self._at_home(url, host):
            rule = None
        elif (rule := self._alone(url, False)) is None or rule.name not in _BEYOND:
            return 0 if rule is None else rule
        beyond = extra if extra and hops else extra + 1
        if beyond > self.extra_hops:
            detail = f"{beyond} hops beyond the scope, limit {self.extra_hops}"
            return rule or ScopeRule(self._place_rule, detail)
        if self.problem is not None:
            raise PatternRefused(self.problem)
        for name, why in self._alone_rules(url, False):
            if why is not None and name is not ExclusionReason.INCLUDE:
                return ScopeRule(name, why)
        return beyond

    def _at_home(self, url: str, host: str) -> bool:
        """Return True if `mode` admits `url` because of the seeds of the spec, whatever page links to it.

        That is so if `has_seeds_on` is True for its host. In mode prefix, the URL must also lie below a seed's path.
        """
        if self._scope.mode is ScopeMode.PREFIX and self._judge_prefix(url, host, host, False) is not None:
            return False
        return self.has_seeds_on(host)

    def has_seeds_on(self, host: str) -> bool:
        """Return True if a seed is on `host`, or in mode domain on its registrable domain. In mode any: always True."""
        match self._scope.mode:
            case ScopeMode.HOST:
                return host in self._home
            case ScopeMode.DOMAIN:
                return registrable_domain(host) in self._home
            case ScopeMode.PREFIX:
                return host in self._prefixes
            case ScopeMode.ANY:
                return True
            case never:
                assert_never(never)

    def judge_listing(self, url: str, host: str, *, depth: int, via_host: str, hops: int) -> ScopeRule | None:
        """Return the first rule that excludes a sitemap or feed, or None if it may be fetched.

        Include patterns, traps and the prefixes of seeds do not apply to a sitemap or feed.

        - `depth`: the number of links from a seed to the sitemap or feed. The URLs that it lists are one link deeper.
        - `via_host`: the host of the page, sitemap or redirect that led to it.
        - `hops`: how many sitemaps and redirects in a row led to it.
        """
        if hops > MAX_HOPS:
            return ScopeRule(ExclusionReason.HOPS, f"more than {MAX_HOPS} sitemaps or redirects lead to it")
        if depth >= self._max_depth:
            return ScopeRule(ExclusionReason.DEPTH, f"its entries are at depth {depth + 1}, over {self._max_depth}")
        elsewhere = not self._any and host != via_host and host not in self._prefixes
        return (self._elsewhere(host, via_host, False) if elsewhere else None) or self._alone(url, True)

    def judge_requisite(self, url: str, host: str, *, via_host: str, hops: int) -> ScopeRule | None:
        """Return the first rule that excludes a requisite, or None if it may be fetched.

        The limit of depth, include patterns, traps and the prefixes of seeds do not apply to a requisite.

        - `via_host`: the host of the page, stylesheet or redirect that led to it.
        - `hops`: how many stylesheets and redirects in a row led to it.
        """
        if hops > MAX_REQUISITE_HOPS:
            why = f"more than {MAX_REQUISITE_HOPS} stylesheets and redirects in a row"
            return ScopeRule(ExclusionReason.HOPS, why)
        if self._scope.requisites is Requisites.NONE:
            return ScopeRule(ExclusionReason.REQUISITE, "scope.requisites is none")
        if host != via_host and self._scope.requisites is not Requisites.ALL:
            return ScopeRule(ExclusionReason.REQUISITE, f"{host} is not {via_host}")
        return self._alone(url, True)

    def explain(
        self,
        url: str,
        host: str,
        *,
        depth: int,
        via_host: str | None,
        via_seed_redirect: bool = False,
        hops: int = 0,
        extra: int = 0,
    ) -> list[Verdict]:
        """Return one verdict for each rule that applies to `url`, in the order in which `judge` checks the rules.

        The URL is excluded if at least one verdict is not `allowed`.

        If the URL is admitted because of `extra_hops`, the verdict on `mode` has their number in its detail.
        The rule `include` does not apply to such a URL, so there is no verdict on it.

        - `depth`: the number of links from a seed to the URL.
        - `via_host`: the host of the page or redirect that led to the URL, None for a seed.
        - `via_seed_redirect`: only redirects lie between a seed and the URL.
        - `hops`: the number of redirects in a row that led to the URL. These are redirects, not extra hops.
        - `extra`: the number of extra hops on the way to the page or redirect that led to the URL.
        """
        verdicts = []
        beyond = 0
        if via_host is not None and self.problem is None and (self.extra_hops or extra):
            redirect = via_seed_redirect
            of = self.hops_beyond(
                url, host, depth=depth, via_host=via_host, via_seed_redirect=redirect, hops=hops, extra=extra
            )
            beyond = of if isinstance(of, int) else 0
        if via_host is not None:
            verdicts.append(Verdict(ExclusionReason.HOPS, hops <= MAX_HOPS, f"{hops} of {MAX_HOPS} redirects in a row"))
            limit = "no limit" if self._scope.max_depth is None else f"limit {self._max_depth}"
            verdicts.append(Verdict(ExclusionReason.DEPTH, depth <= self._max_depth, f"depth {depth}, {limit}"))
            place = self._place_of_hop(url, host, via_host, via_seed_redirect, hops, extra)
            detail = f"in scope from {via_host} in mode {self._scope.mode}" if place is None else place.detail
            passed = beyond > 0 and (place is None or place.name in _BEYOND)
            if passed:
                unit = "hop" if beyond == 1 else "hops"
                detail = f"{beyond} {unit} beyond the scope, limit {self.extra_hops} (scope.extra_hops)"
            verdicts.append(Verdict(self._place_rule if place is None else place.name, place is None or passed, detail))
        seed_like = via_host is None or via_seed_redirect
        for name, why in self._alone_rules(url, seed_like and not beyond):
            if not (beyond and name is ExclusionReason.INCLUDE):
                verdicts.append(Verdict(name, why is None, why or "allowed"))
        return verdicts

    def _place_of_hop(
        self, url: str, host: str, via_host: str, redirect: bool, hops: int, extra: int
    ) -> ScopeRule | None:
        if not extra:
            return self._judge_place(url, host, via_host, redirect)
        beyond = extra if hops else extra + 1
        detail = f"{beyond} hops beyond the scope, limit {self.extra_hops}"
        return None if self._at_home(url, host) else ScopeRule(self._place_rule, detail)

    def _judge_place(self, url: str, host: str, via_host: str, redirect: bool) -> ScopeRule | None:
        match self._scope.mode:
            case ScopeMode.HOST | ScopeMode.DOMAIN:
                return self._judge_host(host, via_host, redirect)
            case ScopeMode.PREFIX:
                return self._judge_prefix(url, host, via_host, redirect)
            case ScopeMode.ANY:
                return None
            case never:
                assert_never(never)

    def _judge_host(self, host: str, via_host: str, redirect: bool) -> ScopeRule | None:
        if host == via_host:
            return None
        if redirect or self._scope.mode is ScopeMode.DOMAIN:
            domain, via_domain = registrable_domain(host), registrable_domain(via_host)
            return None if domain == via_domain else ScopeRule(self._place_rule, f"{domain} is not {via_domain}")
        return ScopeRule(_other(host, via_host, self._place_rule), f"{host} is not {via_host}")

    def _judge_prefix(self, url: str, host: str, via_host: str, redirect: bool) -> ScopeRule | None:
        """Return the rule that excludes `url` in mode prefix, or None if the mode admits it.

        Seeds are the seeds of the spec here, not those of uploads and seed sets. Each seed gives a prefix, such as
        `/docs/` (see `prefixes`).

        - If a seed is on `host`: the path of `url` must begin with the prefix of a seed on this host.
        - If no seed is on `host`: the path must begin with the prefix of a seed on any host. Also, `host` must be the
          host of the page that led to `url` (`via_host`). After redirects of a seed (`redirect`), both hosts need only
          have the same registrable domain.
        """
        paths = self._prefixes.get(host)
        if paths is None:
            if not (host == via_host or (redirect and registrable_domain(host) == registrable_domain(via_host))):
                return ScopeRule(_other(host, via_host, ExclusionReason.PREFIX), f"no seed of the spec is on {host}")
            paths = self._all_prefixes
        path = url[url.index("/", 8) :]
        # The prefix `/docs?` includes `/docs` with a query. The `?` added here makes it match without a query, too.
        if f"{path}?".startswith(paths):
            return None
        return ScopeRule(
            ExclusionReason.PREFIX, f"not below {' or '.join([path for path in paths if path[-1] == '/'][:3])}"
        )

    def _judge_alone(self, url: str, seed_like: bool) -> ScopeRule | None:
        if self.problem is not None:
            raise PatternRefused(self.problem)
        if self._surely_admits(url, seed_like):
            return None
        for name, why in self._alone_rules(url, seed_like):
            if why is not None:
                return ScopeRule(name, why)
        return None

    def _surely_admits(self, url: str, seed_like: bool) -> bool:
        """Return True if a quick check already shows that no rule of `_alone_rules` excludes the URL.

        If the result is False, nothing is known: the caller must then check each rule with `_alone_rules`. The quick
        check does not try patterns, so the result is always False if the scope has `include` or `exclude` patterns.

        `seed_like`: True to leave out traps, for a URL such as a seed or a sitemap.
        """
        scope = self._scope
        if self._include or self._exclude or len(url) > scope.max_url_length or scheme_of(url) not in scope.schemes:
            return False
        return seed_like or trap(url, scope.traps) is None

    def _alone_rules(self, url: str, seed_like: bool) -> Iterator[tuple[ExclusionReason, str | None]]:
        """Check the rules that need only the URL. Yield for each rule its name, and a text why it excludes the URL.

        The text is None if the rule admits the URL.

        `seed_like`: True to leave out include patterns and traps. They do not apply to a seed, the target of its
        redirects, a sitemap, a feed and a requisite.
        """
        scope = self._scope
        scheme = scheme_of(url)
        yield ExclusionReason.SCHEME, None if scheme in scope.schemes else f"scheme {scheme} is not crawled"
        over = len(url) > scope.max_url_length
        yield ExclusionReason.LENGTH, f"{len(url)} characters, limit {scope.max_url_length}" if over else None
        hit = self._exclude.first(url)
        yield ExclusionReason.EXCLUDE, self.problem if hit is None else f"matches {hit!r}"
        if not seed_like:
            missing = bool(self._include) and self._include.first(url) is None
            yield ExclusionReason.INCLUDE, "matches none of the include patterns" if missing else None
            yield ExclusionReason.TRAP, trap(url, scope.traps)


def _other(host: str, via_host: str, rule: ExclusionReason) -> ExclusionReason:
    """Return PORT if the two hosts have the same name and differ only in the port. Otherwise return `rule`."""
    return ExclusionReason.PORT if _name(host) == _name(via_host) else rule


def _name(host: str) -> str:
    """Return the host without its port."""
    return host[: host.index("]") + 1] if host.startswith("[") else host.partition(":")[0]


def home(spec: CrawlSpec) -> frozenset[str]:
    """Return the hosts of the spec's seeds. In mode domain, return their registrable domains instead."""
    hosts = {host_of(seed.url) for seed in spec.seeds if seed.url}
    return frozenset(map(registrable_domain, hosts) if spec.scope.mode is ScopeMode.DOMAIN else hosts)


def prefixes(spec: CrawlSpec) -> dict[str, tuple[str, ...]]:
    """Return the prefixes of the spec's seeds, by host. In mode prefix, the path of a URL must begin with one of them.

    - A seed `/docs/index.html`, which names a file, gives the prefix `/docs/`.
    - A seed `/docs` gives the prefixes `/docs/` and `/docs?`. So `/docs/a` and `/docs?a=1` are in scope, but not
      `/docs-old`.

    To check a URL, the caller appends `?` to the URL's path and query. So `/docs` becomes `/docs?`, which begins with
    the prefix `/docs?`.
    """
    begins: dict[str, set[str]] = {}
    for seed in spec.seeds:
        path = seed.url[seed.url.index("/", 8) :].partition("?")[0]
        folder, _, name = path.rpartition("/")
        at = {f"{path}/", f"{path}?"} if name and _FILE(name) is None else {f"{folder}/"}
        begins.setdefault(host_of(seed.url), set()).update(at)
    return {host: tuple(sorted(paths)) for host, paths in begins.items()}
