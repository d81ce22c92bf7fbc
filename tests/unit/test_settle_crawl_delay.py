"""The crawl-delay of a host after the notes of several crawls."""

import pytest

from api.frontier.capacity import BudgetReservation
from api.frontier.dispatch_crawls import DispatchCrawl
from shared.domain.crawl.spec_parse import parse_spec
from shared.domain.frontier.states import CrawlState
from shared.domain.frontier.store_model import QueueRow
from shared.domain.ids import CrawlId, Revision
from shared.wire.messages import HostNote
from tests.unit.test_settle import HOST, NOW, NOW_MS, Desk, outcome


@pytest.mark.parametrize(
    ("user_agent", "obeys", "kept_ms"), [(None, True, 0), ("Other/1", True, 9_000), ("Other/1", False, 0)]
)
def test_crawl_delay_ends_unless_it_may_be_that_of_another_crawl(
    user_agent: str | None, obeys: bool, kept_ms: int
) -> None:
    """Visits of two crawls in turn, where robots.txt slows only one, would hand back all URLs of the slower one."""
    desk = Desk(sizes=(1, 1))
    spec = {"seeds": ["http://a.test/"], "politeness": {"obey_robots": obeys}}
    other = parse_spec(spec | ({"fetch": {"user_agent": user_agent}} if user_agent else {}))
    allowance = BudgetReservation(None, None, {})
    desk.crawls.put(DispatchCrawl(CrawlId(8), "b", Revision(1), other, CrawlState.RUNNING, allowance))
    row = QueueRow(CrawlId(8), HOST, "a.test", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1)
    desk.front.offer(row, facts=desk.host.facts, delay_s=1.0, slots=1, now=NOW, now_ms=NOW_MS)
    for lease, noted_ms, stored_ms in ((1, 9_000, 9_000), (2, 0, kept_ms)):
        draft = desk.draft()
        draft.outcome(outcome(lease, note=HostNote(crawl_delay_ms=noted_ms)))
        draft.commit()
        assert desk.host.facts.crawl_delay_ms == draft.changes.hosts[HOST].crawl_delay_ms == stored_ms
