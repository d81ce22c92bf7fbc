"""Decide what becomes of a requisite after its fetch: it is done, or it is queued again as a page."""

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
    """The new state, rank, attempts and flags of a requisite whose fetch has ended.

    `stored`: the fetch stored it in the archive.
    """

    state: UrlState
    rank: int
    attempts: int
    flags: int
    stored: bool


def requisite_done(url: LeasedUrl, flags: int, status: int, mime: str, attempts: int) -> RequisiteEnd:
    """Return the new state of a requisite that got a final response.

    It is queued again as a page if it is HTML and was also found as a page (flag ALSO_PAGE). Otherwise it is done.

    - `flags`: the present flags of its row, which may differ from those in `url`.
    - `status`, `mime`: the HTTP status and the media type of the response.
    - `attempts`: the value for the row's field `attempts` if the requisite is done. A page that is queued again gets 0.
    """
    stored = 200 <= status < 300
    if stored and mime in _HTML:
        if flags & ALSO_PAGE:
            return RequisiteEnd(UrlState.QUEUED, url.rank + REQUISITE_LEAD_MS, 0, as_page(flags), stored)
        flags |= HTML_REQUISITE
    return RequisiteEnd(UrlState.DONE, 0, attempts, flags & ~(RETRY | REVISIT), stored)
