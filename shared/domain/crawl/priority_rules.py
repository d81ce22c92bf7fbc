"""The field `priority` of a crawl spec: rules that set the priority of URLs by a pattern. The module does no I/O.

A higher priority moves a URL forward in the queue of its host (shared.domain.frontier.states.rank_of).
"""

from functools import lru_cache
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from shared.domain.crawl.described import described
from shared.domain.crawl.patterns import PatternRefused, Patterns

MAX_PRIORITY: Final = 100
MAX_RULES: Final = 100
Priority = Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]


class PriorityRule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule of the field `priority`: the priority of the URLs that match its pattern.

    The first rule that matches a URL applies.
    """

    match: Annotated[
        Annotated[str, Meta(min_length=1, max_length=1000)],
        described("A regular expression (RE2) that the canonical URL must match.", "^https://example\\.org/news/"),
    ]
    value: Annotated[
        Priority,
        described("The priority of these URLs. Each level goes before one level of depth. 0 is that of others.", 10),
    ]


PriorityRules = Annotated[tuple[PriorityRule, ...], Meta(max_length=MAX_RULES)]


class CompiledPriority:
    """The compiled priority rules of a crawl, by which each URL gets its priority."""

    def __init__(self, rules: tuple[PriorityRule, ...]) -> None:
        self._rules = rules
        self._patterns = Patterns([rule.match for rule in rules])

    def rule(self, url: str) -> int | None:
        """Return the index of the first rule that matches a canonical URL, or None if none matches."""
        return next(iter(self._patterns.matching(url)), None)

    def of(self, url: str, own: int = 0) -> int:
        """Return the priority of a canonical URL: `own` if it is not 0, else that of the first matching rule, else 0.

        `own`: the priority that a seed declares for this URL, 0 if none does.
        """
        if own:
            return own
        rule = self.rule(url)
        return 0 if rule is None else self._rules[rule].value


@lru_cache(maxsize=256)
def compiled_priority(rules: tuple[PriorityRule, ...]) -> CompiledPriority:
    """Return the compiled rules. Equal rules give the same object.

    If a pattern cannot be used, the result has no rules. No error is raised.
    """
    try:
        return CompiledPriority(rules)
    except PatternRefused:
        return CompiledPriority(())
