"""What a crawl allows at a host, by what is known of the host."""

from api.frontier.capacity import BudgetReservation
from api.frontier.dispatch_crawls import DispatchCrawl, DispatchCrawls
from api.frontier.hosts import Host, HostFacts
from shared.domain.crawl.spec import SLOTS_WITHOUT_DELAY
from shared.domain.crawl.spec_parse import parse_spec
from shared.domain.frontier.politeness import HostHealth
from shared.domain.frontier.states import CrawlState
from shared.domain.ids import CrawlId, HostId, Revision


def crawl(**politeness: float) -> DispatchCrawl:
    spec = parse_spec({"seeds": ["http://a.test/"], "politeness": politeness})
    allowance = BudgetReservation(None, None, {})
    return DispatchCrawl(CrawlId(1), "a", Revision(1), spec, CrawlState.RUNNING, allowance)


def test_host_gets_parallel_shards_only_after_robots_without_delay() -> None:
    eager = crawl(delay_s=0)
    assert eager.pace("a.test", HostFacts(HostHealth()))[1] == 1
    assert eager.pace("a.test", HostFacts(HostHealth(), visited=True))[1] == SLOTS_WITHOUT_DELAY
    assert eager.pace("a.test", HostFacts(HostHealth(), crawl_delay_ms=500, visited=True))[1] == 1
    assert crawl(delay_s=0.1).pace("a.test", HostFacts(HostHealth(), visited=True))[1] == 1


def test_longest_delay_of_a_host_counts_what_429s_slowed_in_each_crawl() -> None:
    """No crawl was adaptive, so the host left memory before the delay that its 429s had set."""
    crawls, slowed = DispatchCrawls(), crawl(delay_s=1, max_delay_s=60)
    crawls.put(slowed)
    host = Host(HostId(1), "a.test", HostFacts(HostHealth(slowed_ms=60_000), visited=True), 0.0)
    assert crawls.longest_delay_s(host) == slowed.delay_s(host.name, host.facts) == 60
