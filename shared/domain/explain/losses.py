"""Describe what a crawl left out: excluded links, and the missing rest of truncated bodies.

Each description names the setting to change. The functions do no I/O: they make sentences from counts, examples and the
spec.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from shared.domain.crawl.media_spec import NOT_PARSED
from shared.domain.crawl.requisites_spec import REQUISITES_PER_PAGE
from shared.domain.crawl.scope import ExclusionReason as Rule
from shared.domain.crawl.spec import CrawlSpec, Scheme, ScopeMode
from shared.domain.explain.excluded_links import INVALID, LINKS_PER_PAGE, NOFOLLOW, ExcludedLinkExample, shown
from shared.domain.web.url import host_of, registrable_domain

_FOUND_AGAIN: Final = "the same command with a wider scope finds such links in the archive"
_NOT_READ_AGAIN: Final = "pages already fetched are not read again for {which}: add --fresh, or another --out"

_NEVER_FOUND_AGAIN: Final = frozenset({REQUISITES_PER_PAGE, NOT_PARSED, NOFOLLOW, LINKS_PER_PAGE})
"""Exclusion reasons that are not rules of the scope. After a change of the scope, links that were excluded for
these reasons are not looked up in the archive."""

_LINKS: Final[Mapping[str, tuple[str, str]]] = {
    Rule.HOST: ("to other hosts", "--scope domain"),
    Rule.PORT: ("to other ports", "--scope domain"),
    Rule.DOMAIN: ("to other domains", "--scope any"),
    Rule.PREFIX: ("outside of the seeds' paths", "--scope host"),
    Rule.DEPTH: ("deeper than --max-depth {spec.scope.max_depth}", "a greater --max-depth"),
    Rule.EXCLUDE: ("matching --exclude", "another --exclude, or none,"),
    Rule.INCLUDE: ("matching no --include", "another --include, or none,"),
    Rule.LENGTH: (
        "longer than scope.max_url_length ({spec.scope.max_url_length} characters)",
        "a greater scope.max_url_length in the spec",
    ),
    Rule.SCHEME: ("of another scheme", "scope.schemes in the spec"),
    INVALID: ("without a valid URL", ""),
    Rule.TRAP: ("of an endless URL space", "scope.traps in the spec"),
    Rule.REQUISITE: ("to requisites on other hosts", "--requisites all"),
    REQUISITES_PER_PAGE: (
        "beyond budget.max_requisites_per_page ({spec.budget.max_requisites_per_page})",
        "a greater budget.max_requisites_per_page in the spec",
    ),
    NOT_PARSED: ("whose links were not read (media.parsed)", "a longer media.parsed in the spec"),
    NOFOLLOW: ("marked as nofollow", "extract.follow_nofollow in the spec"),
    LINKS_PER_PAGE: (
        "beyond extract.max_links_per_page ({spec.extract.max_links_per_page})",
        "a greater extract.max_links_per_page in the spec",
    ),
}
"""For each exclusion reason: a phrase that describes the links, and the setting that makes a crawl follow such links.
The setting is an empty text if there is none."""

_OVERRIDDEN: Final[Mapping[str, tuple[str, str, str]]] = {
    Rule.DEPTH: ("max_depth", "deeper than the limit of depth of their host", "a greater max_depth in the spec"),
    Rule.EXCLUDE: ("exclude", "matching a pattern of exclude", "another exclude in the spec, or none,"),
    Rule.INCLUDE: ("include", "matching no pattern of include", "another include in the spec, or none,"),
}
"""For each exclusion reason that an override may decide: the override's field, a phrase on the excluded links, and the
setting that makes a crawl follow them."""

_PAGES: Final = {
    "length": "at fetch.max_body_bytes ({spec.fetch.max_body_bytes}): a greater one in the spec",
    "decoded": "at fetch.max_decoded_bytes ({spec.fetch.max_decoded_bytes}): a greater one in the spec",
    "time": "at fetch.total_timeout_s ({spec.fetch.total_timeout_s:g} s): a greater one in the spec",
    "disconnect": "by the network at each of {spec.retry.attempts} attempts: a crawl at another time",
    "undecodable": "where the content coding is damaged or unknown: only the site",
}
"""For each reason why the body of a page is incomplete: the middle of the line that `Losses.pages` returns.

