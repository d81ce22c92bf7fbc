"""SQL expressions on the flags of a URL's row (`shared.domain.frontier.states`)."""

from typing import Final

from shared.domain.frontier.states import IS_REQUISITE, LEVEL_MS, REQUISITE_LEAD_MS, RETRY, REVISIT

NOT_QUEUED_AGAIN: Final = f"flags & {~(RETRY | REVISIT)}"
"""The flags of a URL without RETRY and REVISIT, as if it was queued for its first fetch."""

QUEUED_AS: Final = (
    f"CASE WHEN flags & {IS_REQUISITE} <> 0 THEN 'requisites' WHEN flags & {RETRY} <> 0 THEN 'retries'"
    f" WHEN flags & {REVISIT} <> 0 THEN 'revisits' END"
)
"""The counter for the part of `queued` that a URL belongs to (`queued_as`); NULL for a new page."""

_LEAD: Final = f"CASE WHEN flags & {IS_REQUISITE} <> 0 THEN {REQUISITE_LEAD_MS} ELSE 0 END"
RANK_NOW: Final = f":now_ms + CASE WHEN flags & {IS_REQUISITE} <> 0 THEN -{REQUISITE_LEAD_MS}" + (
    f" ELSE CAST(depth - priority AS BIGINT) * {LEVEL_MS} END"
)
"""The rank of a URL that is queued at `:now_ms` (`rank_of`, `requisite_rank`)."""

RANK_DUE: Final = f"rank - {_LEAD}"
"""The rank of a URL that waited, and is queued because it is due."""
