"""Scope: which URLs belong to a crawl, and which rule says that one does not.

Outlinks are judged relative to the page that has them, so that seeds need not be in the spec (they may be uploaded by
the million) and a worker needs nothing but the page. A seed is in scope by definition; only `schemes`,
`max_url_length` and `exclude` hold for it. What a seed redirects to takes the seed's place: another host of the same
registrable domain (example.org -> www.example.org) is in scope (in mode prefix, below a seed's path), and neither
`include` nor the traps are asked. Mode prefix knows the seeds of the spec only.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final, assert_never

from shared.domain.crawl import CrawlSpec, ScopeMode
from shared.domain.patterns import PatternRefused, Patterns
from shared.domain.spec_rules import refused_pattern
from shared.domain.traps import trap
from shared.domain.url import host_of, registrable_domain, scheme_of

MAX_HOPS: Final = 10
"""Redirects followed one after another before the chain is given up."""

SIZE_OF_A_WEIGHT: Final = 200
"""Instructions of patterns that may cost as much again as parsing the text does."""

_FILE: Final = re.compile(r"\.[A-Za-z][A-Za-z0-9]{1,4}$").search
"""Finds the extension in the name of a file."""

_CACHE: Final = 8192
"""Entries of each scope's two caches (about 200 bytes each)."""


class ExclusionReason(StrEnum):
    """Why a URL is excluded. ROBOTS is said by the site and judged at the visit, the others by the spec."""

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


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule that keeps a URL out, with what it found."""

    name: ExclusionReason
    detail: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one rule says of a URL: `allowed`, and why or under which limit."""

    rule: ExclusionReason
    allowed: bool
    detail: str


