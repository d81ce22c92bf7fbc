"""Types of the numbers that identify crawls, partitions, hosts, leases, URLs and terms, and how they are allotted."""

from typing import Final, NewType

CrawlId = NewType("CrawlId", int)
"""The number that identifies a crawl. It is never reused, so a late message for a deleted crawl finds no crawl."""

Revision = NewType("Revision", int)
"""The number of a crawl spec's revision, 1 for the first."""

Partition = NewType("Partition", int)
"""The number of a partition: a slice of all hosts and the unit of ownership, 0 <= p < P <= MAX_PARTITIONS."""

HostId = NewType("HostId", int)
"""A host's row number: sequence * MAX_PARTITIONS + partition, allotted by the partition's owner."""

LeaseId = NewType("LeaseId", int)
"""A lease's number: sequence * MAX_PARTITIONS + partition, allotted by the owner, never reused."""

Fingerprint = NewType("Fingerprint", bytes)
"""The identity of a URL: blake3 of the canonical URL, cut to 16 bytes."""

Term = NewType("Term", int)
"""A term of an owner or leader: epoch * 2**44 + revision, where the revision comes from etcd or the database. Terms of
a higher epoch are greater."""

MAX_PARTITIONS: Final = 4096
_TERM_REVISION_BITS: Final = 44


def term_of(epoch: int, revision: int) -> Term:
    """Return the term for an epoch and a revision of etcd or the database: one integer that sorts like the pair.

    Raise ValueError if `revision` is not below 2**44.
    """
    if not 0 <= revision < 1 << _TERM_REVISION_BITS:
        raise ValueError(f"coordinator revision {revision} is outside 0..2**44")
    return Term((epoch << _TERM_REVISION_BITS) | revision)


def partition_of_id(number: int) -> Partition:
    """Return the partition whose owner allotted this HostId or LeaseId."""
    return Partition(number % MAX_PARTITIONS)


def numbered(sequence: int, partition: Partition) -> int:
    """Return the HostId or LeaseId with this sequence number in `partition`: unique among all partitions."""
    return sequence * MAX_PARTITIONS + partition
