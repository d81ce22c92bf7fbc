"""What becomes of a requisite after its fetch: it is done, tried again, or queued as the page that it is as well."""

from typing import Final, NamedTuple

from shared.domain.frontier.states import (
    ALSO_PAGE,
    HTML_REQUISITE,
    REQUISITE_LEAD_MS,
    RETRY,
    REVISIT,
    UrlState,
    as_page,
)
from shared.domain.frontier.store_model import LeasedUrl

_HTML: Final = frozenset(("text/html", "application/xhtml+xml"))


class RequisiteEnd(NamedTuple):
    """The state, rank, attempts and flags of a requisite whose fetch is over. `stored`: it was stored now."""

    state: UrlState
    rank: int
    attempts: int
    flags: int
    stored: bool


def requisite_done(url: LeasedUrl, flags: int, status: int, mime: str, attempts: int) -> RequisiteEnd:
    """Return what becomes of a requisite that was answered for good. `flags` are its new ones.

    If it is HTML, and a page links to it, it is queued as a page: only now may it count in the budget of pages.
    """
    stored = 200 <= status < 300
    if stored and mime in _HTML:
        if flags & ALSO_PAGE:
            return RequisiteEnd(UrlState.QUEUED, url.rank + REQUISITE_LEAD_MS, 0, as_page(flags), stored)
        flags |= HTML_REQUISITE
    return RequisiteEnd(UrlState.DONE, 0, attempts, flags & ~(RETRY | REVISIT), stored)
