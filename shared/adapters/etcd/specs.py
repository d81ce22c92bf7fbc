"""Published specs in etcd under the keys `crawls/...`. The leader writes them, and workers watch them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import msgspec
import structlog

from shared.domain.crawl.spec import decode_spec, encode_spec
from shared.domain.errors import Transient
from shared.domain.ids import CrawlId, Revision
from shared.ports.coordinator import Conflict, Coordinator, Entry, Leadership, View
from shared.ports.specs import PublishedSpec
from shared.wire.keys import CrawlRecord, Keys, decode_record, encode_record
from shared.wire.messages import Malformed

log = structlog.get_logger(__name__)

_TRIES: Final = 5
_RESYNC_S: Final = 5.0


class EtcdSpecs:
    """Reads the cluster's published specs from a view, a copy of etcd's keys in memory that follows their changes.

    It implements the port `SpecSource`. The record of a deleted crawl has `gone` set. It is removed long after the
    deletion. A record may also be missing because it has not reached the view yet.
    """

    def __init__(self, view: View, keys: Keys, *, wait_s: float = 2.0) -> None:
        self._view = view
        self._keys = keys
        self._wait_s = wait_s
        self._seen: dict[CrawlId, tuple[Entry, PublishedSpec]] = {}

    async def spec(self, crawl_id: CrawlId, revision: Revision) -> PublishedSpec:
        """Return the crawl's spec at `revision` or later, or the record of a deleted crawl (`gone`) at any revision.

        Wait for it up to `wait_s` seconds. Raise Transient if it does not arrive in time, or if the record cannot be
        read.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self._wait_s
        while True:
            snapshot = self._view.snapshot
            published = self._read(crawl_id, snapshot.entries.get(self._keys.crawl(crawl_id)))
            if published is not None and (published.revision >= revision or published.gone):
                return published
            left_s = until - loop.time()
            if left_s <= 0:
                seen = "not published" if published is None else f"published at revision {published.revision}"
                raise Transient(f"crawl {crawl_id} is {seen}, revision {revision} is wanted")
            await self._view.changed(snapshot, left_s)

    def latest(self, crawl_id: CrawlId) -> PublishedSpec | None:
        """Return the crawl's newest published spec in the view, without waiting.

        Return None if the view has no spec of the crawl, or if it cannot be read.
        """
        try:
            return self._read(crawl_id, self._view.snapshot.entries.get(self._keys.crawl(crawl_id)))
        except Transient as error:
            log.debug("spec_lookup.delayed", crawl=crawl_id, error=str(error))
            return None

    async def changes(self) -> AsyncIterator[None]:
        """Yield at once, and then each time the view has changed, or after a few seconds without a change.

        It never ends. After each yield `latest` may return another result for some crawl.
        """
        snapshot = self._view.snapshot
        while True:
            yield
            snapshot = await self._view.changed(snapshot, _RESYNC_S)

    def _read(self, crawl_id: CrawlId, entry: Entry | None) -> PublishedSpec | None:
        if entry is None:
            self._seen.pop(crawl_id, None)
            return None
        seen = self._seen.get(crawl_id)
        if seen is not None and seen[0] == entry:
            return seen[1]
        published = _published(crawl_id, entry)
        self._seen[crawl_id] = (entry, published)
        return published

    def __repr__(self) -> str:
        return f"<EtcdSpecs crawls={len(self._seen)}>"


class EtcdSpecPublisher:
    """Publishes specs in etcd while this master's leadership lasts (`shared.ports.specs.SpecPublisher`).

    When the leadership is over, it raises OwnershipLost.
    """

    def __init__(self, coordinator: Coordinator, leadership: Leadership, keys: Keys) -> None:
        self._coordinator = coordinator
        self._leadership = leadership
        self._keys = keys

    async def publish(self, spec: PublishedSpec) -> None:
        """Publish a crawl's spec.

        Do nothing if this spec or a later revision is published, or if the crawl is published as deleted (`gone`).
        After Transient the spec may or may not be written, so the caller must publish it again.
        """
        key = self._keys.crawl(spec.crawl_id)
        value = record_of(spec)
        for _ in range(_TRIES):
            entry = await self._coordinator.get(key)
            if entry is not None and (entry.value == value or _is_newer(entry, spec)):
                return
            try:
                await self._leadership.write({key: value}, expect={key: 0 if entry is None else entry.revision})
            except Conflict:
                continue
            return
        raise Transient(f"the spec of crawl {spec.crawl_id} was changed concurrently at each of {_TRIES} attempts")

    def __repr__(self) -> str:
        return f"<EtcdSpecPublisher {self._leadership!r}>"


def record_of(spec: PublishedSpec) -> bytes:
    """Return the value to store in etcd for a published spec."""
    document = encode_spec(spec.spec) if spec.document is None else spec.document
    return encode_record(
        CrawlRecord(spec.revision, spec.partitions, msgspec.Raw(document), gone=spec.gone, paused=spec.paused)
    )


def _published(crawl_id: CrawlId, entry: Entry) -> PublishedSpec:
    try:
        record = decode_record(CrawlRecord, entry.value)
        spec = decode_spec(bytes(record.spec))
    except (Malformed, msgspec.MsgspecError, RecursionError) as error:
        raise Transient(f"the record of crawl {crawl_id} cannot be read: {error}") from error
    return PublishedSpec(crawl_id, Revision(record.revision), spec, record.partitions, record.gone, record.paused)


def _is_newer(entry: Entry, spec: PublishedSpec) -> bool:
    try:
        record = decode_record(CrawlRecord, entry.value)
    except Malformed:
        return False  # an unreadable record may be replaced
    return record.revision > spec.revision or (record.gone and not spec.gone)
