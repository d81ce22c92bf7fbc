"""The section `recrawl` of a spec in the form that owners use: which rule applies to a URL. Pure."""

from dataclasses import dataclass
from functools import lru_cache

import msgspec

from shared.domain.crawl.patterns import PatternRefused, Patterns
from shared.domain.crawl.recrawl_spec import Recrawl, RecrawlPolicy


@dataclass(frozen=True, slots=True)
class PageInterval:
    """How the wait between two fetches of a page is decided: by which policy, and between which bounds (ms).

    `rule` is the number of the rule of `by_pattern` that set it, None if no rule matched.
    """

    policy: RecrawlPolicy
    min_ms: int
    max_ms: int
    rule: int | None = None


class CompiledRecrawl:
    """Which interval each URL has."""

    def __init__(self, spec: Recrawl) -> None:
        self.spec = spec
        self._patterns = Patterns([rule.match for rule in spec.by_pattern])
        self._intervals = [
            _interval(rule.policy or spec.policy, rule.min_s or spec.min_s, rule.max_s or spec.max_s, index)
            for index, rule in enumerate(spec.by_pattern)
        ]
        self._other = _interval(spec.policy, spec.min_s, spec.max_s, None)

    def of(self, url: str) -> PageInterval:
        """Return the interval of a page by its canonical URL."""
        if not self._intervals:
            return self._other
        matching = self._patterns.matching(url)
        return self._intervals[min(matching)] if matching else self._other


def _interval(policy: RecrawlPolicy, min_s: float, max_s: float, rule: int | None) -> PageInterval:
    return PageInterval(policy, int(min_s * 1000), int(max(min_s, max_s) * 1000), rule)


@lru_cache(maxsize=256)
def compiled(spec: Recrawl) -> CompiledRecrawl:
    """Return the compiled section. Equal sections share one.

    A crawl with a pattern that cannot be used is not dispatched (`refused_pattern`). Outcomes that still come have the
    interval of the section.
    """
    try:
        return CompiledRecrawl(spec)
    except PatternRefused:
        return CompiledRecrawl(msgspec.structs.replace(spec, by_pattern=()))
