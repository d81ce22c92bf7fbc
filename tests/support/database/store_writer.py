"""Writes to a store until it is killed: `python -m tests.support.database.store_writer FOLDER SEED`.

Prints a line after each committed transaction: its number and the fence's version.
"""

import asyncio
import random
import sys
from pathlib import Path

from shared.adapters.sql.frontier.store import SqliteStore
from shared.domain.frontier.states import UrlState
from shared.domain.ids import Term
from tests.support.database.store_tables import NOW_MS, PARTITION, SUFFIXES, Tables, link

_HOSTS = 12
_ENDS = (UrlState.DONE, UrlState.DONE, UrlState.FAILED, UrlState.WAITING, UrlState.QUEUED)


async def _write(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    path = folder / "crawl.db"
    store = await SqliteStore.open(path)
    await store.open_cluster(8, SUFFIXES, NOW_MS)
    crawl, _ = await store.put_crawl("docs", "{}", NOW_MS)
    claimed = await store.claim(PARTITION, Term(await store.newest_term() + 1))
    t = Tables(store, path, crawl.crawl_id, claimed.fence, claimed.position, claimed.next_host, claimed.next_lease)
    out = list(claimed.leases)
    done = 0
    while True:
        host = f"h{rng.randrange(_HOSTS)}.example.com"
        match rng.randrange(4):
            case 0 | 1:
                links = [link(f"http://{host}/{rng.randrange(3000)}", rng.randrange(5)) for _ in range(40)]
                await t.found(*links, producer=f"w{seed}", refused=rng.randrange(3), max_depth=3)
            case 2 if t.rows("SELECT 1 FROM hosts WHERE host = ?", host):
                row = await t.lease(host, rng.randrange(1, 30))
                if row is not None:
                    out.append(row)
            case _ if out:
                await t.settle(out.pop(rng.randrange(len(out))), rng.choice(_ENDS), due_ms=NOW_MS + 5)
        done += 1
        print(done, t.fence.version, flush=True)


if __name__ == "__main__":
    asyncio.run(_write(Path(sys.argv[1]), int(sys.argv[2])))
