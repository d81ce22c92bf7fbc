"""The spec of a crawl as it applies to each host: with the fields of the first override that matches the host. Pure."""

from typing import Final

from msgspec.structs import replace

from shared.domain.crawl.override_spec import SCOPE_FIELDS, Override
from shared.domain.crawl.spec import CrawlSpec

_BELOW: Final = "*."


class HostSpecs:
    """Finds the spec of a host. Without overrides that is the crawl's spec, and a look-up costs one comparison."""

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
        """Return the number of the first override that matches `host` (`host[:port]` in canonical form), or None."""
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
        """Return the spec as it applies to the URLs of `host`. Its own `overrides` are empty if one applies."""
        number = self.number(host)
        return self._spec if number is None else self._specs[number]

    @property
    def max_depth(self) -> int | None:
        """The greatest limit of depth that any URL has. None if no URL has one.

        A page that is found at this depth or deeper has no more links in scope than before.
        """
        own = (each.scope.max_depth for each in (self._spec, *self._specs))
        return max((depth for depth in own if depth is not None), default=None)

    @property
    def limits_pages_per_host(self) -> bool:
        """True if some host has a limit of pages."""
        return any(each.budget.max_pages_per_host is not None for each in (self._spec, *self._specs))


def overridden(spec: CrawlSpec, override: Override) -> CrawlSpec:
    """Return the spec with the fields of an override in the place of its own, and without overrides."""
    scope = {name: value for name in SCOPE_FIELDS if (value := getattr(override, name)) is not None}
    politeness, budget = spec.politeness, spec.budget
    if override.delay_s is not None:
        politeness = replace(politeness, delay_s=override.delay_s)
    if override.max_pages_per_host is not None:
        budget = replace(budget, max_pages_per_host=override.max_pages_per_host)
    changed = replace(spec.scope, **scope) if scope else spec.scope
    return replace(spec, scope=changed, politeness=politeness, budget=budget, overrides=())


def spec_for(spec: CrawlSpec, host: str) -> CrawlSpec:
    """Return the spec as it applies to one host. `HostSpecs` is faster for many hosts."""
    return HostSpecs(spec).of(host) if spec.overrides else spec


def override_of(spec: CrawlSpec, host: str) -> str | None:
    """Return the place in the spec of the override that applies to a host, with its values. None if none does."""
    number = HostSpecs(spec).number(host) if spec.overrides else None
    if number is None:
        return None
    return f"overrides[{number}] ({', '.join(spec.overrides[number].values())})"


def deciding(spec: CrawlSpec, host: str, field: str) -> str | None:
    """Return the place in the spec of the override that sets `field` for a host, None if none does."""
    number = HostSpecs(spec).number(host) if spec.overrides else None
    if number is None or getattr(spec.overrides[number], field) is None:
        return None
    return f"overrides[{number}].{field}"
