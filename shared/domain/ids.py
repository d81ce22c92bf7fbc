"""Identities used everywhere: the meaning of each number, and how it is allotted."""

from typing import Final, NewType

CrawlId = NewType("CrawlId", int)
"""A crawl's integer identity. It is never reused, so a late message of a deleted crawl matches no crawl."""

Revision = NewType("Revision", int)
"""The number of a crawl spec's revision, 1 for the first."""

Partition = NewType("Partition", int)
"""One of P slices of all hosts, 0 <= p < P <= MAX_PARTITIONS; the unit of ownership."""

HostId = NewType("HostId", int)
"""A host's row number: sequence * MAX_PARTITIONS + partition, allotted by the partition's owner."""

LeaseId = NewType("LeaseId", int)
"""A lease's number: sequence * MAX_PARTITIONS + partition, allotted by the owner, never reused."""

Fingerprint = NewType("Fingerprint", bytes)
"""blake3(canonical URL) cut to 16 bytes."""

Term = NewType("Term", int)
"""An owner's or leader's term: epoch * 2**44 + coordinator revision, so that integers compare as the pair does."""

MAX_PARTITIONS: Final = 4096
_TERM_REVISION_BITS: Final = 44


def term_of(epoch: int, revision: int) -> Term:
    """Return the term (epoch, revision) as one integer that sorts like the pair. `revision` must be below 2**44."""
    if not 0 <= revision < 1 << _TERM_REVISION_BITS:
        raise ValueError(f"coordinator revision {revision} is outside 0..2**44")
    return Term((epoch << _TERM_REVISION_BITS) | revision)


def partition_of_id(number: int) -> Partition:
    """Return the partition in which a HostId or LeaseId was allotted."""
    return Partition(number % MAX_PARTITIONS)


def numbered(sequence: int, partition: Partition) -> int:
    """Return the HostId or LeaseId that `partition`'s owner allots for `sequence`."""
    return sequence * MAX_PARTITIONS + partition
