"""A view of a prefix that follows etcd and comes to no other state than a fresh list would.

It lists at a revision, watches from the next one, and after any interruption watches from the revision behind the last
event it has applied; what was compacted meanwhile is listed again. Events already known (a list may overtake the
watch) are skipped. Every so often, and after every interruption, the view is compared with a fresh list, which also
tells an etcd that was wiped or restored from one that was merely away: to such a one a watch from a future revision
would listen in silence.

Progress notifications say that the stream lives, nothing more: in older releases one could overtake the events
before it (etcd's issue 15220), so the place to resume from moves by events and lists alone.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import grpc
import structlog

from shared.adapters.etcd import requests
from shared.adapters.etcd.connection import Connection
from shared.adapters.etcd.errors import Compacted, failure_of, stale_login
from shared.domain.errors import Transient, Unusable
from shared.ports.clock import Clock
from shared.ports.coordinator import Entry, Snapshot
from shared.ports.latest import Latest
from shared.supervise import Tasks

log = structlog.get_logger(__name__)

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
_REFUSALS: Final = 3
"""Refused so often in a row, with a new login each time, a watch is not ours to have."""


async def list_prefix(connection: Connection, prefix: str) -> Snapshot:
    """Every key under `prefix` as of one revision, read in pages."""
    settings = connection.settings
    while True:
        entries: dict[str, Entry] = {}
        revision, history, start = 0, 0, None
        try:
            while True:
                request = requests.read_page(prefix, start=start, revision=revision, limit=settings.page)
                answer = await connection.call("KV.Range", request, repeat=True)
                if start is None:
                    # The headers of later pages name the newest revision, not the one that is read.
                    revision, history = answer.header.revision, connection.history
                entries |= {entry.key: entry for entry in map(requests.entry_of, answer.kvs)}
                if not answer.more:
                    break
                start = answer.kvs[-1].key + b"\0"
        except Compacted:
            continue
        if connection.history == history:
            return Snapshot(entries, revision, revision, history)


class EtcdView:
    """`shared.ports.coordinator.View` over a watch; `follow` opens one."""

    def __init__(self, connection: Connection, clock: Clock, prefix: str, first: Snapshot) -> None:
        self._connection = connection
        self._clock = clock
        self._prefix = prefix
        self._latest = Latest(first)
        self._heard_at = clock.elapsed()
        self._refusals = 0
        self._doubtful = asyncio.Event()

    @property
    def snapshot(self) -> Snapshot:
        return self._latest.snapshot

    @property
    def heard_at(self) -> float:
        return self._heard_at

    async def changed(self, after: Snapshot, wait_s: float | None) -> Snapshot:
        return await self._latest.changed(after, wait_s)

    # --- following ----------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Keep the snapshot up to date, for ever; Unusable when etcd will not let us."""
        pause = _FIRST_PAUSE_S
        while True:
            known = self.snapshot
            try:
                await self._stream_while_asked()
            except Compacted:
                await self.compare()
                continue
            except Transient as error:
                log.info("etcd.watch_interrupted", prefix=self._prefix, reason=str(error))
                self._doubtful.set()
                if self.snapshot is not known:
                    pause = _FIRST_PAUSE_S
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def resync(self) -> None:
        """Compare with a fresh list every so often, and after every interruption, for ever."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._connection.settings.resync_s):
                    await self._doubtful.wait()
            self._doubtful.clear()
            await self.compare()

    async def compare(self) -> None:
        """Make the snapshot what a fresh list says, for as long as it takes to get one."""
        while True:
            try:
                listed = await list_prefix(self._connection, self._prefix)
            except Transient as error:
                await asyncio.sleep(error.retry_in)
                continue
            self._heard_at = self._clock.elapsed()
            self._replace(listed)
            return

    def _replace(self, listed: Snapshot) -> None:
        """Take a list for the newest truth, unless the watch is further already."""
        known = self.snapshot
        if listed.history == known.history:
            aged = [key for key, entry in listed.entries.items() if _older(entry, known.entries.get(key))]
            if aged and listed.revision >= known.revision:
                # A new history that has overtaken the old one: told by keys that were written before they were known.
                self._connection.rewound(known.revision, listed.revision)
                listed = Snapshot(listed.entries, listed.revision, listed.revision, self._connection.history)
        if (listed.history, listed.revision) <= (known.history, known.revision):
            return
        if listed.history == known.history and listed.entries == known.entries:
            listed = Snapshot(known.entries, listed.revision, known.changed, known.history)
        self._latest.publish(listed)

    async def _stream_while_asked(self) -> None:
        """One watch stream, until it fails, or until its member failed somebody else: it may merely be silent."""
        async with Tasks() as tasks:
            tasks.start(f"etcd.stream {self._prefix}", self._stream())
            await self._connection.moved()
        raise Transient("another member is asked now")

    async def _stream(self) -> None:
        """One watch stream, from the revision after the newest snapshot's, until it fails."""
        start = self.snapshot
        member, stream = await self._connection.watch()
        try:
            await stream.write(requests.watch_from(self._prefix, requests.prefix_end(self._prefix), start.revision + 1))
            while True:
                answer = await stream.read()
                if answer is grpc.aio.EOF:
                    raise Transient("the watch ended")
                self._heard(answer)
                if answer.created and answer.header.revision < start.revision:
                    # A member that lags, or an etcd that was replaced: there this watch would wait in silence.
                    await self.compare()
                if self.snapshot.history != start.history:
                    raise Transient("etcd was replaced")
        except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            failure = _failure(error)
            if isinstance(failure, Transient):
                self._connection.failed(member, str(failure))
            elif isinstance(error, grpc.aio.AioRpcError) and stale_login(error):
                failure = self._refused(str(failure))
            raise failure from error
        finally:
            stream.cancel()

    def _heard(self, answer: Any) -> None:
        if answer.canceled:
            if answer.compact_revision:
                raise Compacted(f"revision {self.snapshot.revision} is compacted up to {answer.compact_revision}")
            raise self._refused(answer.cancel_reason or "no reason told")
        self._heard_at = self._clock.elapsed()
        self._refusals = 0
        if answer.events and self.snapshot.history == self._connection.history:
            self._apply(answer)

    def _refused(self, reason: str) -> Exception:
        """A watch is refused for want of a login without saying whether user or token is wrong."""
        self._refusals += 1
        if self._refusals >= _REFUSALS:
            return Unusable(f"etcd refuses a watch on {self._prefix}: {reason}")
        self._connection.forget_login()
        return Transient(f"etcd cancelled the watch: {reason}")

    def _apply(self, answer: Any) -> None:
        known = self.snapshot
        fresh = [event for event in answer.events if event.kv.mod_revision > known.revision]
        if not fresh:
            return
        revision = max(event.kv.mod_revision for event in fresh)
        self._connection.seen(revision)
        self._latest.publish(Snapshot(_after(known.entries, fresh), revision, revision, known.history))


@contextlib.asynccontextmanager
async def follow(connection: Connection, clock: Clock, prefix: str) -> AsyncIterator[EtcdView]:
    """A view that follows `prefix` until the context ends."""
    view = EtcdView(connection, clock, prefix, await list_prefix(connection, prefix))
    async with Tasks() as tasks:
        tasks.start(f"etcd.watch {prefix}", view.watch())
        tasks.start(f"etcd.resync {prefix}", view.resync())
        yield view


def _after(entries: Mapping[str, Entry], events: list[Any]) -> Mapping[str, Entry]:
    """The entries when these events have happened, in their order."""
    result = dict(entries)
    for event in events:
        if event.type == event.DELETE:
            result.pop(event.kv.key.decode(), None)
        else:
            entry = requests.entry_of(event.kv)
            result[entry.key] = entry
    return result


def _older(entry: Entry, known: Entry | None) -> bool:
    return known is not None and entry.revision < known.revision


def _failure(error: Exception) -> Exception:
    if isinstance(error, grpc.aio.AioRpcError):
        return failure_of(error, "watch")
    return Transient(f"the watch broke: {error}")
