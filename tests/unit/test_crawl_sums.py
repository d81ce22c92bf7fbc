"""The sums of counters by label: crawls come, change, move to another label and go."""

from api.observe.crawl_sums import CrawlSums
from shared.domain.frontier.store_model import Counters
from shared.domain.ids import CrawlId
from shared.domain.ops.counts import OTHER

ONE, TWO, THREE = map(CrawlId, (1, 2, 3))


def test_sums_are_by_label_and_field_by_field() -> None:
    sums = CrawlSums()
    assert sums.by_label() == {}
    sums.put(ONE, "docs", Counters(queued=1, version=2))
    sums.put(TWO, OTHER, Counters(queued=3, done=4))
    sums.put(THREE, OTHER, Counters(done=5, version=7))
    assert sums.by_label() == {
        "docs": Counters(queued=1, version=2),
        OTHER: Counters(queued=3, done=9, version=7),
    }
    assert sums.apart == {ONE}


def test_changed_counters_replace_the_earlier_ones() -> None:
    sums = CrawlSums()
    sums.put(ONE, OTHER, Counters(queued=3))
    sums.put(TWO, OTHER, Counters(queued=4))
    sums.put(ONE, OTHER, Counters(done=3))
    assert sums.by_label() == {OTHER: Counters(queued=4, done=3)}
    sums.put(TWO, OTHER, None)
    assert sums.by_label() == {OTHER: Counters(done=3)}
    sums.put(ONE, OTHER, None)
    assert sums.by_label() == {}, "a label without crawls is not shown"


def test_relabelled_crawl_is_counted_once() -> None:
    sums = CrawlSums()
    sums.put(ONE, OTHER, Counters(queued=3))
    sums.put(TWO, OTHER, Counters(queued=4))
    sums.relabel(ONE, "docs")
    sums.relabel(THREE, "unknown")
    assert sums.by_label() == {"docs": Counters(queued=3), OTHER: Counters(queued=4)}
    assert sums.apart == {ONE}
    sums.relabel(ONE, OTHER)
    assert sums.by_label() == {OTHER: Counters(queued=7)}
    assert not sums.apart
    sums.relabel(ONE, None)
    assert sums.by_label() == {OTHER: Counters(queued=4)}
