"""The ports by which the leader publishes the specs of crawls, and workers read them."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from shared.domain.crawl.spec import CrawlSpec
from shared.domain.ids import CrawlId, Revision


@dataclass(frozen=True, slots=True)
class PublishedSpec:
    """A crawl as workers see it: its active spec at a revision. `gone`: the crawl is deleted.

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
    """The specs that the leader published, as far as they have reached this process."""

    async def spec(self, crawl_id: CrawlId, revision: Revision) -> PublishedSpec | None:
        """Return the crawl's spec at `revision` or later, waiting a while for it. Return None if specs of that revision
        have arrived and the crawl's is not among them.

        Raise Transient if the revision does not arrive in time: absent must never be taken for deleted.
        """

    def latest(self, crawl_id: CrawlId) -> PublishedSpec | None:
        """Return the newest spec of the crawl that this process has received. Return None if it has none that it can
        read.

        Never waits.
        """

    def changes(self) -> AsyncIterator[None]:
        """Yield at once, then whenever the result of `latest` may have changed for some crawl, without end."""


class SpecPublisher(Protocol):
    """Publishes crawls' active specs for workers, by the leader. Publishing the same spec again changes nothing."""

    async def publish(self, spec: PublishedSpec) -> None: ...
