"""Sums of the counters of crawls by label in metrics. A change of one crawl costs the same for any number. No I/O."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from shared.domain.frontier.store_model import Counters
from shared.domain.ids import CrawlId
from shared.domain.ops.counts import OTHER

_FIELDS: Final = Counters.__struct_fields__


class CrawlSums:
    """The counters of crawls, and their sum for each label, field by field.

    `apart` has the crawls with a label of their own. The others share OTHER.
    """

    def __init__(self) -> None:
        self.apart: set[CrawlId] = set()
        self._parts: dict[CrawlId, tuple[str, Counters]] = {}
        self._sums: dict[str, dict[str, int]] = {}
        self._crawls: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<CrawlSums {len(self._parts)} crawls, {len(self._sums)} labels>"

    def put(self, crawl_id: CrawlId, label: str, counters: Counters | None) -> None:
        """Replace the counters and the label of a crawl. None removes it."""
        if (before := self._parts.pop(crawl_id, None)) is not None:
            self._add(*before, -1)
            self.apart.discard(crawl_id)
        if counters is not None:
            self._parts[crawl_id] = label, counters
            self._add(label, counters, 1)
            if label != OTHER:
                self.apart.add(crawl_id)

    def relabel(self, crawl_id: CrawlId, label: str | None) -> None:
        """Move a crawl to another label, if it has counters. None removes it."""
        if (part := self._parts.get(crawl_id)) is not None and part[0] != label:
            self.put(crawl_id, label or OTHER, None if label is None else part[1])

    def by_label(self) -> Mapping[str, Counters]:
        """Return the sum of each label that any crawl has."""
        return {label: Counters(**sums) for label, sums in self._sums.items()}

    def _add(self, label: str, counters: Counters, sign: int) -> None:
        self._crawls[label] += sign
        if not self._crawls[label]:
            del self._crawls[label], self._sums[label]
            return
        sums = self._sums.setdefault(label, dict.fromkeys(_FIELDS, 0))
        for name in _FIELDS:
            sums[name] += sign * getattr(counters, name)
