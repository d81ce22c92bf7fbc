"""The section `recrawl` of a spec, compiled for owners: how long a page waits for its next fetch. Without I/O."""

from functools import lru_cache

import msgspec

from shared.domain.crawl.patterns import PatternRefused, Patterns
from shared.domain.crawl.recrawl_spec import Recrawl, RecrawlPolicy


class PageInterval(msgspec.Struct, frozen=True):
    """How the time between two fetches of a page is chosen: the policy, and the least and greatest time in ms.

    `rule`: the index of the matching rule of `by_pattern`, None if no rule matched.
    """

    policy: RecrawlPolicy
    min_ms: int
    max_ms: int
    rule: int | None = None


class CompiledRecrawl:
    """The compiled section `recrawl` of a spec. `of(url)` returns the policy and the bounds for one page's interval.

    The interval is the time between two fetches of the page.
    """

    def __init__(self, spec: Recrawl) -> None:
        self.spec = spec
        self._patterns = Patterns([rule.match for rule in spec.by_pattern])
        self._intervals = [
            _interval(rule.policy or spec.policy, rule.min_s or spec.min_s, rule.max_s or spec.max_s, index)
            for index, rule in enumerate(spec.by_pattern)
        ]
        self._other = _interval(spec.policy, spec.min_s, spec.max_s, None)

    def of(self, url: str) -> PageInterval:
        """Return the policy and the bounds for the page with this canonical URL.

        The first rule that matches the URL sets them. If no rule matches, the section itself sets them.
        """
        if not self._intervals:
            return self._other
        matching = self._patterns.matching(url)
        return self._intervals[min(matching)] if matching else self._other


def _interval(policy: RecrawlPolicy, min_s: float, max_s: float, rule: int | None) -> PageInterval:
    return PageInterval(policy, int(min_s * 1000), int(max(min_s, max_s) * 1000), rule)


@lru_cache(maxsize=256)
def compiled(spec: Recrawl) -> CompiledRecrawl:
    """Return the compiled section. Equal sections give the same object.

    If one pattern in `by_pattern` cannot be used, all rules of `by_pattern` are left out. Every page then gets the
    policy and the bounds of the section itself. No error is raised.
    """
    try:
        return CompiledRecrawl(spec)
    except PatternRefused:
        return CompiledRecrawl(msgspec.structs.replace(spec, by_pattern=()))
