"""A store under test, driven as an owner drives it, and an independent look at what stands in its tables."""

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from shared.adapters.sql.frontier.store import SqliteStore
from shared.domain.crawl.exclusions import NO_EXCLUSIONS, Exclusions
from shared.domain.crawl.scope_change import ChangedScope
from shared.domain.crawl.spec import Budget
from shared.domain.frontier.commands import CommandKind
from shared.domain.frontier.page_signs import PageSigns
from shared.domain.frontier.states import IS_REQUISITE, Fence, Position, UrlState
from shared.domain.frontier.store_model import (
    Changes,
    Claimed,
    CommandRun,
    DeadLetterRow,
    DiscoveredLink,
    DiscoveryResult,
    DiscoveryTransaction,
    LeaseRequest,
    LeaseRow,
    LinkWithContext,
    ProducerMark,
    QueueEnd,
    QueueRow,
    UrlChange,
)
from shared.domain.ids import CrawlId, Fingerprint, HostId, LeaseId, Partition, Revision, Term, numbered
from shared.domain.web.url import locate
from shared.ports.store import NO_BUDGETS, NO_MARKS, NO_SIGNS, Store

PARTITION = Partition(3)
OTHER = Partition(5)
NOW_MS = 1_700_000_000_000
SUFFIXES = "com\norg\n"
FIRST_CRAWL = CrawlId(1)
Look = Callable[..., list[tuple[Any, ...]]]
"""What a reader that is not the store finds: `look(sql, *args)`."""

_URL = ("state", "depth", "hops", "rank", "attempts", "flags", "lease_id", "reason", "via_host", "via", "url")


