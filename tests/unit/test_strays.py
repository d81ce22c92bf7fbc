"""Which places in a queue no shard should stand on."""

from api.frontier.leases import Leases
from api.frontier.strays import unheld
from shared.domain.ids import CrawlId, HostId, LeaseId, Revision
from shared.domain.ledger import LeaseRow
from shared.ports.broker import QueuedVisit
from shared.wire import subjects


def test_a_place_is_held_by_pool_host_and_slot_together() -> None:
    leases = Leases(grant_s=30.0)
    leases.add(LeaseRow(LeaseId(1), CrawlId(1), Revision(1), HostId(7), "a", 1, "eu", 0, (), {}), 0.0)
    held = QueuedVisit("eu", HostId(7), 1)
    others = {QueuedVisit("default", HostId(7), 1), QueuedVisit("eu", HostId(8), 1), QueuedVisit("eu", HostId(7), 0)}
    assert unheld([held, *others], leases) == others


def test_a_subject_names_its_place_and_nothing_else_does() -> None:
    place = QueuedVisit("eu-1", HostId(12_288), 3)
    assert subjects.queued_visit("visits.eu-1.63.12288.3") == place
    assert [subjects.queued_visit(other) for other in ("visits.eu.1.2", "visits.eu.1.x.0", "reports.1.outcome")] == [
        None, None, None,
    ]  # fmt: skip
