"""`orb bench frontier_turns A B`: the same work on two frontiers in turn, in one process: what size or schema costs.

    orb bench frontier_turns small/frontier.db large/frontier.db [--turns 4] [--crawls N M] [--server PID]

A and B are databases that `orb bench frontier_scale --dir DIR` left (files, or URLs of PostgreSQL, whose postmaster is
`--server`), with a turn's URLs still queued in each. A partition of one, then the same of the other, in drawn order:
what else the machine does falls on both. With `--crawls 10 10000` on two copies of one frontier, the ratio is the cost
of so many running crawls. The ratio is the median over the pairs, by CPU time, with its quartiles.
"""

import argparse
import asyncio
import random
import statistics
from collections.abc import Sequence

from shared.domain.ids import CrawlId, Term
from tests.benchmarks.frontier_scale import opened
from tests.support.api.standby_master import STEPS, Standby
from tests.support.database.owner_cost import Meter, Step
from tests.support.database.scaled_frontier import PARTITIONS

_CRAWL = CrawlId(1)


async def _compare(databases: Sequence[str], turns: int, server: int | None, running: Sequence[int]) -> None:
    stores = [await opened(database) for database in databases]
    meter, standbys = (
        Meter(server),
        [Standby(store, _CRAWL, shards=64, running=crawls) for store, crawls in zip(stores, running, strict=True)],
    )
    for store, standby in zip(stores, standbys, strict=True):
        await standby.claim(Term(await store.newest_term() + 1))
    totals = [{name: Step() for name in STEPS} for _ in databases]
    pairs: list[tuple[float, float]] = []
    for _ in range(turns):
        for standby in standbys:
            standby.turn()
        for partition in range(PARTITIONS):
            told = [Step(), Step()]
            for which in random.sample(range(2), 2):
                for name in STEPS:
                    step = Step()
                    await meter.timed(step, standbys[which].step(partition, name))
                    told[which].cpu_s += step.cpu_s
                    told[which].urls = step.urls
                    totals[which][name].cpu_s += step.cpu_s
                    totals[which][name].urls += step.urls
            if told[0].urls and told[1].urls:
                pairs.append((told[0].cpu_us(), told[1].cpu_us()))
    for database, steps in zip(databases, totals, strict=True):
        urls = steps["outcomes"].urls
        parts = {name: round(step.cpu_s / urls * 1e6, 1) for name, step in steps.items()}
        print(f"{database}: {urls:,} URLs, {sum(parts.values()):.1f} us of CPU each: {parts}")
    ratios = [second / first for first, second in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"second to first: {middle:.3f} ({low:.3f} to {high:.3f}) of {len(ratios)} pairs")
    for store in stores:
        await store.close()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="frontier_turns", description="The same work on two frontiers in turn.")
    parser.add_argument("databases", nargs=2, metavar="DATABASE")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--server", type=int, help="PostgreSQL's postmaster, whose CPU time counts")
    parser.add_argument("--crawls", type=int, nargs=2, default=[1, 1], help="running crawls beside each frontier's")
    options = parser.parse_args(arguments)
    asyncio.run(_compare(options.databases, options.turns, options.server, options.crawls))


if __name__ == "__main__":
    main()
