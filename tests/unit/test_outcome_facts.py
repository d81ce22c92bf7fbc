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


@pytest.mark.parametrize(("reason", "since_ms"), [("robots_tls", 0), ("reset", 5)])
def test_host_is_not_silent_if_only_one_of_its_origins_fails(reason: str, since_ms: int) -> None:
    """A later failure gave up a host that had answered all the time."""
    facts = HostFacts(HostHealth(failures=2, unreachable=2, recent=0b101, silent_since_ms=5))
    failed = UrlOutcome(Fingerprint(bytes(16)), UrlEnd.FAILED, 0, reason=reason)
    health = facts_after(facts, None, failed, CRAWL, "a.test", 9, lambda: 0.5).health
    assert health == HostHealth(failures=2, recent=0b101, silent_since_ms=since_ms)
