"""Masters follow what is published, and every value of it is kept to from then on."""

import asyncio
from typing import Any, cast

import pytest

from api.crawls.seed_upload import SeedUpload
from api.frontier.capacity import PoolCapacity
from api.frontier.dispatch_crawls import DispatchCrawls
from api.frontier.host_queues import HostQueues
from api.frontier.leases import HeldByAnother, Leases, MayGrant
from api.frontier.ownership import FrontierSettings, Ownership
from api.frontier.pool_shares import PoolShares
from api.members.owner_tuning import limits_of, started_as
from shared.domain.crawl.spec import CrawlSpec
from shared.domain.crawl.spec_parse import parse_spec
from shared.domain.errors import Refused
from shared.domain.frontier.states import Fence, Position
from shared.domain.frontier.store_model import Claimed, LeasedUrl, LeaseRow
from shared.domain.ids import CrawlId, Fingerprint, HostId, LeaseId, Partition, Revision, Term
from shared.domain.ops.config import (
    AS_STARTED,
    Drains,
    HotConfig,
    MasterPart,
    MasterTuning,
    MemberRole,
    StoredConfig,
    master_tuning,
)
from shared.ports.broker import Broker
from shared.runtime.config_follower import ConfigFollower
from shared.wire.desired_state import config_record, drains_record
from shared.wire.keys import DRAINS, SETTINGS, Keys
from shared.wire.messages import WorkerStatus
from tests.support.api.snapshot_view import Published

KEYS = Keys("test")
STARTED = MasterTuning(grant_s=30.0)


def entries(revision: int, config: HotConfig = AS_STARTED, *drained: str) -> dict[str, bytes]:
    return {
        KEYS.setting(SETTINGS): config_record(StoredConfig(revision, config)),
        KEYS.setting(DRAINS): drains_record(Drains(masters=drained)),
    }


class Followed:
    """A tuning, and what it asked of the master."""

    def __init__(self, view: Published) -> None:
        self.applied: list[MasterTuning] = []
        self.drained: list[bool] = []
        self.tuning = ConfigFollower(
            view,
            KEYS,
            MemberRole.MASTER,
            "m1",
            STARTED,
            master_tuning,
            apply=self.applied.append,
            drain=self.drained.append,
        )
        self.view = view

    def show(self, shown: dict[str, bytes]) -> None:
        self.view.show(shown)
        self.tuning.follow(self.view.snapshot)


# --- following --------------------------------------------------------------------------------------------------------


def test_each_revision_is_applied_once_and_its_number_known() -> None:
    followed = Followed(Published())
    config = HotConfig(master=MasterPart(report_batch_size=7))
    for _ in range(2):
        followed.show(entries(1, config))
    assert [tuning.report_batch_size for tuning in followed.applied] == [7]
    assert (followed.tuning.revision, followed.tuning.current.report_batch_size) == (1, 7)
    followed.show(entries(2))
    assert (followed.tuning.revision, followed.tuning.current) == (2, STARTED)


def test_only_its_own_drain_concerns_a_master_and_only_when_it_changes() -> None:
    followed = Followed(Published())
    for drained in (("m2",), ("m1", "m2"), ("m1",), (), ()):
        followed.show(entries(0, AS_STARTED, *drained))
    assert followed.drained == [True, False]


def test_what_cannot_be_read_leaves_everything_as_it_was() -> None:
    followed = Followed(Published())
    followed.show(entries(1, HotConfig(master=MasterPart(report_batch_size=7)), "m1"))
    followed.show({KEYS.setting(SETTINGS): b"{", KEYS.setting(DRAINS): b"{"})
    followed.show({})
    assert (followed.tuning.revision, followed.tuning.current.report_batch_size, followed.drained) == (1, 7, [True])


def test_a_change_is_followed_as_soon_as_it_is_seen() -> None:
    async def story() -> None:
        view = Published(entries(1, HotConfig(master=MasterPart(report_batch_size=7))))
        followed, applied = Followed(view), asyncio.Event()
        followed.tuning._apply = lambda tuning: applied.set()
        running = asyncio.ensure_future(followed.tuning.run())
        await asyncio.wait_for(applied.wait(), 30)
        applied.clear()
        view.show(entries(2, HotConfig(master=MasterPart(report_batch_size=8))))
        await asyncio.wait_for(applied.wait(), 30)
        assert followed.tuning.revision == 2
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(story())


# --- what is applied --------------------------------------------------------------------------------------------------


def row(number: int, grants: int = 0) -> LeaseRow:
    order = (Fingerprint(bytes(16)),)
    held = {order[0]: LeasedUrl("http://a/", 2, 2, 1, 0, 0, 0, 0)}
    return LeaseRow(
        LeaseId(number), CrawlId(1), Revision(1), HostId(1), "a", 0, "default", 0, order, held, grants=grants
    )


