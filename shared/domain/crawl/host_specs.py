"""The spec and the scope of a crawl as they apply to one host, with the overrides of the spec. The module does no I/O.

The first override whose `hosts` match a host applies to it.
"""

from typing import Final

from msgspec.structs import replace

from shared.domain.crawl.override_spec import SCOPE_FIELDS, Override
from shared.domain.crawl.scope import CompiledScope, ExclusionReason, ScopeRule, Verdict
from shared.domain.crawl.spec import CrawlSpec

_BELOW: Final = "*."
_FIELDS: Final = {
    ExclusionReason.DEPTH: "max_depth",
    ExclusionReason.HOST: "mode",
    ExclusionReason.PORT: "mode",
    ExclusionReason.DOMAIN: "mode",
    ExclusionReason.PREFIX: "mode",
    ExclusionReason.INCLUDE: "include",
    ExclusionReason.EXCLUDE: "exclude",
}
"""The field of an override that changes a rule of the scope, by rule. The field `max_depth` changes the rule DEPTH."""


class HostSpecs:
    """The specs of one crawl by host: the crawl's spec, with the first override that matches the host.

    Without overrides every host has the crawl's spec, and a look-up costs one comparison.
    """

    def __init__(self, spec: CrawlSpec) -> None:
        self._spec: Final = spec
        self._specs: Final = [overridden(spec, override) for override in spec.overrides]
        self._hosts: Final[dict[str, int]] = {}
        self._domains: Final[dict[str, int]] = {}
        for number, override in enumerate(spec.overrides):
            for host in override.hosts:
                of = self._domains if host.startswith(_BELOW) else self._hosts
                of.setdefault(host.removeprefix(_BELOW), number)

    def number(self, host: str) -> int | None:
        """Return the index in `overrides` of the first override that matches `host`. Return None if none does.

        `host`: `host[:port]` in canonical form.
        """
        if not self._specs:
            return None
        found = [self._hosts[host]] if host in self._hosts else []
        if self._domains:
            rest = host
            while (rest := rest.partition(".")[2]) != "":
                if rest in self._domains:
                    found.append(self._domains[rest])
        return min(found, default=None)

    def of(self, host: str) -> CrawlSpec:
        """Return the spec that applies to the URLs of `host`. If an override applies, the result has no `overrides`."""
        number = self.number(host)
        return self._spec if number is None else self._specs[number]

    @property
    def greatest_depth_limit(self) -> int | None:
        """The greatest number that the spec or an override sets as `max_depth`. None: neither sets a number.

        Only hosts with a limit count. For example, the spec sets no limit, and two overrides set 2 and 5. The result is
        5, although most hosts have no limit.
        """
        own = (each.scope.max_depth for each in (self._spec, *self._specs))
        return max((depth for depth in own if depth is not None), default=None)

    @property
    def limits_pages_per_host(self) -> bool:
        """True if `budget.max_pages_per_host` is set for at least one host."""
        return any(each.budget.max_pages_per_host is not None for each in (self._spec, *self._specs))


def overridden(spec: CrawlSpec, override: Override) -> CrawlSpec:
    """Return the spec with the values that the override sets in place of its own. The result has no `overrides`."""
    scope = {name: value for name in SCOPE_FIELDS if (value := getattr(override, name)) is not None}
    politeness, budget = spec.politeness, spec.budget
    if override.delay_s is not None:
        politeness = replace(politeness, delay_s=override.delay_s)
    if override.max_pages_per_host is not None:
        budget = replace(budget, max_pages_per_host=override.max_pages_per_host)
    changed = replace(spec.scope, **scope) if scope else spec.scope
    return replace(spec, scope=changed, politeness=politeness, budget=budget, overrides=())


def spec_for(spec: CrawlSpec, host: str) -> CrawlSpec:
    """Return the spec that applies to the URLs of `host`. `HostSpecs` is faster for many hosts of one spec."""
    return HostSpecs(spec).of(host) if spec.overrides else spec


def override_of(spec: CrawlSpec, host: str) -> str | None:
    """Return the path of the override that applies to a host, and the names of the fields that it sets.

    The form is `overrides[0] (delay_s, mode)`. Return None if no override applies.
    """
    number = HostSpecs(spec).number(host) if spec.overrides else None
    if number is None:
        return None
    return f"overrides[{number}] ({', '.join(spec.overrides[number].values())})"


def deciding(spec: CrawlSpec, host: str, field: str) -> str | None:
    """Return where the overrides of the spec set `field` for a host, such as `overrides[0].delay_s`.

    Return None if the spec's own value applies.
    """
    number = HostSpecs(spec).number(host) if spec.overrides else None
    if number is None or getattr(spec.overrides[number], field) is None:
        return None
    return f"overrides[{number}].{field}"


def compiled_scope(spec: CrawlSpec) -> CompiledScope:
    """Return the compiled scope of a spec. It is an OverriddenScope if an override of the spec changes the scope."""
    if not any(override.changes_scope for override in spec.overrides):
        return CompiledScope(spec)
    return OverriddenScope(spec)


