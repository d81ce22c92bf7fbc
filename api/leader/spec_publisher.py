"""Publish the specs that workers need from SQL. Level-triggered: the next pass completes what a crash interrupted."""

from typing import Final

import msgspec
import structlog

from api.crawls.active_crawls import time_spent
from api.frontier.dispatch_crawls import spec_of
from api.members.membership import read_record
from shared.domain.crawl.spec import Budget, decode_spec
from shared.domain.frontier.states import CrawlState
from shared.domain.frontier.store_model import CrawlRow
from shared.domain.ids import CrawlId, Revision
from shared.ports.clock import Clock
from shared.ports.coordinator import Coordinator, Leadership
from shared.ports.specs import PublishedSpec, SpecPublisher
from shared.ports.store import Store
from shared.runtime.supervise import Failpoint, no_failpoint
from shared.wire.keys import CrawlRecord, Keys, encode_suffixes

log = structlog.get_logger("orb.control")

_GONE_FOR_S: Final = 600.0
"""How long the record of an ended crawl is kept before it is deleted: its visits are over by then."""


class CrawlSpecPublisher:
    """Publishes under one leadership."""

    def __init__(
        self,
        coordinator: Coordinator,
        leadership: Leadership,
        publisher: SpecPublisher,
        keys: Keys,
        store: Store,
        clock: Clock,
        partitions: int,
        failpoint: Failpoint = no_failpoint,
    ) -> None:
        self._coordinator = coordinator
        self._leadership = leadership
        self._publisher = publisher
        self._keys = keys
        self._store = store
        self._clock = clock
        self._partitions = partitions
        self._failpoint = failpoint
        self._gone_since: dict[CrawlId, float] = {}
        self._budgets: dict[tuple[CrawlId, Revision], Budget] = {}
        self._suffixes_published = False

    async def once(self) -> None:
        """Run one pass over the active crawls and all records."""
        if not self._suffixes_published:
            await self._publish_suffixes()
        listed = await self._coordinator.list(self._keys.crawls)
        records: dict[CrawlId, CrawlRecord | None] = {}
        for key, entry in listed.entries.items():
            if (crawl_id := self._keys.crawl_of(key)) is not None:
                records[crawl_id] = read_record(entry, CrawlRecord)
        rows = {row.crawl_id: row for row in await self._store.worked_on()}
        active = {(row.crawl_id, row.revision) for row in rows.values()}
        self._budgets = {key: budget for key, budget in self._budgets.items() if key in active}
        for row in rows.values():
            record = records.get(row.crawl_id)
            paused = row.state is CrawlState.PAUSED or self._time_is_up(row)
            wanted = (row.revision, False, paused)
            current = record is not None and (record.revision, record.gone, record.paused) == wanted
            if not current and (spec := spec_of(row)) is not None:
                self._failpoint("before_spec")
                stored = row.spec.encode()
                await self._publisher.publish(
                    PublishedSpec(row.crawl_id, row.revision, spec, self._partitions, paused=paused, document=stored)
                )
                log.info("spec.published", crawl=row.crawl_id, revision=row.revision, paused=paused)
        left = {crawl_id: record for crawl_id, record in records.items() if crawl_id not in rows}
        living = await self._store.living([i for i, record in left.items() if record is not None and not record.gone])
        for crawl_id, record in left.items():
            await self._end(crawl_id, record, deleted=crawl_id not in living)
        for crawl_id in self._gone_since.keys() & rows.keys():
            del self._gone_since[crawl_id]

    def _time_is_up(self, row: CrawlRow) -> bool:
        """Return True if the crawl has used up its time. Its visits then end like those of a paused crawl."""
        key = row.crawl_id, row.revision
        if key not in self._budgets and (spec := spec_of(row)) is not None:
            self._budgets[key] = spec.budget
        budget = self._budgets.get(key)
        return budget is not None and time_spent(budget, row.active_ms)

    async def _publish_suffixes(self) -> None:
        """Publish the public suffixes by which workers divide hosts. They never change: once a leadership suffices."""
        key = self._keys.public_suffixes
        entry = await self._coordinator.get(key)
        wanted = encode_suffixes(await self._store.public_suffixes())
        if entry is None or entry.value != wanted:
            await self._leadership.write({key: wanted}, expect={key: 0 if entry is None else entry.revision})
            log.info("public_suffixes.published", bytes=len(wanted))
        self._suffixes_published = True

    async def _end(self, crawl_id: CrawlId, record: CrawlRecord | None, *, deleted: bool) -> None:
        """Publish that a crawl is deleted or over, and delete its record after `_GONE_FOR_S`.

        A crawl that is over but not deleted, such as a cancelled one, is published as paused: its visits start no
        further request and hand back the rest.
        """
        since = self._gone_since.setdefault(crawl_id, self._clock.elapsed())
        if record is not None and not record.gone and (deleted or not record.paused):
            await self._publish_end(crawl_id, record, gone=deleted)
        elif self._clock.elapsed() - since >= _GONE_FOR_S:
            await self._leadership.write({}, [self._keys.crawl(crawl_id)])
            self._gone_since.pop(crawl_id, None)

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