@dataclass
class Tables:
    """One partition of a store, with the fence and numbers its owner would remember."""

    store: Store
    at: Path | Look
    crawl_id: CrawlId
    fence: Fence
    position: Position = field(default_factory=Position)
    next_host: int = 1
    next_lease: int = 1
    sent: dict[str, tuple[int, int]] = field(default_factory=dict)
    exclusions: Exclusions = NO_EXCLUSIONS
    changed: ChangedScope | None = None

    async def found(
        self,
        *links: DiscoveredLink,
        excluded: Iterable[DiscoveredLink] = (),
        producer: str = "w",
        n: int | None = None,
        refused: int = 0,
        max_depth: int | None = None,
        now_ms: int = NOW_MS,
        crawl_id: CrawlId | None = None,
        marks: Mapping[CrawlId, int] = NO_MARKS,
        max_requisites: int | None = None,
    ) -> DiscoveryResult:
        """Apply one message of discoveries as its producer's next one."""
        batch = self.batch(*links, excluded=excluded, producer=producer, n=n, refused=refused, crawl_id=crawl_id)
        return await self.found_batch(
            batch, max_depth=max_depth, now_ms=now_ms, marks=marks, max_requisites=max_requisites
        )

    def batch(
        self,
        *links: DiscoveredLink,
        excluded: Iterable[DiscoveredLink] = (),
        producer: str = "w",
        n: int | None = None,
        refused: int = 0,
        crawl_id: CrawlId | None = None,
    ) -> DiscoveryTransaction:
        """The next message of discoveries of a producer."""
        crawl_id = crawl_id or self.crawl_id
        last, total = self.sent.get(producer, (0, 0))
        n = last + 1 if n is None else n
        total += (len(links) + refused) if n > last else 0
        self.sent[producer] = (max(n, last), total)
        covered = frozenset(each.fingerprint for each in excluded)
        with_contexts = any(isinstance(each, LinkWithContext) for each in links)
        message = (ProducerMark(crawl_id, producer, n, total), links, refused)
        return DiscoveryTransaction((message,), (), covered, with_contexts)

    async def found_batch(
        self,
        batch: DiscoveryTransaction,
        *,
        max_depth: int | None = None,
        now_ms: int = NOW_MS,
        at: int | None = None,
        marks: Mapping[CrawlId, int] = NO_MARKS,
        max_requisites: int | None = None,
        signs: Mapping[CrawlId, PageSigns | None] = NO_SIGNS,
    ) -> DiscoveryResult:
        position = self.position.moved("discovery", at or self.position.discovery_seq + 1, now_ms * 1_000_000)
        depths = {mark.crawl_id: max_depth for mark, _, _ in batch.messages}
        found = await self.store.apply_found(
            self.fence,
            position,
            batch,
            next_host=self.next_host,
            max_depth=depths,
            now_ms=now_ms,
            marks=marks,
            max_requisites={} if max_requisites is None else dict.fromkeys(depths, max_requisites),
            signs=signs,
        )
        self.next_host, self.position = found.next_host, position
        self.fence = self.fence.next()
        return found

    async def apply(self, changes: Changes) -> Sequence[QueueEnd]:
        position = self.position.moved("outcome", self.position.outcome_seq + 1, NOW_MS * 1_000_000)
        unfinished = await self.store.apply(self.fence, position, changes)
        self.position = position
        self.fence = self.fence.next()
        return unfinished

    async def bury(self, letter: DeadLetterRow) -> None:
        await self.apply(Changes(dead_letters=[letter]))

    async def lease(
        self,
        host: str,
        max_count: int = 500,
        *,
        now_ms: int = NOW_MS,
        budgets: Mapping[CrawlId, Budget] = NO_BUDGETS,
        requisites: bool = False,
    ) -> LeaseRow | None:
        """Lease up to so many URLs of a host; with `requisites`, so many pages, and requisites apart from them."""
        rows = await self.lease_all([(host, max_count)], now_ms=now_ms, budgets=budgets, requisites=requisites)
        return rows[0] if rows else None

    async def lease_all(
        self,
        wanted: Sequence[tuple[str, int]],
        *,
        now_ms: int = NOW_MS,
        budgets: Mapping[CrawlId, Budget] = NO_BUDGETS,
        requisites: bool = False,
    ) -> Sequence[LeaseRow]:
        """Lease up to so many URLs of each of the hosts, in one transaction."""
        requests = []
        for host, max_count in wanted:
            lease_id = LeaseId(numbered(self.next_lease, self.fence.partition))
            self.next_lease += 1
            requests.append(
                LeaseRequest(
                    *(lease_id, self.crawl_id, Revision(1), self.host_id(host), host, 0, "default", 1000, max_count),
                    max_together=500,
                    requisites=requisites,
                )
            )
        rows = await self.store.dispatch(self.fence, self.next_lease, requests, now_ms, budgets)
        self.fence = self.fence.next()
        return rows

    async def settle(
        self, row: LeaseRow, state: UrlState, *, due_ms: int = 0, reason: str | None = None, pages: int = 0
    ) -> None:
        """Every URL of a lease ends in `state`, and the lease with it; `pages` of them are new pages."""
        changes = Changes(freed=[row.lease_id])
        queue, counters = changes.queue(row.crawl_id, row.host_id), changes.counters[row.crawl_id]
        queue.pages += pages
        counters["pages"] += pages
        for fingerprint, url in row.urls.items():
            rank = due_ms if state is UrlState.WAITING else url.rank
            changes.urls.append(
                UrlChange(row.crawl_id, row.host_id, fingerprint, state, rank, url.attempt, url.flags, reason)
            )
            queue.leased -= 1
            counters["leased"] -= 1
            match state:
                case UrlState.QUEUED:
                    queue.queued += 1
                    counters["queued"] += 1
                case UrlState.WAITING:
                    queue.waiting += 1
                    queue.next_due_ms = due_ms
                    counters["queued"] += 1
                case _:
                    counters[state.name.lower()] += 1
        await self.apply(changes)

    async def promote(self, host: str, now_ms: int) -> int:
        n = await self.store.promote(self.fence, self.crawl_id, self.host_id(host), now_ms)
        self.fence = self.fence.next()
        return n

    async def command(self, kind: str, *, id: str = "c1", now_ms: int = NOW_MS, **args: object) -> int:
        """Accept a command and run it to its end; the number of its chunks."""
        run = await self.accept(CommandRun(id, self.crawl_id, kind, args, self.fence.partition), now_ms=now_ms)
        return await self.run(run, now_ms=now_ms)

    async def run(self, run: CommandRun | None, *, now_ms: int = NOW_MS) -> int:
        """Run a command that was accepted to its end; the number of its chunks."""
        chunks = 0
        while run is not None:
            run = await self.chunk(run, now_ms=now_ms)
            chunks += 1
            assert chunks < 1000, "it goes on for ever"
        return chunks

    async def accept(self, run: CommandRun, *, now_ms: int = NOW_MS) -> CommandRun | None:
        """Accept a command, as the next message of the outcome subject; what is in progress then."""
        position = self.position.moved("outcome", self.position.outcome_seq + 1, NOW_MS * 1_000_000)
        accepted = await self.store.accept_command(self.fence, position, run, now_ms)
        self.fence, self.position = self.fence.next(), position
        return accepted

    async def accepted(self, run: CommandRun) -> CommandRun:
        """Accept a command that must then be in progress."""
        accepted = await self.accept(run)
        assert accepted is not None
        return accepted

    async def chunk(self, run: CommandRun, *, now_ms: int = NOW_MS) -> CommandRun | None:
        """Apply one chunk; the command as it goes on, None when it is applied."""
        rest = await self.store.run_command(self.fence, run, now_ms, exclusions=self.exclusions, changed=self.changed)
        self.fence = self.fence.next()
        assert rest is None or rest > run.after or run.kind == CommandKind.DELETE
        return None if rest is None else replace(run, after=rest)

    async def claim(self, term: int) -> Claimed:
        claimed = await self.store.claim(self.fence.partition, Term(term))
        self.fence, self.position = claimed.fence, claimed.position
        self.next_host, self.next_lease = claimed.next_host, claimed.next_lease
        return claimed

    async def queue(self, host: str) -> QueueRow:
        (row,) = await self.store.queue_rows([(self.crawl_id, self.host_id(host))])
        return row

    @property
    def path(self) -> Path:
        """The file, where the store is on SQLite."""
        assert isinstance(self.at, Path)
        return self.at

    # An independent look ----------------------------------------------------------------------------------------------

    def rows(self, sql: str, *args: object) -> list[tuple[Any, ...]]:
        """What a reader that is not the store sees."""
        return look(self.at, sql, *args)

    def value(self, sql: str, *args: object) -> Any:
        ((value,),) = self.rows(sql, *args)
        return value

    def host_id(self, host: str) -> HostId:
        return HostId(self.value("SELECT host_id FROM hosts WHERE host = ?", host))

    def url(self, link: DiscoveredLink) -> dict[str, Any]:
        """A URL's row by column."""
        (row,) = self.rows(f"SELECT {', '.join(_URL)} FROM urls WHERE fingerprint = ?", link.fingerprint)
        return dict(zip(_URL, row, strict=True))