class OverriddenScope(CompiledScope):
    """The scope of a spec with overrides. It judges each URL by the override that applies to the URL's host.

    If a value of the override excludes a URL, the text `ScopeRule.detail` names this value at its end. An example is
    `a.test is not b.test (overrides[0].mode)`: the field `mode` of the first override excludes the URL.
    """

    def __init__(self, spec: CrawlSpec) -> None:
        super().__init__(spec)
        self._host_specs: Final = HostSpecs(spec)
        self._overrides: Final = spec.overrides
        usable = self.problem is None
        self._scopes: Final = [
            CompiledScope(overridden(spec, override)) if override.changes_scope and usable else None
            for override in spec.overrides
        ]
        self.weight = max([self.weight, *(scope.weight for scope in self._scopes if scope is not None)])

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
        number, scope = self._of(host)
        if scope is None:
            return super().judge(
                url, host, depth=depth, via_host=via_host, via_seed_redirect=via_seed_redirect, hops=hops
            )
        rule = scope.judge(url, host, depth=depth, via_host=via_host, via_seed_redirect=via_seed_redirect, hops=hops)
        return rule and self._named(rule, number)

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
        """Judge `url`: return how many extra hops lead to it, or the rule that excludes it.

        The result is 0 if `url` is in scope. If `url` is out of scope, the result is `extra + 1`. A redirect between
        two URLs out of scope adds nothing: then the result is `extra`. If the result would exceed the spec's
        `extra_hops`, return the rule.

        - `depth`: the number of links from a seed to the URL.
        - `via_host`: the host of the page or redirect that led to the URL, None for a seed.
        - `via_seed_redirect`: only redirects lie between a seed and the URL.
        - `hops`: the number of redirects in a row that led to the URL. These are redirects, not extra hops.
        - `extra`: the number of extra hops of the page or redirect that led to the URL. 0: it is in scope.
        """
        number, scope = self._of(host)
        redirect = via_seed_redirect
        if scope is None:
            return super().hops_beyond(
                url, host, depth=depth, via_host=via_host, via_seed_redirect=redirect, hops=hops, extra=extra
            )
        found = scope.hops_beyond(
            url, host, depth=depth, via_host=via_host, via_seed_redirect=redirect, hops=hops, extra=extra
        )
        return found if isinstance(found, int) else self._named(found, number)

    def judge_listing(self, url: str, host: str, *, depth: int, via_host: str, hops: int) -> ScopeRule | None:
        """Return the first rule that excludes a sitemap or feed, or None if it may be fetched.

        - `depth`: the number of links from a seed to the sitemap or feed. The URLs that it lists are one link deeper.
        - `via_host`: the host of the page, sitemap or redirect that led to it.
        - `hops`: how many sitemaps and redirects in a row led to it.
        """
        number, scope = self._of(host)
        if scope is None:
            return super().judge_listing(url, host, depth=depth, via_host=via_host, hops=hops)
        rule = scope.judge_listing(url, host, depth=depth, via_host=via_host, hops=hops)
        return rule and self._named(rule, number)

    def judge_requisite(self, url: str, host: str, *, via_host: str, hops: int) -> ScopeRule | None:
        """Return the first rule that excludes a requisite, or None if it may be fetched.

        `via_host`: the host of the page, stylesheet or redirect that led to it. `hops`: how many stylesheets and
        redirects in a row led to it.
        """
        number, scope = self._of(host)
        if scope is None:
            return super().judge_requisite(url, host, via_host=via_host, hops=hops)
        rule = scope.judge_requisite(url, host, via_host=via_host, hops=hops)
        return rule and self._named(rule, number)

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
        """Return the result of every rule for `url`, in the order in which `judge` checks them.

        - `depth`: the number of links from a seed to the URL.
        - `via_host`: the host of the page or redirect that led to the URL, None for a seed.
        - `via_seed_redirect`: only redirects lie between a seed and the URL.
        - `hops`: the number of redirects in a row that led to the URL. These are redirects, not extra hops.
        - `extra`: the number of extra hops on the way to the page or redirect that led to the URL.
        """
        number, scope = self._of(host)
        redirect = via_seed_redirect
        if scope is None:
            return super().explain(
                url, host, depth=depth, via_host=via_host, via_seed_redirect=redirect, hops=hops, extra=extra
            )
        verdicts = scope.explain(
            url, host, depth=depth, via_host=via_host, via_seed_redirect=redirect, hops=hops, extra=extra
        )
        override = self._overrides[number]
        return [
            Verdict(each.rule, each.allowed, each.detail + _place(override, number, each.rule)) for each in verdicts
        ]

    def _of(self, host: str) -> tuple[int, CompiledScope | None]:
        """Return the override that decides about the scope of a host: its index, and the compiled scope with it.

        If the spec's own scope applies to the host, the scope in the result is None. The index then has no meaning.
        """
        number = self._host_specs.number(host)
        return (0, None) if number is None else (number, self._scopes[number])

    def _named(self, rule: ScopeRule, number: int) -> ScopeRule:
        place = _place(self._overrides[number], number, rule.name)
        return ScopeRule(rule.name, rule.detail + place) if place else rule


def _place(override: Override, number: int, rule: ExclusionReason) -> str:
    """Return the path of the override's field that `rule` uses, in brackets: ` (overrides[0].mode)`.

    Return an empty text if the override does not set this field. `number`: the index of the override.
    """
    field = _FIELDS.get(rule)
    if field is None or getattr(override, field) is None:
        return ""
    return f" (overrides[{number}].{field})"
