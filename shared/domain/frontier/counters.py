"""The counters of a crawl, and the identities that hold between them."""

from msgspec import Struct


class Counters(Struct, frozen=True):
    """A crawl's counters, summed over partitions. `version` grows with every change of a counter.

    `retries`, `revisits` and `requisites` are parts of `queued`. `revisiting` is the part of `leased` that uses no page
    of the budget. `stale` counts outcomes that changed no URL: the URL had an outcome already, or its lease
    no longer exists.
    """

    discovered: int = 0
    queued: int = 0
    leased: int = 0
    done: int = 0
    failed: int = 0
    excluded: int = 0
    pages: int = 0
    bytes: int = 0
    fetches: int = 0
    accepted: int = 0
    new: int = 0
    known: int = 0
    refused: int = 0
    stale: int = 0
    retries: int = 0
    revisits: int = 0
    revisiting: int = 0
    requisites: int = 0
    version: int = 0

    def url_drift(self) -> int:
        """Return discovered - (queued + leased + done + failed + excluded). Any value but 0 shows a defect."""
        return self.discovered - (self.queued + self.leased + self.done + self.failed + self.excluded)

    def link_drift(self) -> int:
        """Return accepted - (new + known + refused), from the counters of links. Any value but 0 shows a defect."""
        return self.accepted - (self.new + self.known + self.refused)
