"""Sums of the counters of crawls, for metrics.

In metrics, some crawls appear under their own names, and all others together under the name OTHER.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from shared.domain.frontier.store_model import Counters
from shared.domain.ids import CrawlId
from shared.domain.ops.counts import OTHER

_FIELDS: Final = Counters.__struct_fields__


class CrawlSums:
    """Stores the counters of each crawl, and the sum of the counters for each label.

    A crawl's label is the name under which metrics show it: its own name, or OTHER. `apart` has the ids of the crawls
    whose label is their own name.
    """

    def __init__(self) -> None:
        self.apart: set[CrawlId] = set()
        self._parts: dict[CrawlId, tuple[str, Counters]] = {}
        self._sums: dict[str, dict[str, int]] = {}
        self._crawls: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<CrawlSums {len(self._parts)} crawls, {len(self._sums)} labels>"

    def put(self, crawl_id: CrawlId, label: str, counters: Counters | None) -> None:
        """Set the label and the counters of a crawl, in place of the earlier ones.

        If `counters` is None, remove the crawl.
        """
        if (before := self._parts.pop(crawl_id, None)) is not None:
            self._add(*before, -1)
            self.apart.discard(crawl_id)
        if counters is not None:
            self._parts[crawl_id] = label, counters
            self._add(label, counters, 1)
            if label != OTHER:
                self.apart.add(crawl_id)

    def relabel(self, crawl_id: CrawlId, label: str | None) -> None:
        """Move a crawl to another label. If `label` is None, remove the crawl.

        Do nothing if no counters of the crawl are stored here.
        """
        if (part := self._parts.get(crawl_id)) is not None and part[0] != label:
            self.put(crawl_id, label or OTHER, None if label is None else part[1])

    def by_label(self) -> Mapping[str, Counters]:
        """Return the summed counters of each label that has a crawl."""
        return {label: Counters(**sums) for label, sums in self._sums.items()}

    def _add(self, label: str, counters: Counters, sign: int) -> None:
        self._crawls[label] += sign
        if not self._crawls[label]:
            del self._crawls[label], self._sums[label]
            return
        sums = self._sums.setdefault(label, dict.fromkeys(_FIELDS, 0))
        for name in _FIELDS:
            sums[name] += sign * getattr(counters, name)
