"""The scope of a crawl with overrides: each URL is judged by the scope of its own host. Pure."""

from typing import Final

from shared.domain.crawl.host_specs import HostSpecs, overridden
from shared.domain.crawl.override_spec import Override
from shared.domain.crawl.scope import CompiledScope, ExclusionReason, ScopeRule, Verdict
from shared.domain.crawl.spec import CrawlSpec

_FIELDS: Final = {
    ExclusionReason.DEPTH: "max_depth",
    ExclusionReason.HOST: "mode",
    ExclusionReason.PORT: "mode",
    ExclusionReason.DOMAIN: "mode",
    ExclusionReason.PREFIX: "mode",
    ExclusionReason.INCLUDE: "include",
    ExclusionReason.EXCLUDE: "exclude",
}
"""The field of an override that may decide each rule."""


def compiled_scope(spec: CrawlSpec) -> CompiledScope:
    """Return the scope of a spec, which applies its overrides if one of them changes the scope."""
    if not any(override.changes_scope for override in spec.overrides):
        return CompiledScope(spec)
    return OverriddenScope(spec)


class OverriddenScope(CompiledScope):
    """Judges each URL by the scope that applies to its host. A rule's detail names the override that decides it."""

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
        """Return the first rule that excludes `url`, or None, as `CompiledScope.judge` does."""
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
        """Return how many hops beyond the scope `url` is, or the rule that excludes it."""
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
        """Return the first rule that excludes a sitemap or feed, or None."""
        number, scope = self._of(host)
        if scope is None:
            return super().judge_listing(url, host, depth=depth, via_host=via_host, hops=hops)
        rule = scope.judge_listing(url, host, depth=depth, via_host=via_host, hops=hops)
        return rule and self._named(rule, number)

    def judge_requisite(self, url: str, host: str, *, via_host: str, hops: int) -> ScopeRule | None:
        """Return the first rule that excludes a requisite, or None."""
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
        """Return the result of every rule for `url`, in the order in which `judge` checks them."""
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
        """Return the override that applies to a host and its scope. None: the scope of the spec applies."""
        number = self._host_specs.number(host)
        return (0, None) if number is None else (number, self._scopes[number])

    def _named(self, rule: ScopeRule, number: int) -> ScopeRule:
        place = _place(self._overrides[number], number, rule.name)
        return ScopeRule(rule.name, rule.detail + place) if place else rule


def _place(override: Override, number: int, rule: ExclusionReason) -> str:
    """Return which field of an override decides a rule, in parentheses; empty if the spec's own value applies."""
    field = _FIELDS.get(rule)
    if field is None or getattr(override, field) is None:
        return ""
    return f" (overrides[{number}].{field})"
