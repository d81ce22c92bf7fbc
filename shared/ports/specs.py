"""The ports through which the leader publishes the specs of crawls, and workers read them."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from shared.domain.crawl.spec import CrawlSpec
from shared.domain.ids import CrawlId, Revision


@dataclass(frozen=True, slots=True)
class PublishedSpec:
    """A crawl as workers see it: the spec of its active revision, and its state.

    - `partitions`: the cluster's number of partitions, from which a worker computes the owner of a link.
    - `gone`: the crawl is deleted. `paused`: no request may be started.
    - `document`: the text to publish (`shared.domain.ops.published_specs.published_text`). None: the encoded `spec`.
    """

    crawl_id: CrawlId
    revision: Revision
    spec: CrawlSpec
    partitions: int
    gone: bool = False
    paused: bool = False
    document: bytes | None = field(default=None, compare=False, repr=False)


class SpecSource(Protocol):
    """Reads the specs that the leader published, as far as they have reached this process."""

    async def spec(self, crawl_id: CrawlId, revision: Revision) -> PublishedSpec:
        """Return the crawl's published spec at `revision` or later. Wait for it for a limited time.

        For a deleted crawl, the result has `gone` set. Raise Transient if the revision does not arrive in time. That
        does not mean that the crawl was deleted.
        """

    def latest(self, crawl_id: CrawlId) -> PublishedSpec | None:
        """Return the newest spec of the crawl that has reached this process, or None if it has no readable one.

        Never wait.
        """

    def changes(self) -> AsyncIterator[None]:
        """Yield at once, and then each time `latest` may return another result for some crawl. Never stop."""


class SpecPublisher(Protocol):
    """Publishes the active specs of crawls, so that workers can read them. Only the leader uses it.

    Publishing a spec that is already published changes nothing.
    """

    async def publish(self, spec: PublishedSpec) -> None: ...