def test_a_shorter_grant_is_for_new_grants_and_shortens_none_that_was_given() -> None:
    leases = Leases(grant_s=30.0)
    first, second = leases.add(row(1), 0.0), leases.add(row(2), 0.0)
    leases.granted(first, 1, "w", 0.0)
    leases.grant_s = 5.0
    leases.granted(second, 1, "w", 0.0)
    leases.extend(first, 1.0)
    assert (first.live(29.9), second.live(5.1)) == (True, False)
    assert leases.begin(LeaseId(1), 2, "v", 10.0) == HeldByAnother(20.0)


def test_new_owner_waits_for_earlier_grants_by_the_longest_duration() -> None:
    """The earlier owner may not have heard of the shorter grants: two workers would fetch from the host at once."""
    leases = Leases(grant_s=5.0, longest_s=30.0)
    held = leases.take_over(row(1, grants=1), 0.0, ended=False)
    assert leases.begin(LeaseId(1), 2, "v", 10.0) == HeldByAnother(20.0)
    assert leases.begin(LeaseId(1), 2, "v", 30.0) == MayGrant(held, expired=True)


def test_owners_honour_grants_for_their_start_duration_after_config_change() -> None:
    started = FrontierSettings(partitions=8, grant_s=30.0, ack_wait_s=7.0)
    assert master_tuning(AS_STARTED, started_as(started, "info")) == started_as(started, "info")
    turned = master_tuning(HotConfig(master=MasterPart(grant_s=5.0, report_batch_size=7)), started_as(started, "info"))
    limits = limits_of(started, turned)
    assert (limits.grant_s, limits.longest_grant_s, limits.batch) == (5.0, 30.0, 7)
    assert (limits.partitions, limits.ack_wait_s) == (8, 7.0), "what cannot be turned stays"
    assert limits_of(started, started_as(started, "info")).longest_grant_s == 30.0


def test_dispatch_keeps_allowed_shards_ahead_and_none_at_zero() -> None:
    room = PoolCapacity()
    room.worker_reported(WorkerStatus("w", "default", 10, 0), 0.0)
    assert room.for_pool("default", 0.0) == 20
    for ahead, shards in ((1.5, 15), (0.25, 2), (0.0, 0), (2.0, 20)):
        room.shards_per_visit = ahead
        assert room.for_pool("default", 0.0) == shards


def test_a_front_takes_in_no_further_host_above_a_lowered_limit() -> None:
    front = HostQueues(PoolShares(), max_hosts=10, rested_from=0.0)
    assert not front.full()
    front.max_hosts = 0
    assert front.full()


def test_an_owner_goes_on_under_other_limits_at_once() -> None:
    async def story() -> None:
        own = Ownership(
            Claimed(Fence(Partition(0), Term(1), 0), Position(), 1, 1, ()),
            crawls=DispatchCrawls(),
            capacity=PoolCapacity(),
            settings=FrontierSettings(grant_s=30.0, longest_grant_s=30.0),
            now=0.0,
        )
        settings_changed, work = own.settings_changed.revision, own.work.revision
        own.tune(FrontierSettings(grant_s=5.0, max_hosts=7, batch=3, dispatch_batch_size=2, sweep_interval_s=0.5))
        assert (own.leases.grant_s, own.hosts.max_hosts) == (5.0, 7)
        assert (own.settings.batch, own.settings.dispatch_batch_size, own.settings.sweep_interval_s) == (3, 2, 0.5)
        assert await own.settings_changed.changed(settings_changed, 0.0), "a sweep that sleeps for long is woken"
        assert await own.work.changed(work, 0.0), "and so is a dispatch"

    asyncio.run(story())


class HalfFull:
    """A broker whose fullest partition has half of what it may have waiting."""

    def __init__(self) -> None:
        self.stored = 0

    async def fullness(self, kind: str) -> float:
        return 0.5

    async def publish_report(self, *report: Any) -> int:
        self.stored += 1
        return self.stored


@pytest.mark.parametrize(("refused_at", "refused"), [(0.0, True), (0.5, True), (0.6, False)])
def test_uploads_are_refused_from_the_fullness_that_is_said(refused_at: float, refused: bool) -> None:
    async def story() -> None:
        broker, spec = HalfFull(), parse_spec({"seeds": ["http://a.test/"]})
        assert isinstance(spec, CrawlSpec)
        upload = SeedUpload(cast(Broker, broker), CrawlId(1), Revision(1), spec, 4, None, refused_at=refused_at)
        await upload.take("http://a.test/1")
        if refused:
            with pytest.raises(Refused):
                await upload.finish()
        else:
            assert (await upload.finish()).accepted == 1
        assert broker.stored == (0 if refused else 1)

    asyncio.run(story())