For example, the line for `length` is "2 pages at fetch.max_body_bytes (9): a greater one in the spec brings the rest".
The text before the colon says where the bodies were cut. The text after the colon names a remedy."""


class Losses(Struct, frozen=True):
    """What a crawl left out. Each field is a mapping from a reason to a value for this reason.

    - `left_out`: reason -> the number of links that were excluded for it. For NOT_PARSED: the number of pages whose
      links were not read.
    - `truncated`: reason -> the number of bodies that are incomplete because of it.
    - `examples`: reason -> some of the links that were excluded for it.
    """

    left_out: Mapping[str, int]
    truncated: Mapping[str, int]
    examples: Mapping[str, Sequence[ExcludedLinkExample]]

    def links(self, spec: CrawlSpec) -> list[str]:
        """Return one line of text for each reason of excluded links, the most frequent first.

        A line has their number, an example, and the setting that makes the crawl follow them. Reasons that no setting
        changes come last.
        """
        lines = []
        ranked = sorted(_ranked(self.left_out), key=lambda item: not self.remedy(item[0], spec))
        for reason, n in ranked:
            what, _ = _said(reason, spec)
            examples = self.examples.get(reason, ())
            such = f", such as {shown(examples[0].url)} on {shown(examples[0].page)}" if examples else ""
            unit = "page" if reason == NOT_PARSED else "link"
            remedy = self.remedy(reason, spec)
            remedy = remedy or "the present scope" * _in_scope_now(reason, spec)
            follows = f"; {remedy} follows {'it' if n == 1 else 'them'}" if remedy else ""
            lines.append(f"{_counted(n, unit)} {what.format(spec=spec)}{such}{follows}")
        return lines

    def pages(self, spec: CrawlSpec) -> list[str]:
        """Return one line of text for each reason of incomplete bodies, the most frequent first.

        A line has their number, and the setting or action that would get the missing rest of the bodies.
        """
        return [
            f"{_counted(n, 'page')} {_PAGES.get(reason, reason).format(spec=spec)} brings the rest"
            for reason, n in _ranked(self.truncated)
        ]

    def hide_urls(self) -> bool:
        """Return True if some links of pages were not read, so that the crawl may not know all URLs in scope.

        Links are not read in three cases: the body is incomplete, the page's type is not parsed, or the page has more
        links than the limit.
        """
        return any(self.left_out.get(each) for each in (LINKS_PER_PAGE, NOT_PARSED)) or any(self.truncated.values())

    def ways(self, spec: CrawlSpec) -> list[str]:
        """Return sentences on how the crawl can follow its excluded links with another spec.

        Return an empty list if no other spec makes it follow them.
        """
        remedies = {reason: remedy for reason, _ in _ranked(self.left_out) if (remedy := self.remedy(reason, spec))}
        fresh = [text.removesuffix(" in the spec") for reason, text in remedies.items() if reason in _NEVER_FOUND_AGAIN]
        found = [_FOUND_AGAIN] if len(fresh) < len(remedies) else []
        return [*found, *([_NOT_READ_AGAIN.format(which=" or ".join(fresh))] if fresh else [])]

    def too_narrow(self, spec: CrawlSpec) -> str:
        """Return a sentence for a crawl of one page: how many of its links the rules excluded, and how to follow them.

        Links that no spec admits, such as `mailto:`, are not counted. Return an empty text if no other link was
        excluded.
        """
        counts = {reason: n for reason, n in self.left_out.items() if not _never_admitted(reason, spec)}
        reason, _ = next(_ranked(counts), ("", 0))
        if not reason:
            return ""
        total = sum(counts.values())
        remedy = self.remedy(reason, spec).rstrip(",")
        fresh = " (with --fresh, or another --out)" * (reason in _NEVER_FOUND_AGAIN)
        return (
            f"only 1 page was crawled: the rules left out {_counted(total, 'link')}."
            + f" To follow {'it' if total == 1 else 'them'}: {remedy}{fresh}." * bool(remedy)
        )

    def remedy(self, reason: str, spec: CrawlSpec) -> str:
        """Return the flag or field of the spec that admits the links excluded for this reason.

        Return an empty text if there is none.
        """
        if _never_admitted(reason, spec) or _in_scope_now(reason, spec):
            return ""
        _, remedy = _said(reason, spec)
        examples = self.examples.get(reason, ())
        if reason == Rule.HOST and examples and not any(map(_same_domain, examples)):
            return "--scope any"
        return remedy


def _ranked(counts: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    return ((reason, n) for reason, n in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if n > 0)


def _said(reason: str, spec: CrawlSpec) -> tuple[str, str]:
    """Return a phrase on links that are excluded for this reason, and the setting that admits them.

    The setting is an empty text if none admits them.
    """
    if reason in _OVERRIDDEN:
        field, what, remedy = _OVERRIDDEN[reason]
        if any(getattr(override, field) is not None for override in spec.overrides):
            return what, remedy
    return _LINKS.get(reason, (f"by the rule {reason}", ""))


def _never_admitted(reason: str, spec: CrawlSpec) -> bool:
    """Return True if links that are excluded for this reason would be excluded by every spec.

    - INVALID: True, because the link is no valid URL.
    - Rule.SCHEME, and `spec` admits both `http` and `https`: True, because the link has another scheme, such as
      `mailto:`.
    - Rule.SCHEME, and `spec` admits only one of the two: False, because the link may have the other one.
    - Any other reason: False.
    """
    return reason == INVALID or (reason == Rule.SCHEME and set(Scheme) <= set(spec.scope.schemes))


def _in_scope_now(reason: str, spec: CrawlSpec) -> bool:
    """Return True if links that an earlier spec excluded for this reason are surely in scope by now.

    They are if both conditions hold:

    - The reason is Rule.HOST, PORT, DOMAIN or PREFIX: the links lead to another place than the seeds.
    - The mode of the scope in `spec` is now `any`, for every host. This mode admits links to every place.
    """
    narrower = any(override.mode not in (None, ScopeMode.ANY) for override in spec.overrides)
    places = (Rule.HOST, Rule.PORT, Rule.DOMAIN, Rule.PREFIX)
    return reason in places and spec.scope.mode is ScopeMode.ANY and not narrower


def _same_domain(example: ExcludedLinkExample) -> bool:
    return registrable_domain(host_of(example.url)) == registrable_domain(host_of(example.page))


def _counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
