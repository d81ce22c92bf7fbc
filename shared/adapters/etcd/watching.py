"""A view: the state of all keys under a prefix, which follows etcd's changes.

It lists the keys at a revision and watches from the next one. After an interruption it watches from the revision after
the last applied event. If that revision was compacted, it lists again.

At intervals, and after every interruption, the view is compared with a fresh list. This also detects that etcd was
wiped or restored.
"""

# Only events and lists change the revision from which a watch resumes. A progress notification only proves that the
# stream works: in older releases of etcd it could arrive before earlier events (etcd's issue 15220).

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import grpc
import structlog

from shared.adapters.etcd import requests
from shared.adapters.etcd.connection import EtcdConnection
from shared.adapters.etcd.errors import Compacted, failure_of, stale_login
from shared.domain.errors import Transient, Unusable
from shared.ports.clock import Clock
from shared.ports.coordinator import Entry, Snapshot
from shared.runtime.latest import Latest
from shared.runtime.supervise import Tasks

log = structlog.get_logger(__name__)

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
_REFUSALS: Final = 3
"""A watch counts as not permitted if etcd refuses it this many times in a row, each time after a new login."""


async def list_prefix(connection: EtcdConnection, prefix: str) -> Snapshot:
    """Return a snapshot of all keys under `prefix`, read in pages as of one revision."""
    settings = connection.settings
    while True:
        entries: dict[str, Entry] = {}
        revision, history, start = 0, 0, None
        try:
            while True:
                request = requests.read_page(prefix, start=start, revision=revision, limit=settings.page)
                answer = await connection.call("KV.Range", request, repeat=True)
                if start is None:
                    # The headers of later pages have the newest revision, not the one that is read.
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
    """The state of all keys under a prefix, kept up to date by an etcd watch (`shared.ports.coordinator.View`).

    Use `follow` to open one.
    """

    def __init__(self, connection: EtcdConnection, clock: Clock, prefix: str, first: Snapshot) -> None:
        self._connection = connection
        self._clock = clock
        self._prefix = prefix
        self._latest = Latest(first)
        self._answered_at = clock.elapsed()
        self._refusals = 0
        self._doubtful = asyncio.Event()

    @property
    def snapshot(self) -> Snapshot:
        return self._latest.snapshot

    @property
    def answered_at(self) -> float:
        return self._answered_at

    async def changed(self, after: Snapshot, wait_s: float | None) -> Snapshot:
        return await self._latest.changed(after, wait_s)

    # --- following ----------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Keep the snapshot up to date with an etcd watch.

        Run until cancelled, and open the watch again after failures. Raise Unusable if etcd refuses the watch for good.
        """
        pause = _FIRST_PAUSE_S
        while True:
            known = self.snapshot
            try:
                await self._stream_while_asked()
            except Compacted:
                await self.compare()
                continue
            except Transient as error:
                log.info("etcd_watch.interrupted", prefix=self._prefix, error=str(error))
                self._doubtful.set()
                if self.snapshot is not known:
                    pause = _FIRST_PAUSE_S
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def resync(self) -> None:
        """Compare the snapshot with a fresh list every `resync_s` seconds, and after each interruption of the watch.

        Run until cancelled.
        """
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._connection.settings.resync_s):
                    await self._doubtful.wait()
            self._doubtful.clear()
            await self.compare()

    async def compare(self) -> None:
        """Read a fresh list of all keys under the prefix. Replace the snapshot by this list if the list is newer.

        Retry until etcd answers.
        """
        while True:
            try:
                listed = await list_prefix(self._connection, self._prefix)
            except Transient as error:
                await asyncio.sleep(error.retry_in)
                continue
            self._answered_at = self._clock.elapsed()
            self._replace(listed)
            return

    def _replace(self, listed: Snapshot) -> None:
        """Replace the snapshot by a fresh list of the keys, unless the snapshot is already as new.

        If the list shows that etcd was wiped or restored, increase the connection's `history`, which counts this.
        """
        known = self.snapshot
        if listed.history == known.history:
            aged = [key for key, entry in listed.entries.items() if _older(entry, known.entries.get(key))]
            if aged and listed.revision >= known.revision:
                # A new history has overtaken the old one: some key's revision is below the one known before.
                self._connection.rewound(known.revision, listed.revision)
                listed = Snapshot(listed.entries, listed.revision, listed.revision, self._connection.history)
        if (listed.history, listed.revision) <= (known.history, known.revision):
            return
        if listed.history == known.history and listed.entries == known.entries:
            listed = Snapshot(known.entries, listed.revision, known.changed, known.history)
        self._latest.publish(listed)

    async def _stream_while_asked(self) -> None:
        """Run one watch stream on the etcd server that the connection uses now. End only by an exception.

        - If the connection switches to another etcd server: stop the stream, and raise Transient.
        - If the stream fails before that: raise the error of the stream.
        """
        # An etcd server (member) that failed another call may send no more events, although its stream is open.
        async with Tasks() as tasks:
            tasks.start(f"etcd.stream {self._prefix}", self._stream())
            await self._connection.moved()
        raise Transient("the connection moved to another member")

    async def _stream(self) -> None:
        """Run one watch stream from the revision after the snapshot's, and apply its events.

        Never return. When the stream fails, raise Transient, Compacted, Unusable or Permanent.
        """
        start = self.snapshot
        member, stream = await self._connection.watch()
        try:
            await stream.write(requests.watch_from(self._prefix, requests.prefix_end(self._prefix), start.revision + 1))
            while True:
                answer = await stream.read()
                if answer is grpc.aio.EOF:
                    raise Transient("the watch ended")
                self._receive(answer)
                if answer.created and answer.header.revision < start.revision:
                    # The member lags, or etcd was replaced: this watch would then wait without any event.
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

    def _receive(self, answer: Any) -> None:
        if answer.canceled:
            if answer.compact_revision:
                raise Compacted(f"revision {self.snapshot.revision} is compacted up to {answer.compact_revision}")
            raise self._refused(answer.cancel_reason or "no reason given")
        self._answered_at = self._clock.elapsed()
        self._refusals = 0
        if answer.events and self.snapshot.history == self._connection.history:
            self._apply(answer)

    def _refused(self, reason: str) -> Exception:
        """Return the exception to raise after etcd refused a watch, and discard the login token.

        The exception is Unusable after _REFUSALS refusals in a row, else Transient.
        """
        # A single refusal does not show whether the user or only the token is invalid.
        self._refusals += 1
        if self._refusals >= _REFUSALS:
            return Unusable(f"etcd refuses a watch on {self._prefix}: {reason}")
        self._connection.forget_login()
        return Transient(f"etcd cancelled the watch: {reason}")

    def _apply(self, answer: Any) -> None:
        known = self.snapshot
        # A list may be newer than the watch and contain some of its events.
        fresh = [event for event in answer.events if event.kv.mod_revision > known.revision]
        if not fresh:
            return
        revision = max(event.kv.mod_revision for event in fresh)
        self._connection.seen(revision)
        self._latest.publish(Snapshot(_after(known.entries, fresh), revision, revision, known.history))


@contextlib.asynccontextmanager
async def follow(connection: EtcdConnection, clock: Clock, prefix: str) -> AsyncIterator[EtcdView]:
    """Open a view of all keys under `prefix` for the `with` block, and keep it up to date.

    Raise Transient if etcd does not answer the first list.
    """
    view = EtcdView(connection, clock, prefix, await list_prefix(connection, prefix))
    async with Tasks() as tasks:
        tasks.start(f"etcd.watch {prefix}", view.watch())
        tasks.start(f"etcd.resync {prefix}", view.resync())
        yield view


def _after(entries: Mapping[str, Entry], events: list[Any]) -> Mapping[str, Entry]:
    """Return a copy of `entries` with the changes of `events` applied in order."""
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
