"""What a fetch says about its host."""

import pytest

from api.frontier.capacity import BudgetReservation
from api.frontier.dispatch_crawls import DispatchCrawl
from api.frontier.hosts import HostFacts
from api.frontier.outcome_facts import facts_after
from shared.domain.crawl.spec_parse import parse_spec
from shared.domain.frontier.politeness import HostHealth
from shared.domain.frontier.states import CrawlState, UrlEnd
from shared.domain.ids import CrawlId, Fingerprint, Revision
from shared.domain.web.fetch import FailureKind
from shared.wire.messages import UrlOutcome

CRAWL = DispatchCrawl(
    CrawlId(1),
    "a",
    Revision(1),
    parse_spec({"seeds": ["http://a.test/"]}),
    CrawlState.RUNNING,
    BudgetReservation(None, None, {}),
)


@pytest.mark.parametrize(
    ("kind", "unreachable"), [(FailureKind.EXCLUDED, 2), (FailureKind.EGRESS_DENIED, 2), (FailureKind.RESET, 0)]
)
def test_host_stays_unreachable_after_a_fetch_that_sent_nothing(kind: FailureKind, unreachable: int) -> None:
    facts = HostFacts(HostHealth(unreachable=2))
    failed = UrlOutcome(Fingerprint(bytes(16)), UrlEnd.FAILED, 0, reason=kind)
    assert facts_after(facts, None, failed, CRAWL, "a.test", 0, lambda: 0.5).health.unreachable == unreachable
