"""The port through which workers read the specs of the crawls they work on."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from shared.domain.crawl.spec import CrawlSpec
from shared.domain.ids import CrawlId, Revision


@dataclass(frozen=True, slots=True)
class PublishedSpec:
    """A crawl as workers see it: its active spec at a revision. `gone` means deleted.

    `partitions` is the cluster's number of partitions. It determines the owner of a link. `document` is the stored text
    of the spec. It is published unchanged, so that fields of a later version reach members that can read them. None
    means the encoded `spec`.
    """

    crawl_id: CrawlId
    revision: Revision
    spec: CrawlSpec
    partitions: int
    gone: bool = False
    paused: bool = False
    document: bytes | None = field(default=None, compare=False, repr=False)


class SpecSource(Protocol):
    """A worker's view of the published specs."""

    async def spec(self, crawl_id: CrawlId, revision: Revision) -> PublishedSpec | None:
        """Return the crawl's spec at `revision` or later, or None if the view reached that revision without it.

        Raise Transient if the view does not reach the revision in time: absent must never be taken for deleted.
        """
        ...

    def latest(self, crawl_id: CrawlId) -> PublishedSpec | None:
        """Return what the view has of the crawl now, or None if it has nothing readable. Never waits."""
        ...

    def changes(self) -> AsyncIterator[None]:
        """Yield at once, then whenever `latest` may have changed since the previous turn, without end."""
        ...


class SpecPublisher(Protocol):
    """Where the leader publishes active specs. Publishing the same spec again changes nothing."""

    async def publish(self, spec: PublishedSpec) -> None: ...
