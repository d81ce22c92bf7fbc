"""Uploads of seeds: any number of URLs in constant memory, stored durably before they are reported as accepted.

URLs are collected in windows. When a window is full or the upload ends, the URLs of the window are sent to their
partitions as numbered messages. The window is accepted once the broker has acknowledged all of them.

The messages of a window have one producer id: a hash of the upload's name, its crawl and all its URLs so far. If an
upload is repeated with the same name and URLs, its producer ids are the same, so owners drop the messages that they
have applied. If URLs differ, owners apply the messages of the first window that differs and of all later windows.
"""

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from blake3 import blake3

from api.crawls.seed_messages import SeedLink, seed_messages
from shared.domain.crawl.spec import CrawlSpec
from shared.domain.errors import Refused, Transient
from shared.domain.frontier.seed_contexts import SeedContext, encoded
from shared.domain.ids import CrawlId, Partition, Revision
from shared.domain.web.url import canonicalize, host_of, partition_of, scheme_of
from shared.ports.broker import Broker
from shared.wire.messages import Link, encode

WINDOW: Final = 20_000
_TURN: Final = 250
BUSY: Final = 0.5
"""Uploads are refused if a partition has used at least this part (0..1) of its limit of waiting discoveries.

The rest is left to the links that workers report.
"""

PATIENCE_S: Final = 10.0
"""How long publishing a message to an unavailable broker is retried before the upload is aborted."""

HELD_S: Final = 30.0
"""Delay after which a client that was refused under resource pressure may retry."""

_REASONS: Final = 10
_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class RejectedLine:
    """A line of an upload that was not accepted. `line` is its number, from 1."""

    line: int
    url: str
    reason: str


@dataclass(slots=True)
class UploadCounts:
    """How many lines of an upload were accepted, duplicate or rejected so far.

    - `durable_lines`: the number of lines, from the start of the upload, that need not be sent again.
    - `first_rejected`: the first rejected lines, ten at most.
    """

    lines: int = 0
    accepted: int = 0
    duplicate: int = 0
    rejected: int = 0
    durable_lines: int = 0
    first_rejected: list[RejectedLine] = field(default_factory=list)


class SeedUpload:
    """One upload of seeds to one crawl: call `take`, `reject` or `skip` for each line, then `finish`.

    `counts` counts all lines so far, and `durable` only the lines that need not be sent again.
    `take` and `finish` raise Refused if the owners have too many discoveries waiting, and Transient if no seeds can be
    accepted now.
    """

    def __init__(
        self,
        broker: Broker,
        crawl_id: CrawlId,
        revision: Revision,
        spec: CrawlSpec,
        partitions: int,
        name: str | None,
        *,
        window: int = WINDOW,
        refused_at: float = BUSY,
        held: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Prepare the upload.

        - `name`: the name of the upload, under which it may be repeated. With None it gets a random name.
        - `window`: the number of different URLs that are published together.
        - `refused_at`: a window is refused if a partition has used at least this part (0..1) of its limit of waiting
          discoveries.
        - `held` is called before each window. It returns the reason if no seeds may be accepted now, otherwise None.
        """
        self.counts = UploadCounts()
        self.durable = UploadCounts()
        self._broker = broker
        self._crawl_id, self._revision = crawl_id, revision
        self._scope = spec.scope
        self._partitions = partitions
        self._sum = blake3((name or uuid.uuid4().hex).encode())
        self._sum.update(crawl_id.to_bytes(8, "big"))
        self._window = window
        self._refused_at = refused_at
        self._held = held
        self._seen: set[str] = set()
        self._parts: dict[Partition, list[SeedLink]] = defaultdict(list)

    def __repr__(self) -> str:
        return f"<SeedUpload crawl={self._crawl_id} lines={self.counts.lines} accepted={self.counts.accepted}>"

    async def take(self, url: str, priority: int = 0, context: SeedContext | None = None) -> None:
        """Add one URL to the window. If that fills the window, publish the window.

        Count the URL as rejected if it is invalid, or if the crawl's scope does not allow its scheme or length.
        """
        await self.skip()
        counts = self.counts
        canonical = canonicalize(url)
        if canonical is None:
            self._rejected(url, "it is not an http or https URL that can be fetched")
        elif scheme_of(canonical) not in self._scope.schemes:
            self._rejected(url, "its scheme is not among scope.schemes")
        elif len(canonical) > self._scope.max_url_length:
            self._rejected(url, f"it is longer than scope.max_url_length, {self._scope.max_url_length}")
        elif canonical in self._seen:
            counts.duplicate += 1
        else:
            self._seen.add(canonical)
            self._sum.update(f"{priority} {canonical}\n".encode())
            if context is not None:
                self._sum.update(f"{encoded(context)}\n".encode())
            partition = partition_of(host_of(canonical), self._partitions)
            self._parts[partition].append((Link(canonical, 0, 0, priority), context))
            if len(self._seen) >= self._window:
                await self._publish()

    async def reject(self, shown: str, reason: str) -> None:
        """Count a line that contains no URL as rejected. `shown`: its text in the list of rejected lines."""
        await self.skip()
        self._rejected(shown, reason)

    async def skip(self) -> None:
        """Count a line only as read."""
        self.counts.lines += 1
        if self.counts.lines % _TURN == 0:  # Received lines are read without a pause, so yield to other tasks.
            await asyncio.sleep(0)

    async def finish(self) -> UploadCounts:
        """Publish the URLs that are not published yet. Return the final counts."""
        await self._publish()
        return self.counts

    def _rejected(self, url: str, reason: str) -> None:
        self.counts.rejected += 1
        if len(self.counts.first_rejected) < _REASONS:
            self.counts.first_rejected.append(RejectedLine(self.counts.lines, url[:_SHOWN], reason))

    async def _publish(self) -> None:
        if self._seen:
            if (held := self._held()) is not None:
                raise Transient(f"seeds are refused while a resource is nearly full: {held}", retry_in=HELD_S)
            if await self._broker.fullness("discovery") >= self._refused_at:
                raise Refused("the owners of partitions have too many discoveries waiting", retry_in=5.0)
            producer = f"seeds-{self._sum.hexdigest(length=16)}"
            try:
                async with asyncio.TaskGroup() as tasks:
                    for partition, links in self._parts.items():
                        tasks.create_task(self._send(producer, partition, links), name=f"seeds.{partition}")
            except ExceptionGroup as group:
                raise group.exceptions[0] from group
            self.counts.accepted += len(self._seen)
            self._seen.clear()
            self._parts.clear()
        self.counts.durable_lines = self.counts.lines
        self.durable = replace(self.counts, first_rejected=list(self.counts.first_rejected))

    async def _send(self, producer: str, partition: Partition, links: list[SeedLink]) -> None:
        """Publish the seeds of one partition as messages of `producer`.

        Publish each after the previous one was acknowledged.
        """
        for message in seed_messages(self._crawl_id, self._revision, producer, links):
            await self._stored(partition, encode(message), f"{producer}.{partition}.{message.n}")

    async def _stored(self, partition: Partition, data: bytes, message_id: str) -> None:
        until = asyncio.get_running_loop().time() + PATIENCE_S
        while True:
            try:
                await self._broker.publish_report(partition, "discovery", data, message_id)
                return
            except Refused:
                raise
            except Transient as error:
                if asyncio.get_running_loop().time() + error.retry_in > until:
                    raise
                await asyncio.sleep(error.retry_in)
