"""A connection that the server has probably closed is not used, and one lost request teaches when that is."""

from workers.fetch import idle_connections as kept
from workers.fetch.idle_connections import IdleConnections

SERVER = "http://site.example:80"


class Site:
    """A server that keeps idle connections for `kept_s`, asked with `pause_s` between requests."""

    def __init__(self, kept_s: float) -> None:
        self.kept_s = kept_s
        self.now = 0.0
        self.stale = 0
        self.fresh = 0
        self.connections = IdleConnections()

    def asked(self, times: int, pause_s: float) -> None:
        for _ in range(times):
            fresh = self.now == 0.0 or self.connections.wants_fresh(SERVER, self.now)
            stale = not fresh and pause_s >= self.kept_s
            self.fresh += fresh
            self.stale += stale
            self.connections.used(SERVER, self.now, self.now, reused=not fresh, stale=stale)
            self.now += pause_s


def test_server_keeping_connections_beyond_the_pause_sees_reuse() -> None:
    site = Site(kept_s=5.0)
    site.asked(100, 1.0)
    assert (site.fresh, site.stale) == (1, 0)


def test_an_idle_limit_near_the_delay_costs_few_requests() -> None:
    """66 of 160 fetches were reset, and 7 of 101 pages failed for good."""
    site = Site(kept_s=1.0)
    site.asked(200, 1.0)
    assert 1 <= site.stale <= 200 // 25


def test_shorter_pauses_still_reuse_and_a_change_of_the_server_is_found() -> None:
    site = Site(kept_s=1.0)
    site.asked(10, 1.0)
    fresh = site.fresh
    site.asked(20, 0.5)
    assert site.fresh - fresh <= 1
    site.kept_s = 60.0
    site.asked(60, 1.0)
    fresh = site.fresh
    site.asked(50, 1.0)
    assert site.fresh == fresh, "its connections serve again"


def test_requests_side_by_side_teach_nothing() -> None:
    connections = IdleConnections()
    connections.used(SERVER, 0.0, 1.0, reused=False, stale=False)
    connections.used(SERVER, 1.01, 1.02, reused=True, stale=True)
    assert not connections.wants_fresh(SERVER, 1.5)


def test_the_servers_that_are_remembered_are_bounded() -> None:
    connections = IdleConnections()
    for number in range(kept.MAX_SERVERS + 10):
        connections.used(f"http://h{number}.test:80", 0.0, 1.0, reused=False, stale=False)
    assert len(connections) == kept.MAX_SERVERS