class CompiledScope:
    """A spec's scope, ready to judge. Pure: the same question has the same answer for the life of the spec.

    `problem` says why a pattern of a stored spec cannot be used, None for every spec that `parse_spec` made. With a
    problem, `judge` raises PatternRefused, and `explain` tells the problem.
    """

    def __init__(self, spec: CrawlSpec) -> None:
        self._scope = scope = spec.scope
        self.max_url_length: Final = scope.max_url_length
        self.problem: Final = refused_pattern(scope, spec.extract)
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
        self.weight: Final = 1 + (self._include.size + self._exclude.size) // SIZE_OF_A_WEIGHT
        """How many times more than without patterns it may cost to judge the links of a page."""
        self._prefixes: Final = prefixes(spec) if scope.mode is ScopeMode.PREFIX else {}
        self._all_prefixes: Final = tuple({prefix for paths in self._prefixes.values() for prefix in paths})
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
    ) -> Rule | None:
        """The first rule that keeps `url` (canonical, on `host`) out, or None if it belongs to the crawl.

        `depth` counts links from a seed, `hops` redirects in a row. `via_host` is the host of the page or redirect that
        led here, None for a seed; `via_seed_redirect` tells that only redirects lie between a seed and this URL.
        """
        if via_host is None:
            return self._alone(url, True)
        if hops > MAX_HOPS:
            return Rule(ExclusionReason.HOPS, f"more than {MAX_HOPS} redirects in a row")
        if depth > self._max_depth:
            return Rule(ExclusionReason.DEPTH, f"depth {depth} is over {self._max_depth}")
        if not self._any:
            if self._by_host:
                if host != via_host and (rule := self._elsewhere(host, via_host, via_seed_redirect)):
                    return rule
            elif rule := self._judge_prefix(url, host, via_host, via_seed_redirect):
                return rule
        return self._alone(url, via_seed_redirect)

    def explain(
        self,
        url: str,
        host: str,
        *,
        depth: int,
        via_host: str | None,
        via_seed_redirect: bool = False,
        hops: int = 0,
    ) -> list[Verdict]:
        """What every rule says, in the order in which `judge` asks them; its answer is the first not allowed."""
        verdicts = []
        if via_host is not None:
            verdicts.append(Verdict(ExclusionReason.HOPS, hops <= MAX_HOPS, f"{hops} of {MAX_HOPS} redirects in a row"))
            limit = "no limit" if self._scope.max_depth is None else f"limit {self._max_depth}"
            verdicts.append(Verdict(ExclusionReason.DEPTH, depth <= self._max_depth, f"depth {depth}, {limit}"))
            place = self._judge_place(url, host, via_host, via_seed_redirect)
            detail = f"in scope from {via_host} in mode {self._scope.mode}" if place is None else place.detail
            verdicts.append(Verdict(self._place_rule if place is None else place.name, place is None, detail))
        seed_like = via_host is None or via_seed_redirect
        verdicts += [Verdict(name, why is None, why or "allowed") for name, why in self._alone_rules(url, seed_like)]
        return verdicts

    def _judge_place(self, url: str, host: str, via_host: str, redirect: bool) -> Rule | None:
        match self._scope.mode:
            case ScopeMode.HOST | ScopeMode.DOMAIN:
                return self._judge_host(host, via_host, redirect)
            case ScopeMode.PREFIX:
                return self._judge_prefix(url, host, via_host, redirect)
            case ScopeMode.ANY:
                return None
            case never:
                assert_never(never)

    def _judge_host(self, host: str, via_host: str, redirect: bool) -> Rule | None:
        if host == via_host:
            return None
        if redirect or self._scope.mode is ScopeMode.DOMAIN:
            domain, via_domain = registrable_domain(host), registrable_domain(via_host)
            return None if domain == via_domain else Rule(self._place_rule, f"{domain} is not {via_domain}")
        return Rule(_other(host, via_host, self._place_rule), f"{host} is not {via_host}")

    def _judge_prefix(self, url: str, host: str, via_host: str, redirect: bool) -> Rule | None:
        """A host that seeds name has their prefixes; one that a seed redirected to has those of all seeds."""
        paths = self._prefixes.get(host)
        if paths is None:
            if not (host == via_host or (redirect and registrable_domain(host) == registrable_domain(via_host))):
                return Rule(_other(host, via_host, ExclusionReason.PREFIX), f"no seed of the spec is on {host}")
            paths = self._all_prefixes
        path = url[url.index("/", 8) :]
        # A prefix `/docs?` takes in `/docs` with a query and, by the mark that is added here, without one.
        if f"{path}?".startswith(paths):
            return None
        return Rule(ExclusionReason.PREFIX, f"not below {' or '.join([path for path in paths if path[-1] == '/'][:3])}")

    def _judge_alone(self, url: str, seed_like: bool) -> Rule | None:
        if self.problem is not None:
            raise PatternRefused(self.problem)
        for name, why in self._alone_rules(url, seed_like):
            if why is not None:
                return Rule(name, why)
        return None

    def _alone_rules(self, url: str, seed_like: bool) -> Iterator[tuple[ExclusionReason, str | None]]:
        """The rules that judge a URL by itself, each with the reason why it refuses, or None."""
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
    """Return PORT if the hosts differ in their ports only, else `rule`."""
    return ExclusionReason.PORT if _name(host) == _name(via_host) else rule


def _name(host: str) -> str:
    """Return the host without its port."""
    return host[: host.index("]") + 1] if host.startswith("[") else host.partition(":")[0]


def prefixes(spec: CrawlSpec) -> dict[str, tuple[str, ...]]:
    """Return how paths in scope begin, by the hosts of seeds.

    A seed that names a file (`/docs/index.html`) stands for its folder, `/docs/`. Any other stands for itself and all
    below it: `/docs` for `/docs`, also with a query, and `/docs/`.
    """
    begins: dict[str, set[str]] = {}
    for seed in spec.seeds:
        path = seed.url[seed.url.index("/", 8) :].partition("?")[0]
        folder, _, name = path.rpartition("/")
        at = {f"{path}/", f"{path}?"} if name and _FILE(name) is None else {f"{folder}/"}
        begins.setdefault(host_of(seed.url), set()).update(at)
    return {host: tuple(sorted(paths)) for host, paths in begins.items()}
