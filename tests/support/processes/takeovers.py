"""What the tests of masters that take over from each other share: members of a cluster, a spec and a verdict."""

from tests.support.processes.cluster import Cluster
from tests.support.web import log_judge
from tests.support.web.web_server import Web

DELAY_S = 0.1


def spec(served: Web, delay_s: float = DELAY_S) -> dict[str, object]:
    """Return the spec of a crawl of all hosts of the site."""
    return {
        "seeds": [f"{served.origins[0]}/"],
        "scope": {"mode": "any"},
        "politeness": {"delay_s": delay_s},
        "retry": {"base_s": 0.2, "attempts": 5},
    }


def started(cluster: Cluster, *, masters: int = 2, workers: int = 2) -> str:
    """Start masters and workers. Return the leader's name as soon as it owns everything."""
    for number in range(1, masters + 1):
        cluster.master(f"m{number}")
    for number in range(1, workers + 1):
        cluster.worker(f"w{number}")
    cluster.wait_until(lambda: set(cluster.owners()) == {cluster.leader()}, "the leader owns all partitions")
    leader = cluster.leader()
    assert leader is not None
    return leader


def judged(cluster: Cluster, served: Web, delay_s: float = DELAY_S) -> None:
    """Assert that the pages are those of the site, each stored once, and that no host was asked too soon."""
    assert sorted(cluster.pages()) == sorted(set(served.expected_pages()))
    log = served.log()
    too_soon = {host: gap for host in log_judge.hosts(log) if (gap := log_judge.smallest_gap(log, host)) < delay_s}
    assert too_soon == {}
