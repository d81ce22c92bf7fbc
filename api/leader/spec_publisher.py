"""Publish the specs that workers need. `api.crawls.reconcile` decides what to publish.

The first call of `CrawlSpecPublisher.once` under a leadership compares all published records in etcd with SQL. So it
completes what a crash interrupted.
"""

from itertools import islice
from typing import Final

import msgspec
import structlog

from api.crawls.controller import CrawlController
from api.crawls.reconcile import CloseSpec, ForgetSpec, PublishedSpecs, PublishSpec, SpecAction, SpecState
from api.frontier.dispatch_crawls import spec_of
from api.members.membership import read_record
from shared.domain.crawl.spec import CrawlSpec, decode_spec
from shared.domain.errors import Permanent
from shared.domain.frontier.crawl_rows import CrawlRow
from shared.domain.ids import CrawlId, Revision
from shared.domain.ops.published_specs import published_text
from shared.ports.clock import Clock
from shared.ports.coordinator import MAX_WRITES, Coordinator, Entry, Leadership
from shared.ports.specs import PublishedSpec, SpecPublisher
from shared.ports.store import Store
from shared.runtime.supervise import Failpoint, no_failpoint
from shared.wire.keys import CrawlRecord, Keys, encode_suffixes

log = structlog.get_logger("orb.control")

_LISTED_S: Final = 300.0
"""Seconds after which all published records are read again, to find those that an operator changed in etcd."""

_GONE_FOR_S: Final = 600.0
"""Seconds for which the published record of an ended crawl is kept. After that time the crawl has no visits left."""


class CrawlSpecPublisher:
    """Publishes crawl specs to the workers under one leadership."""

    def __init__(
        self,
        coordinator: Coordinator,
        leadership: Leadership,
        publisher: SpecPublisher,
        keys: Keys,
        store: Store,
        controller: CrawlController,
        clock: Clock,
        partitions: int,
        failpoint: Failpoint = no_failpoint,
    ) -> None:
        self._coordinator = coordinator
        self._leadership = leadership
        self._publisher = publisher
        self._keys = keys
        self._store = store
        self._controller = controller
        self._clock = clock
        self._partitions = partitions
        self._failpoint = failpoint
        self._specs: PublishedSpecs | None = None
        self._listed_at = 0.0
        self._suffixes_published = False
        self._refused: set[tuple[CrawlId, Revision]] = set()

    async def once(self) -> None:
        """Publish the specs that changed since the last call.

        The first call compares all published specs with SQL. So does a call at least `_LISTED_S` seconds after the last
        comparison.
        """
        if not self._suffixes_published:
            await self._publish_suffixes()
        now = self._clock.elapsed()
        if self._specs is None or now - self._listed_at >= _LISTED_S:
            listed = await self._coordinator.list(self._keys.crawls)
            entries = ((self._keys.crawl_of(key), entry) for key, entry in listed.entries.items())
            published = {crawl_id: _state_in(entry) for crawl_id, entry in entries if crawl_id is not None}
            self._specs = await self._controller.replace_specs(published)
            self._listed_at = now
        await self._controller.once()
        for crawl_id, action in list(self._specs.todo.items()):
            await self._carry_out(crawl_id, action, self._specs)
            self._specs.todo.pop(crawl_id, None)
        await self._delete_records(self._specs)

    async def _carry_out(self, crawl_id: CrawlId, action: SpecAction, specs: PublishedSpecs) -> None:
        match action:
            case PublishSpec(row, paused):
                if (spec := spec_of(row)) is not None:
                    self._failpoint("before_spec")
                    await self._publish(row, spec, paused=paused)
                specs.published[crawl_id] = SpecState(row.revision, gone=False, paused=paused)
                specs.ending.pop(crawl_id, None)
            case CloseSpec(gone=gone):
                entry = await self._coordinator.get(self._keys.crawl(crawl_id))
                record = None if entry is None else read_record(entry, CrawlRecord)
                if record is not None:
                    await self._publish_end(crawl_id, record, gone=gone)
                    specs.published[crawl_id] = SpecState(Revision(record.revision), gone=gone, paused=True)
                else:
                    specs.published[crawl_id] = None
            case ForgetSpec():
                specs.ending[crawl_id] = self._clock.elapsed()

    async def _publish(self, row: CrawlRow, spec: CrawlSpec, *, paused: bool) -> None:
        """Publish the active spec of a crawl.

        If the coordinator refuses it for good, only log that, so that other crawls are published. The caller counts it
        as published, so the next comparison of all records tries it again.
        """
        document = published_text(row.spec.encode())
        try:
            await self._publisher.publish(
                PublishedSpec(row.crawl_id, row.revision, spec, self._partitions, paused=paused, document=document)
            )
        except Permanent as error:
            if (row.crawl_id, row.revision) not in self._refused:
                self._refused.add((row.crawl_id, row.revision))
                log.error(
                    "spec.refused",
                    crawl=row.crawl_id,
                    name=row.name,
                    revision=row.revision,
                    bytes=len(document),
                    error=str(error),
                )
            return
        log.info("spec.published", crawl=row.crawl_id, revision=row.revision, paused=paused)

    async def _delete_records(self, specs: PublishedSpecs) -> None:
        """Delete the records of crawls that ended at least `_GONE_FOR_S` seconds ago.

        `specs.ending` has the crawls in the order in which they ended.
        """
        for crawl_id, since in list(islice(specs.ending.items(), MAX_WRITES)):
            if self._clock.elapsed() - since < _GONE_FOR_S:
                return
            await self._leadership.write({}, [self._keys.crawl(crawl_id)])
            specs.published.pop(crawl_id, None)
            del specs.ending[crawl_id]

    async def _publish_suffixes(self) -> None:
        """Publish the public suffixes by which workers find the registrable domain of a host.

        They never change, so each leadership does this once.
        """
        key = self._keys.public_suffixes
        entry = await self._coordinator.get(key)
        wanted = encode_suffixes(await self._store.public_suffixes())
        if entry is None or entry.value != wanted:
            await self._leadership.write({key: wanted}, expect={key: 0 if entry is None else entry.revision})
            log.info("public_suffixes.published", bytes=len(wanted))
        self._suffixes_published = True

    async def _publish_end(self, crawl_id: CrawlId, record: CrawlRecord, *, gone: bool) -> None:
        if gone:
            self._failpoint("before_gone")
        document = bytes(record.spec)
        try:
            spec = decode_spec(document)
        except msgspec.MsgspecError as error:
            log.error("published_spec.rejected", crawl=crawl_id, error=str(error))
            return
        await self._publisher.publish(
            PublishedSpec(
                crawl_id,
                Revision(record.revision),
                spec,
                record.partitions,
                gone=gone,
                paused=record.paused or not gone,
                document=document,
            )
        )
        log.info("spec.withdrawn" if gone else "spec.closed", crawl=crawl_id)


def _state_in(entry: Entry) -> SpecState | None:
    """Return the state of a crawl in its published record; None if the record cannot be read."""
    record = read_record(entry, CrawlRecord)
    return None if record is None else SpecState(Revision(record.revision), record.gone, record.paused)
