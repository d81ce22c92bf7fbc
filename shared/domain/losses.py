"""What a crawl lacks although nothing failed: links left out and bodies cut, each with the setting that changes it.

Pure: from counts, examples and the spec to sentences.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shared.domain.crawl import CrawlSpec
from shared.domain.left_out import LINKS_PER_PAGE, NOFOLLOW, LeftOutExample, shown
from shared.domain.scope import ExclusionReason as Rule
from shared.domain.url import host_of, registrable_domain

NOT_READ_AGAIN: Final = "pages already fetched are not read again: add --fresh, or another --out"

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
    Rule.TRAP: ("as of an endless URL space", "scope.traps in the spec"),
    NOFOLLOW: ("marked as nofollow", "extract.follow_nofollow in the spec"),
    LINKS_PER_PAGE: (
        "beyond extract.max_links_per_page ({spec.extract.max_links_per_page})",
        "a greater extract.max_links_per_page in the spec",
    ),
}
"""Of each reason: what is said of its links, and what follows them."""

_PAGES: Final = {
    "length": "at fetch.max_body_bytes ({spec.fetch.max_body_bytes}): a greater one in the spec",
    "decoded": "at fetch.max_decoded_bytes ({spec.fetch.max_decoded_bytes}): a greater one in the spec",
    "time": "at fetch.total_timeout_s ({spec.fetch.total_timeout_s:g} s): a greater one in the spec",
    "disconnect": "by the network at each of {spec.retry.attempts} attempts: a crawl at another time",
    "undecodable": "where the content coding is damaged or unknown: only the site",
}
"""Of each reason why bodies are not whole: where they end, and what brings the rest."""


@dataclass(frozen=True, slots=True)
class Losses:
    """`left_out` and `truncated` are the tallies of these kinds, `examples` some links of each reason."""

    left_out: Mapping[str, int]
    truncated: Mapping[str, int]
    examples: Mapping[str, Sequence[LeftOutExample]]

    def links(self, spec: CrawlSpec) -> list[str]:
        """Return a line for each reason, the most frequent first: the links, an example, what follows them."""
        lines = []
        for reason, n in _ranked(self.left_out):
            what, _ = _LINKS.get(reason, (f"by the rule {reason}", ""))
            examples = self.examples.get(reason, ())
            such = f", such as {shown(examples[0].url)} on {shown(examples[0].page)}" if examples else ""
            remedy = self.remedy(reason)
            follows = f"; {remedy} follows {'it' if n == 1 else 'them'}" if remedy else ""
            lines.append(f"{_counted(n, 'link')} {what.format(spec=spec)}{such}{follows}")
        return lines

    def pages(self, spec: CrawlSpec) -> list[str]:
        """Return a line for each reason why bodies are not whole, the most frequent first."""
        return [
            f"{_counted(n, 'page')} {_PAGES.get(reason, reason).format(spec=spec)} brings the rest"
            for reason, n in _ranked(self.truncated)
        ]

    def hide_urls(self) -> bool:
        """Return True if URLs in scope may have been missed: links that no page gave."""
        return bool(self.left_out.get(LINKS_PER_PAGE)) or any(self.truncated.values())

    def too_narrow(self) -> str:
        """Return why a crawl ended with one page although that has links; empty if no rule is the reason."""
        reason, _ = next(_ranked(self.left_out), ("", 0))
        if not reason:
            return ""
        total = sum(self.left_out.values())
        remedy = self.remedy(reason)
        return (
            f"only 1 page was crawled: the rules left out {_counted(total, 'link')}."
            + f" To follow {'it' if total == 1 else 'them'}: {remedy.rstrip(',')} (with --fresh, or another --out)."
            * bool(remedy)
        )

    def remedy(self, reason: str) -> str:
        """Return the flag or field that lets the links in which this reason leaves out; empty if there is none."""
        _, remedy = _LINKS.get(reason, ("", ""))
        examples = self.examples.get(reason, ())
        if reason == Rule.HOST and examples and not any(map(_same_domain, examples)):
            return "--scope any"
        return remedy


def _ranked(counts: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    return ((reason, n) for reason, n in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if n > 0)


def _same_domain(example: LeftOutExample) -> bool:
    return registrable_domain(host_of(example.url)) == registrable_domain(host_of(example.page))


def _counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
