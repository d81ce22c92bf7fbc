"""The history of a run, gathered when it is over from web servers, clients, the database and the archives."""

import asyncio
import io
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from warcio.archiveiterator import ArchiveIterator
from warcio.exceptions import ArchiveLoadFailed

from shared.domain.frontier.states import UrlState
from shared.ports.broker import ReportKind
from tests.support.database.url_rows import URLS
from tests.support.faults.faulted_cluster import WORKERS, FaultedCluster
from tests.support.faults.history import (
    CrawlSeen,
    DeletedSeen,
    FenceSeen,
    History,
    LeaseSeen,
    LeaseTurn,
    PageSeen,
    Round,
    SharedPeriod,
    TurnSeen,
    WriteSeen,
)
from tests.support.faults.traffic import DELAY_S, DeclaredCrawl, Traffic, agent
from tests.support.processes.cluster import Cluster
from tests.support.web.web_server import Web

_KINDS: Final[tuple[ReportKind, ...]] = ("outcome", "discovery")
_READ_AGAIN: Final = "SELECT coalesce(sum(n), 0) FROM crawl_tallies WHERE kind = 'rediscovered' AND key = 'pages'"
_COUNTERS = ("discovered", "queued", "leased", "done", "failed", "excluded", "pages", "accepted", "new", "known",
             "refused")  # fmt: skip


def gathered(
    seed: int,
    rounds: Sequence[Round],
    rig: FaultedCluster,
    traffic: Traffic,
    web: Web,
    begun: float,
    shared: tuple[SharedPeriod, ...] = (),
) -> History:
    """All that is known. `begun`: time.monotonic at the start. `shared`: what crawls shared before the rounds."""
    cluster = rig.cluster
    left = asyncio.run(left_in_streams(cluster))
    crawls = tuple(crawl_seen(cluster, declared, web) for declared in traffic.crawls)
    return History(
        seed=seed,
        delay_s=DELAY_S,
        rounds=tuple(rounds),
        crawls=crawls,
        deleted=tuple(_deleted(cluster, doomed) for doomed in traffic.doomed),
        exchanges=tuple(web.log()),
        fences=tuple(
            FenceSeen(*row)
            for row in cluster.query("SELECT xid, partition, term, member FROM faults_fences ORDER BY n")
        ),
        writes=tuple(WriteSeen(*row) for row in cluster.query("SELECT xid, relation, member FROM faults_writes")),
        leases=tuple(
            LeaseSeen(*row) for row in cluster.query("SELECT partition, term, owner_term FROM faults_leases ORDER BY n")
        ),
        records=_records(cluster.folder, crawls),
        left=left,
        statuses=dict(traffic.statuses()),
        went_on_ns=tuple(rig.went_on_ns),
        unreadable=tuple(rig.post.unreadable),
        buried=_letters(cluster, "kind <> 'shard'"),
        noise=tuple(rig.post.noise),
        buried_shards=_letters(cluster, "kind = 'shard'"),
        repeated=rig.post.repeated,
        seconds=time.monotonic() - begun,
        shared=shared,
        rescoped=traffic.rescoped,
        rediscovered=int(cluster.query(_READ_AGAIN)[0][0]),
    )


def _letters(cluster: Cluster, which: str) -> tuple[bytes, ...]:
    """The messages of dead letters."""
    kept = cluster.query(f"SELECT payload FROM dead_letters WHERE payload IS NOT NULL AND {which}")
    return tuple(bytes(payload) for (payload,) in kept)


async def left_in_streams(cluster: Cluster) -> tuple[str, ...]:
    """Reports that no owner has applied, and shards that no worker has settled."""
    applied = {
        partition: {"outcome": outcome, "discovery": discovery}
        for partition, outcome, discovery in cluster.query(
            "SELECT partition, outcome_seq, discovery_seq FROM partitions ORDER BY partition"
        )
    }
    left = []
    async with cluster.broker.broker(declare=False) as broker:
        for partition, positions in applied.items():
            for kind in _KINDS:
                last = await broker.last_report(partition, kind)
                if last > positions[kind]:
                    left.append(f"{kind} reports of partition {partition} are applied to {positions[kind]} of {last}")
            if shards := await broker.queued_visits(partition):
                left.append(f"{len(shards)} shards of partition {partition} are still queued")
    return tuple(left)


