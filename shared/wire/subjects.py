"""Names of streams, subjects and buckets (architecture: JetStream)."""

from shared.domain.ids import Partition
from shared.ports.broker import ReportKind

REPORTS = "REPORTS"
REPORT_SUBJECTS = ("reports.*.outcome", "reports.*.discovery")
ROBOTS_BUCKET = "robots"
WORKER_STATUS = "status.worker"
PROGRESS = "status.progress"


def visits_stream(pool: str) -> str:
    """The work-queue stream of a pool."""
    return f"VISITS_{pool}"


def visits_filter(pool: str) -> str:
    """Every visit subject of a pool."""
    return f"visits.{pool}.>"


def visit(pool: str, partition: Partition, host_id: int, slot: int) -> str:
    """The subject of a shard: one message at a time may stand on it, so a host's slot is filled once."""
    return f"visits.{pool}.{partition}.{host_id}.{slot}"


def report(partition: Partition, kind: ReportKind) -> str:
    """Where reports for a partition go."""
    return f"reports.{partition}.{kind}"


def owner(partition: Partition) -> str:
    """Where a partition's owner answers Begin and Extend."""
    return f"owner.{partition}"
