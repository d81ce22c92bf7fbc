"""SQL expressions on the flags of a URL's row (`shared.domain.frontier.states`)."""

from typing import Final

from shared.domain.frontier.states import IS_REQUISITE, LEVEL_MS, REQUISITE_LEAD_MS, RETRY, REVISIT

NOT_QUEUED_AGAIN: Final = f"flags & {~(RETRY | REVISIT)}"
"""SQL for the column `flags` of a URL without the bits RETRY and REVISIT, as in `UPDATE urls SET flags = ...`.

RETRY marks a URL that waits for a retry. REVISIT marks a URL that waits for its next fetch. A statement clears both
bits when the URL no longer waits for either."""

QUEUED_AS: Final = (
    f"CASE WHEN flags & {IS_REQUISITE} <> 0 THEN 'requisites' WHEN flags & {RETRY} <> 0 THEN 'retries'"
    f" WHEN flags & {REVISIT} <> 0 THEN 'revisits' END"
)
"""SQL for the part of the counter `queued` to which a queued URL belongs: `requisites`, `retries` or `revisits`. NULL
for a new page. `queued_as` computes the same in Python."""

_LEAD: Final = f"CASE WHEN flags & {IS_REQUISITE} <> 0 THEN {REQUISITE_LEAD_MS} ELSE 0 END"
RANK_NOW: Final = f":now_ms + CASE WHEN flags & {IS_REQUISITE} <> 0 THEN -{REQUISITE_LEAD_MS}" + (
    f" ELSE CAST(depth - priority AS BIGINT) * {LEVEL_MS} END"
)
"""SQL for the rank of a URL that is queued at `:now_ms`. `rank_of` and `requisite_rank` compute the same in Python."""

RANK_DUE: Final = f"rank - {_LEAD}"
"""SQL for the new `rank` of a waiting URL that is queued because its due time has come.

Before the statement, the column `rank` is the due time of the URL (Unix ms). After the statement, `rank` is the place
of the URL in the queue, and lower values come first. For a page both are the same number. For a requisite the new value
is REQUISITE_LEAD_MS less than the due time, so that requisites come before pages.
"""
