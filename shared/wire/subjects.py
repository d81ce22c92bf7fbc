"""Names of streams, subjects and buckets (architecture: JetStream)."""

from shared.domain.ids import HostId, Partition
from shared.ports.broker import QueuedVisit, ReportKind, VisitOrigin

REPORTS = "REPORTS"
REPORT_SUBJECTS = ("reports.*.outcome", "reports.*.discovery")
ROBOTS_BUCKET = "robots"
WORKER_STATUS = "status.worker"
MASTER_STATUS = "status.master"
STATUS_WANTED = "status.wanted"
"""A master that begins to listen publishes here. Each worker then sends its status and retries a failed pull."""

PROGRESS = "status.progress"


def visits_stream(pool: str) -> str:
    """Return the name of a pool's work-queue stream."""
    return f"VISITS_{pool}"


def visits_filter(pool: str) -> str:
    """Return the filter of every visit subject of a pool."""
    return f"visits.{pool}.>"


def visit(pool: str, partition: Partition, host_id: int, slot: int) -> str:
    """Return the subject of a shard. It holds one message at a time, so a host's slot is filled once."""
    return f"visits.{pool}.{partition}.{host_id}.{slot}"


def visits_of(partition: Partition) -> str:
    """Return the filter of every visit subject of a partition, in any pool."""
    return f"visits.*.{partition}.>"


def queued_visit(subject: str) -> QueuedVisit | None:
    """Return the place that a visit subject names, None for any other subject."""
    match subject.split("."):
        case ["visits", pool, _, host_id, slot] if host_id.isdecimal() and slot.isdecimal():
            return QueuedVisit(pool, HostId(int(host_id)), int(slot))
        case _:
            return None


def visit_origin(subject: str, sequence: int) -> VisitOrigin | None:
    """Return the origin of a shard by its visit subject and sequence, None for any other subject."""
    place = queued_visit(subject)
    partition = subject.split(".")[2] if place is not None else ""
    return VisitOrigin(Partition(int(partition)), place, sequence) if place and partition.isdecimal() else None


def report(partition: Partition, kind: ReportKind) -> str:
    """Return the subject of a partition's reports of that kind."""
    return f"reports.{partition}.{kind}"


def reported(subject: str) -> tuple[Partition, ReportKind]:
    """Return the partition and kind of a report's subject."""
    _, partition, kind = subject.split(".")
    return Partition(int(partition)), "outcome" if kind == "outcome" else "discovery"


def owner(partition: Partition) -> str:
    """Return the subject on which a partition's owner answers Begin and Extend."""
    return f"owner.{partition}"
