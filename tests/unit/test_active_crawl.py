"""What a crawl allows at a host, by what is known of the host."""

from api.frontier.capacity import BudgetReservation
from api.frontier.dispatch_crawls import DispatchCrawl
from api.frontier.hosts import HostFacts
from shared.domain.crawl.spec import SLOTS_WITHOUT_DELAY
from shared.domain.crawl.spec_parse import parse_spec
from shared.domain.frontier.politeness import HostHealth
from shared.domain.frontier.states import CrawlState
from shared.domain.ids import CrawlId, Revision


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
