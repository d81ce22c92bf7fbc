"""SQL expressions on the flags of a URL's row (`shared.domain.frontier.states`)."""

from typing import Final

from shared.domain.frontier.states import RETRY, REVISIT

NOT_QUEUED_AGAIN: Final = f"flags & {~(RETRY | REVISIT)}"
"""The flags of a URL that is queued as a new one: neither for a retry nor for its page's next fetch."""

QUEUED_AS: Final = f"CASE WHEN flags & {RETRY} <> 0 THEN 'retries' WHEN flags & {REVISIT} <> 0 THEN 'revisits' END"
"""The counter for the part of `queued` that a URL belongs to (`queued_as`); NULL for a new URL."""