def crawl_seen(cluster: Cluster, declared: DeclaredCrawl, web: Web) -> CrawlSeen:
    """Return what the database holds of the crawl."""
    number, expected = declared.id, set(web.expected_pages(declared.site))
    [(state, reason)] = cluster.query(f"SELECT state, finished_reason FROM crawls WHERE crawl_id = {number}")
    sums = ", ".join(f"coalesce(sum({name}), 0)" for name in _COUNTERS)
    [counted] = cluster.query(f"SELECT {sums} FROM crawl_counters WHERE crawl_id = {number}")
    [(leases,)] = cluster.query(f"SELECT count(*) FROM leases WHERE crawl_id = {number}")
    urls = cluster.query(f"SELECT url, state, reason FROM {URLS} u WHERE crawl_id = {number}")
    pages = cluster.query(
        f'SELECT u.url, f.status, f.segment, f."offset", f.length FROM {URLS} u'
        " JOIN fetches f USING (crawl_id, host_id, fingerprint)"
        f" WHERE f.page AND u.crawl_id = {number}"
    )
    return CrawlSeen(
        name=declared.name,
        state=state,
        reason=reason,
        expected=frozenset(expected | declared.seeds),
        seeds=frozenset(declared.seeds),
        offered=frozenset(declared.offered),
        urls={url: UrlState(at) for url, at, _ in urls},
        reasons={url: why for url, _, why in urls if why is not None},
        pages=tuple(PageSeen(*row) for row in pages),
        counters=dict(zip(_COUNTERS, map(int, counted), strict=True)),
        leases=int(leases),
        agent=agent(declared.name),
        turns=_turns(cluster, number),
    )


def _turns(cluster: Cluster, crawl_id: int) -> tuple[TurnSeen, ...]:
    """What the triggers saw; the database's clock is the machine's wall clock, which no fault turns."""
    ahead_ns = time.time_ns() - time.monotonic_ns()
    rows = cluster.query(
        f"SELECT u.url, t.turn, t.at_ms FROM faults_turns t JOIN {URLS} u USING (crawl_id, host_id, fingerprint)"
        f" WHERE t.crawl_id = {crawl_id}"
    )
    return tuple(TurnSeen(url, LeaseTurn(turn), at_ms * 1_000_000 - ahead_ns) for url, turn, at_ms in rows)


def _deleted(cluster: Cluster, doomed: DeclaredCrawl) -> DeletedSeen:
    [(state, urls, leases)] = cluster.query(
        "SELECT state, (SELECT count(*) FROM urls u WHERE u.crawl_id = c.crawl_id),"
        f" (SELECT count(*) FROM leases l WHERE l.crawl_id = c.crawl_id) FROM crawls c WHERE crawl_id = {doomed.id}"
    )
    return DeletedSeen(doomed.name, state, int(urls), int(leases))


def _records(folder: Path, crawls: Sequence[CrawlSeen]) -> dict[tuple[str, int], str]:
    """The URL of the one response that lies at each place; what cannot be read is not in it."""
    paths = [path for name in WORKERS for path in (folder / name).rglob("*.warc.gz*")]
    segments = {path.name.removesuffix(".open"): path for path in paths}
    found = {}
    for page in (page for crawl in crawls for page in crawl.pages):
        name = page.segment if page.segment.endswith(".warc.gz") else f"{page.segment}.warc.gz"
        if (path := segments.get(Path(name).name)) is None:
            continue
        with path.open("rb") as file:
            file.seek(page.offset)
            member = file.read(page.length)
        urls = _urls(member)
        if len(member) == page.length and len(urls) == 1:
            found[page.segment, page.offset] = urls[0]
    return found


def _urls(member: bytes) -> list[str]:
    """Of the records in it; none where it is no WARC."""
    try:
        return [record.rec_headers.get_header("WARC-Target-URI") for record in ArchiveIterator(io.BytesIO(member))]
    except ArchiveLoadFailed:
        return []
