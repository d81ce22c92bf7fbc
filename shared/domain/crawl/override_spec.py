"""The field `overrides` of a crawl spec: other values of some fields for some hosts or domains."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from shared.domain.crawl.described import described
from shared.domain.crawl.spec_types import Natural, Patterns, ScopeMode, Seconds

MAX_OVERRIDES: Final = 100

HostPattern = Annotated[str, Meta(min_length=1, max_length=260)]

SCOPE_FIELDS: Final = ("mode", "max_depth", "include", "exclude")
"""The fields of an override that replace the fields of `scope` with the same name."""

VALUES: Final = ("delay_s", "max_pages_per_host", *SCOPE_FIELDS)
"""The fields of an override that replace a value of the spec. A field that is None replaces nothing."""


class Override(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `overrides` in a crawl spec: other values for the URLs of some hosts.

    A field that is null keeps the spec's own value.
    """

    hosts: Annotated[
        Annotated[tuple[HostPattern, ...], Meta(min_length=1, max_length=100)],
        described(
            "The hosts to which the override applies: a host, or `*.` and a domain for all hosts below it. Either has "
            "the port if that is not the scheme's own: `*.example.org` matches no `a.example.org:8080`, "
            "`*.example.org:8080` does.",
            ["docs.example.org", "*.static.example.org"],
        ),
    ]
    delay_s: Annotated[
        Seconds | None,
        described("Seconds that replace `politeness.delay_s`. robots.txt or an operator may make it longer.", 5.0),
    ] = None
    max_pages_per_host: Annotated[Natural | None, described("Replaces `budget.max_pages_per_host`.", 1000)] = None
    mode: Annotated[
        ScopeMode | None,
        described("Replaces `scope.mode` for links to these hosts. `any`: they belong to the crawl from every page."),
    ] = None
    max_depth: Annotated[
        Annotated[int, Meta(ge=0, le=10_000)] | None,
        described("Replaces `scope.max_depth` for URLs of these hosts.", 3),
    ] = None
    include: Annotated[
        Patterns | None,
        described(
            "Replaces `scope.include` for URLs of these hosts. An empty list includes all.",
            ["^https://docs\\.example\\.org/en/"],
        ),
    ] = None
    exclude: Annotated[
        Patterns | None,
        described(
            "Replaces `scope.exclude` for URLs of these hosts. An empty list excludes none.",
            ["/print/"],
        ),
    ] = None

    def values(self) -> dict[str, object]:
        """Return the values that this override sets, by the name of the field."""
        return {name: value for name in VALUES if (value := getattr(self, name)) is not None}

    @property
    def changes_scope(self) -> bool:
        """True if the override sets a field of the scope."""
        return any(getattr(self, name) is not None for name in SCOPE_FIELDS)
