"""How crawls share what a partition can dispatch: deficit round robin by weight (Shreedhar and Varghese, 1995)."""

from collections.abc import Collection

from shared.domain.ids import CrawlId

_QUANTUM_URLS = 50


class Shares:
    """Each crawl in turn may lease `weight * 50` URLs; what a shard takes beyond its credit is paid in later rounds."""

    def __init__(self) -> None:
        self._weights: dict[CrawlId, int] = {}
        self._credit: dict[CrawlId, float] = {}

    def set_weight(self, crawl_id: CrawlId, weight: int) -> None:
        """Let the crawl take part, or change its weight (>= 1)."""
        self._weights[crawl_id] = weight

    def remove(self, crawl_id: CrawlId) -> None:
        """The crawl takes no further part."""
        self._weights.pop(crawl_id, None)
        self._credit.pop(crawl_id, None)

    def next(self, ready: Collection[CrawlId]) -> CrawlId | None:
        """The crawl whose turn it is among those with something ready; None when none takes part."""
        taking_part = [crawl_id for crawl_id in ready if crawl_id in self._weights]
        if not taking_part:
            return None
        best = max(taking_part, key=lambda crawl_id: self._credit.get(crawl_id, 0.0))
        owed = -self._credit.get(best, 0.0)
        if owed >= 0:
            rounds = owed // (self._weights[best] * _QUANTUM_URLS) + 1
            for crawl_id in taking_part:
                earned = rounds * self._weights[crawl_id] * _QUANTUM_URLS
                self._credit[crawl_id] = self._credit.get(crawl_id, 0.0) + earned
        return best

    def charge(self, crawl_id: CrawlId, urls: int) -> None:
        """The crawl leased `urls`."""
        self._credit[crawl_id] = self._credit.get(crawl_id, 0.0) - urls
