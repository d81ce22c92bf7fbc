"""The port through which workers learn the crawls they work on."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from shared.domain.crawl import CrawlSpec
from shared.domain.ids import CrawlId, Revision


@dataclass(frozen=True, slots=True)
class PublishedSpec:
    """A crawl as workers see it: its active spec at a revision; `gone` once it was deleted, `paused` while it rests.

    `partitions` is the cluster's number of partitions, by which a link finds its owner. `document` is the spec as it is
    stored, and is published as it stands: what a later version says in it is for others to read. None: the spec's own.
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
        """The crawl's spec at `revision` or later; None when the view has reached that revision and knows no such
        crawl.

        Transient when the view has not reached the revision in time: absent must never be taken for deleted.
        """
        ...

    def latest(self, crawl_id: CrawlId) -> PublishedSpec | None:
        """What the view shows of the crawl now, at once; None where it shows nothing that can be read."""
        ...

    def changes(self) -> AsyncIterator[None]:
        """Without end: a turn at once, and one whenever `latest` may say something else than in the turn before."""
        ...


class SpecPublisher(Protocol):
    """Where the leader publishes active specs, level-triggered: publishing the same again changes nothing."""

    async def publish(self, spec: PublishedSpec) -> None: ...
