"""Spans without faults in which crawls share hosts, then a pool, before the first fault of a run.

Four hosts are shared by two crawls of different delays and weights. The pool, whose visits are fewer than either crawl
has hosts, is shared by a broad crawl and a narrow one. All have work for as long as the span lasts: their sites have no
end.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.support.api.cluster_clients import AnyMaster
from tests.support.faults.faulted_cluster import MASTERS, START_S, FaultedCluster
from tests.support.faults.history import SharedPeriod, SharingCrawl
from tests.support.faults.traffic import agent
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

WARM_S: Final = 15.0
"""From the declaration until shares are counted: the first shards and robots.txt of each host are over by then."""
SPAN_S: Final = 60.0
SITES: Final = tuple(SyntheticSite(pages=1_000_000, hosts=hosts, seed=hosts) for hosts in (4, 40, 120))
Crawl = tuple[str, int, int, float]
"""Name, site among `SITES`, weight, delay in seconds."""
PAIRS: Final[Mapping[str, Sequence[Crawl]]] = {
    "the hosts": (("host1", 0, 1, 0.15), ("host2", 0, 2, 0.6)),
    "the pool": (("narrow", 1, 2, 0.5), ("broad", 2, 1, 0.5)),
}
"""One after the other: only where the pool has free visits is a host always sent as soon as it is due."""


def shared(rig: FaultedCluster, web: Web, first_site: int, span_s: float = SPAN_S) -> tuple[SharedPeriod, ...]:
    """Let the crawls of each pair share for a while. Return what is to be judged; the crawls are collected by then."""
    client = AnyMaster(rig.cluster, list(MASTERS))
    try:
        return tuple(_pair(rig, web, client, first_site, what, pair, span_s) for what, pair in PAIRS.items())
    finally:
        client.close()


def _pair(
    rig: FaultedCluster, web: Web, client: AnyMaster, first_site: int, what: str, pair: Sequence[Crawl], span_s: float
) -> SharedPeriod:
    for name, site, weight, delay_s in pair:
        body = _body(name, list(web.origins_of(first_site + site)), weight, delay_s)
        _written(rig, client, "POST", "/v1/crawls", (201,), body, **{"Idempotency-Key": name})
    agents = {agent(name) for name, *_ in pair}
    # Any of them: that another starves is for the judge to find.
    web.wait_until(lambda log: any(each.user_agent in agents for each in log))
    time.sleep(WARM_S)
    from_ns = time.monotonic_ns()
    time.sleep(span_s)
    to_ns = time.monotonic_ns()
    for name, *_ in pair:
        _written(rig, client, "DELETE", f"/v1/crawls/{name}", (202, 204, 404))
    collected = "SELECT count(*) FROM crawls WHERE collected_at_ms IS NULL"
    rig.cluster.wait_until(lambda: rig.cluster.query(collected) == [(0,)], "the crawls are collected", START_S)
    crawls = tuple(SharingCrawl(agent(name), weight, delay_s) for name, _, weight, delay_s in pair)
    return SharedPeriod(what, from_ns, to_ns, crawls)


def _body(name: str, seeds: list[str], weight: int, delay_s: float) -> dict[str, Any]:
    return {
        "name": name,
        "spec": {
            "seeds": seeds,
            "fetch": {"user_agent": agent(name)},
            "scope": {"mode": "any"},
            "politeness": {"delay_s": delay_s},
            "egress": {"allow": ["127.0.0.0/8"]},
            "weight": weight,
        },
    }


def _written(
    rig: FaultedCluster,
    client: AnyMaster,
    method: str,
    path: str,
    wanted: tuple[int, ...],
    body: object = None,
    **headers: str,
) -> None:
    def done() -> bool:
        answer = client.ask(method, path, body, **headers)
        assert answer is None or answer.status in wanted, answer
        return answer is not None

    rig.cluster.wait_until(done, f"{method} {path} is carried out")
