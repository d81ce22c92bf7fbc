"""Explains for `orb show --url` why a crawl does not know a URL.

The explanation has the rule that excluded the URL, and the page that links to it, if one is found.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from cli.local.crawl_folder import CrawlFolder
from shared.adapters.objects.local import LocalSegments
from shared.adapters.objects.outlinks import read_outlinks
from shared.adapters.sql.catalog.crawl_reader import CrawlReader
from shared.domain.crawl.host_specs import compiled_scope
from shared.domain.crawl.media_spec import NOT_PARSED
from shared.domain.crawl.scope import Verdict
from shared.domain.crawl.spec import decode_spec
from shared.domain.errors import Permanent, Transient
from shared.domain.explain.excluded_links import LINKS_PER_PAGE, NOFOLLOW
from shared.domain.explain.sentences import counted, meaning, why_unknown
from shared.domain.frontier.crawl_rows import CrawlRow
from shared.domain.frontier.states import CrawlState
from shared.domain.web.url import Location, locate

MAX_PAGES_READ: Final = 5_000
"""The greatest number of archived pages whose outlinks are searched for a link to the URL."""


@dataclass(frozen=True, slots=True)
class UnknownUrl:
    """The explanation why a crawl does not know the URL `url`.

    A crawl learns of a URL by a link that its scope allows. So the explanation evaluates the rules of the scope for one
    link to `url`. `verdicts` has the decision of each rule.

    If a stored page with a link to `url` was found, the rules are evaluated for this link:

    - `page`: the URL of the stored page. `via`: the host of the page.
    - `reason`: the rule that excluded the link. None if no rule did.

    If no such page was found, the rules are evaluated for an assumed link:

    - `page` and `reason` are None. `via`: the host on which the link is assumed. It is None for a seed of the spec,
      which is judged as a seed.
    - `doubts`: sentences on how the search may have missed a link. Example: "The crawl is not finished".
    """

    url: Location
    via: str | None
    verdicts: Sequence[Verdict]
    page: str | None = None
    reason: str | None = None
    doubts: Sequence[str] = ()

    def why(self) -> str:
        refused = next((verdict for verdict in self.verdicts if not verdict.allowed), None)
        if self.reason is not None:
            text = refused.detail if refused is not None and refused.rule == self.reason else meaning(self.reason).text
            advice = meaning(self.reason).advice
            return f"left out by the rule {self.reason}: {text}" + (f"; {advice}." if advice else ".")
        if self.page is not None:
            return "a page links to it and no rule excludes it; the crawl has not processed the link yet."
        if refused is not None:
            return f"It would be excluded: {refused.detail}."
        if self.via is None:
            return "It is a seed of the spec, and the crawl does not know it yet: repeat `orb crawl` to continue."
        return "No scope rule would exclude it, and no link to it is known."


def explained(reader: CrawlReader, folder: CrawlFolder, row: CrawlRow, url: Location) -> UnknownUrl:
    """Return the explanation why the crawl does not know the URL.

    Search for a stored page that links to the URL, and evaluate the rules of the scope for that link. If no page is
    found, evaluate the rules for an assumed link at depth 1. Evaluate them for a seed if the URL is one of the spec.
    """
    spec = decode_spec(row.spec)
    via, verdicts = why_unknown(url.url, spec, host_known=reader.host(row.crawl_id, url.host) is not None)
    if via is None:
        return UnknownUrl(url, via, verdicts)
    search = _linked(reader, folder, row, url)
    page, reason = search.page, search.reason
    if page is None or (place := locate(page)) is None:
        return UnknownUrl(url, via, verdicts, doubts=_doubts(reader, row, search))
    view = reader.url(row.crawl_id, place)
    depth = 0 if view is None else view.depth
    redirect = view is not None and view.fetch is not None and not view.fetch.page
    verdicts = compiled_scope(spec).explain(
        url.url,
        url.host,
        depth=depth if redirect else depth + 1,
        via_host=place.host,
        via_seed_redirect=redirect and depth == 0,
        extra=0 if view is None else view.extra_hops,
    )
    refused = next((verdict.rule.value for verdict in verdicts if not verdict.allowed), None)
    if reason is None and refused is None and view is not None and view.fetch is not None:
        reason = NOFOLLOW if view.fetch.left_out.get(NOFOLLOW) else None
    return UnknownUrl(url, place.host, verdicts, page, reason if refused is None else refused)


def as_text(unknown: UnknownUrl, label: int) -> str:
    """Return the explanation as text for the terminal. `label` is the width of the column of labels in characters."""
    judged = f"evaluated as a link one level deep, from a page on {unknown.via}:"
    if unknown.page is not None:
        judged = f"evaluated as a link on {unknown.page}:"
    elif unknown.via is None:
        judged = "evaluated as a seed of the spec:"
    state = (
        "left out: the crawl saw a link to it" if unknown.reason is not None else "unknown: the crawl has no row of it"
    )
    lines = [
        unknown.url.url,
        f"{'state':<{label}}{state}",
        f"{'why':<{label}}{unknown.why()}",
        *(f"{'':<{label}}{doubt}" for doubt in unknown.doubts),
        *([f"{'found on':<{label}}{unknown.page}"] if unknown.page is not None else []),
        f"{'rules':<{label}}{judged}",
    ]
    lines += [
        f"  {'ok ' if verdict.allowed else 'NO '} {verdict.rule:<16} {verdict.detail}" for verdict in unknown.verdicts
    ]
    return "\n".join(lines)


def as_json(unknown: UnknownUrl) -> dict[str, Any]:
    """Return the fields that `--json` prints for a URL that the crawl does not know."""
    return {
        "url": unknown.url.url,
        "known": False,
        "why": [unknown.why(), *unknown.doubts],
        "left_out": unknown.reason,
        "found_on": unknown.page,
        "linked_from": unknown.via,
        "in_scope": all(verdict.allowed for verdict in unknown.verdicts),
        "rules": [
            {"rule": verdict.rule.value, "allowed": verdict.allowed, "detail": verdict.detail}
            for verdict in unknown.verdicts
        ],
    }


@dataclass(frozen=True, slots=True)
class _Search:
    """The result of a search for a page that links to a URL.

    - `page`: the page that was found, None if none was.
    - `reason`: why its link was not followed, None if that is not recorded.
    - `read`, `unreadable`: how many archived pages were searched, and how many could not be read.
    - `more`: True if further pages were not searched.
    """

    page: str | None = None
    reason: str | None = None
    read: int = 0
    unreadable: int = 0
    more: bool = False


def _linked(reader: CrawlReader, folder: CrawlFolder, row: CrawlRow, url: Location) -> _Search:
    """Search for a page that links to the URL.

    Search the stored examples of excluded links first. If none matches, read at most MAX_PAGES_READ archived pages.
    """
    for reason, examples in reader.left_out(row.crawl_id).items():
        for example in examples:
            if example.is_of(url.url):
                return _Search(example.page, reason)
    segments = LocalSegments(folder.archive)
    pages = reader.pages(row.crawl_id)
    read = unreadable = 0
    for page in islice(pages, MAX_PAGES_READ):
        try:
            links = read_outlinks(segments, page.location)
        except (Permanent, Transient):
            unreadable += 1
            continue
        read += 1
        if any(target == url.url for target, _ in links):
            return _Search(page.url, read=read)
    return _Search(read=read, unreadable=unreadable, more=next(pages, None) is not None)


def _doubts(reader: CrawlReader, row: CrawlRow, search: _Search) -> list[str]:
    """Return sentences on why a link to the URL may exist although the search found none."""
    tallies = reader.tallies(row.crawl_id)
    left_out, truncated = tallies.get("left_out", {}), sum(tallies.get("truncated", {}).values())
    doubts = []
    if row.state is not CrawlState.FINISHED:
        doubts.append("The crawl is not finished: a page that is not fetched yet may link to it.")
    if n := left_out.get(LINKS_PER_PAGE):
        limit = decode_spec(row.spec).extract.max_links_per_page
        many = counted(n, "link")
        doubts.append(f"It may be one of {many} beyond extract.max_links_per_page ({limit}): they were not read.")
    if n := left_out.get(NOFOLLOW):
        doubts.append(f"It may be one of {counted(n, 'link')} that pages mark as nofollow.")
    if n := left_out.get(NOT_PARSED):
        doubts.append(f"It may be on one of {counted(n, 'page')} whose type media.parsed leaves out.")
    if truncated:
        doubts.append(f"It may be in the missing part of {counted(truncated, 'page')} whose body was cut.")
    if search.unreadable:
        doubts.append(f"The links of {counted(search.unreadable, 'page')} could not be read from the archive.")
    if search.more:
        doubts.append(f"Only the links of {counted(search.read, 'page')} were searched.")
    return doubts