def link(
    url: str,
    depth: int = 0,
    *,
    priority: int = 0,
    crawl_id: CrawlId = FIRST_CRAWL,
    hops: int = 0,
    via: tuple[int, bytes] = (0, b""),
    extra: int = 0,
) -> DiscoveredLink:
    """A link as the owner finds it in a message."""
    at = locate(url)
    assert at is not None
    key = Fingerprint(at.fingerprint)
    return DiscoveredLink(crawl_id, at.url, at.host, key, depth, hops, priority, *via, extra=extra)


def links(host: str, paths: Iterable[object], depth: int = 0) -> list[DiscoveredLink]:
    return [link(f"http://{host}/{path}", depth) for path in paths]


def look(at: Path | Look, sql: str, *args: object) -> list[tuple[Any, ...]]:
    if not isinstance(at, Path):
        return at(sql, *args)
    with closing(sqlite3.connect(at, timeout=30)) as connection:
        return connection.execute(sql, args).fetchall()


def books(at: Path | Look) -> list[str]:
    """What does not add up in a frontier's tables; empty when everything does.

    Counters are compared with the rows they count, queues with their URLs, leases with what they hold.
    """
    wrong: list[str] = []

    def same(what: str, counted: str, kept: str) -> None:
        left, right = dict(look_pairs(at, counted)), dict(look_pairs(at, kept))
        wrong.extend(
            f"{what} {key}: {left.get(key, 0)} rows, {right.get(key, 0)} kept"
            for key in sorted(left.keys() | right.keys(), key=str)
            if left.get(key, 0) != right.get(key, 0)
        )

    for name, states in (("queued", "0, 1"), ("leased", "2"), ("done", "3"), ("failed", "4"), ("excluded", "5")):
        same(
            f"counter {name}",
            "SELECT u.crawl_id || '/' || h.partition, count(*) FROM urls u JOIN hosts h USING (host_id)"
            f" WHERE state IN ({states}) GROUP BY 1",
            f"SELECT crawl_id || '/' || partition, {name} FROM crawl_counters",
        )
    same(
        "counter requisites",
        "SELECT u.crawl_id || '/' || h.partition, count(*) FROM urls u JOIN hosts h USING (host_id)"
        f" WHERE state IN (0, 1) AND flags & {IS_REQUISITE} <> 0 GROUP BY 1",
        "SELECT crawl_id || '/' || partition, requisites FROM crawl_counters",
    )
    same(
        "counter discovered",
        "SELECT u.crawl_id || '/' || h.partition, count(*) FROM urls u JOIN hosts h USING (host_id) GROUP BY 1",
        "SELECT crawl_id || '/' || partition, discovered FROM crawl_counters",
    )
    same(
        "links",
        "SELECT crawl_id || '/' || partition, new + known + refused FROM crawl_counters",
        "SELECT crawl_id || '/' || partition, accepted FROM crawl_counters",
    )
    for name, state in (("queued", 0), ("waiting", 1), ("leased", 2)):
        same(
            f"queue {name}",
            f"SELECT crawl_id || '/' || host_id, count(*) FROM urls WHERE state = {state} GROUP BY 1",
            f"SELECT crawl_id || '/' || host_id, {name} FROM queues",
        )
    same(
        "lease",
        "SELECT lease_id, count(*) FROM urls WHERE state = 2 GROUP BY 1",
        "SELECT l.lease_id, (SELECT count(*) FROM urls u WHERE u.lease_id = l.lease_id AND u.state = 2) FROM leases l",
    )
    for (lease_id,) in look(at, "SELECT DISTINCT lease_id FROM urls WHERE state <> 2 AND lease_id IS NOT NULL"):
        wrong.append(f"lease {lease_id} is named by a URL that is not out")
    for crawl_id, host_id in look(
        at,
        "SELECT crawl_id, host_id FROM queues q WHERE waiting > 0 AND (next_due_ms = 0 OR next_due_ms >"
        " (SELECT min(rank) FROM urls u WHERE u.crawl_id = q.crawl_id AND u.host_id = q.host_id AND u.state = 1))",
    ):
        wrong.append(f"queue {crawl_id}/{host_id} would wake after its first URL is due")
    return wrong


def look_pairs(at: Path | Look, sql: str) -> list[tuple[Any, Any]]:
    return [(key, value) for key, value in look(at, sql) if value]


@asynccontextmanager
async def sqlite_tables(folder: Path, *, partition: Partition = PARTITION) -> AsyncIterator[Tables]:
    """A new SQLite store with one crawl, one partition claimed under term 1."""
    path = folder / "crawl.db"
    store = await SqliteStore.open(path)
    try:
        await store.open_cluster(8, SUFFIXES, NOW_MS)
        crawl, _ = await store.put_crawl("docs", "{}", NOW_MS)
        claimed = await store.claim(partition, Term(1))
        yield Tables(store, path, crawl.crawl_id, claimed.fence)
    finally:
        await store.close()
