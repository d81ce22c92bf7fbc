"""The names of streams, subjects and buckets in NATS."""

import re
from typing import Final

from shared.domain.ids import HostId, Partition
from shared.ports.broker import QueuedVisit, ReportKind, VisitOrigin

INBOX: Final = "_INBOX"
_NOT_IN_TOKEN: Final = re.compile(r"[^A-Za-z0-9_-]")

REPORTS = "REPORTS"
REPORT_SUBJECTS = ("reports.*.outcome", "reports.*.discovery")
COMMANDS: Final = "reports.*.command"
"""The subjects of commands, in the stream of the reports. Workers may not publish on them."""
ROBOTS_BUCKET = "robots"
WORKER_STATUS = "status.worker"
MASTER_STATUS = "status.master"
STATUS_WANTED = "status.wanted"
"""The subject on which a master requests the statuses of all workers, when it begins to receive statuses.

Each worker then publishes its status. A worker that waits after a failed pull of visits also pulls again at once.
"""

PROGRESS = "status.progress"
EVERY_OWNER: Final = "owner.*"


def visits_stream(pool: str) -> str:
    """Return the name of the stream that holds a pool's queue of URL shards."""
    return f"VISITS_{pool}"


def visits_filter(pool: str) -> str:
    """Return the pattern that matches the subjects of all URL shards of a pool."""
    return f"visits.{pool}.>"


def visit(pool: str, partition: Partition, host_id: int, slot: int) -> str:
    """Return the subject on which a URL shard is published. The stream stores at most one message on each such subject.

    So each slot of a host has at most one shard in the queue.
    """
    return f"visits.{pool}.{partition}.{host_id}.{slot}"


def visits_of(partition: Partition) -> str:
    """Return the pattern that matches the subjects of all URL shards of a partition, in any pool."""
    return f"visits.*.{partition}.>"


def queued_visit(subject: str) -> QueuedVisit | None:
    """Return the place in a queue (pool, host and slot) that the subject of a URL shard names.

    Return None if `subject` is not the subject of a URL shard.
    """
    match subject.split("."):
        case ["visits", pool, _, host_id, slot] if host_id.isdecimal() and slot.isdecimal():
            return QueuedVisit(pool, HostId(int(host_id)), int(slot))
        case _:
            return None


def visit_origin(subject: str, sequence: int) -> VisitOrigin | None:
    """Return the place of a URL shard in NATS, for a message with this subject and sequence in its pool's stream.

    `visit_origin("visits.default.5.77.0", 12)` returns partition 5, pool `default`, host 77, slot 0 and sequence 12.
    Return None if `subject` is not the subject of a URL shard.
    """
    place = queued_visit(subject)
    partition = subject.split(".")[2] if place is not None else ""
    return VisitOrigin(Partition(int(partition)), place, sequence) if place and partition.isdecimal() else None


def report(partition: Partition, kind: ReportKind) -> str:
    """Return the subject on which reports of one kind to a partition's owner are published."""
    return f"reports.{partition}.{kind}"


def command(partition: Partition) -> str:
    """Return the subject on which commands to a partition's owner are published.

    The owner reads commands together with outcomes, in the order of the stream.
    """
    return f"reports.{partition}.command"


def reports(partition: Partition, kind: ReportKind) -> tuple[str, ...]:
    """Return the subjects from which a partition's owner reads reports of one kind.

    - `outcome`: the subject of outcomes and the subject of commands. The owner reads both in one sequence.
    - `discovery`: only the subject of discoveries.
    """
    return (report(partition, kind), command(partition)) if kind == "outcome" else (report(partition, kind),)


def reported(subject: str) -> tuple[Partition, ReportKind]:
    """Return the partition of a report's or command's subject, and the kind with which its owner reads the subject.

    - `reports.5.discovery` returns 5 and `discovery`.
    - `reports.5.outcome` returns 5 and `outcome`.
    - `reports.5.command` also returns 5 and `outcome`, because an owner reads commands together with outcomes.
    """
    _, partition, kind = subject.split(".")
    return Partition(int(partition)), "discovery" if kind == "discovery" else "outcome"


def owner(partition: Partition) -> str:
    """Return the subject on which a partition's owner answers workers' questions (Begin and Extend)."""
    return f"owner.{partition}"


def inbox(name: str) -> str:
    """Return the prefix of the subjects on which the process with this name receives answers.

    Two different names never have the same prefix. A worker's name is its id.
    """
    return f"{INBOX}.{_NOT_IN_TOKEN.sub(lambda found: f'~{ord(found[0]):02x}', name)}"
