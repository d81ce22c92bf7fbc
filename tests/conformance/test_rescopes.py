"""A changed scope that is applied holds even for workers that know nothing of it, whatever happens to owners.

A wider one finds all that it admits on pages that were fetched before.
"""

import random

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from shared.adapters.sql.frontier import rediscover
from shared.domain.crawl.spec import Budget, CrawlSpec, Scope, ScopeMode
from shared.domain.frontier.commands import CommandKind
from shared.domain.frontier.states import UrlState
from shared.wire.messages import Extend, Go
from tests.conformance.test_protocol import Protocol, one_database, profile
from tests.support.database.url_rows import URLS
from tests.support.simulation.cluster import Cluster, Site
from tests.support.simulation.manual_worker import ManualWorker, Start, leases, shard_of
from tests.support.simulation.scope_operator import ScopeOperator, without
from tests.support.simulation.store import Database
from tests.support.simulation.web import Kind, Node

HOST = "h0.test"
OUT = (UrlState.EXCLUDED, "exclude_pattern")
WALKS = 20
_EXAMPLES = 24


def applied(cluster: Cluster, command: str) -> bool:
    return bool(cluster.database.rows("SELECT 1 FROM commands WHERE id = :id", id=command))


def states(hand: ManualWorker) -> list[tuple[int, str | None]]:
    return sorted(hand.states().values())


def rescoped(cluster: Cluster, *exclude: str, revision: int = 2) -> str:
    """Change the scope, of which workers learn nothing; the command's id."""
    cluster.change_scope(Scope(exclude=exclude))
    return cluster.command(CommandKind.RESCOPE, revision=revision)


def test_changed_scope_stops_the_visit_and_is_applied_behind_its_end(start: Start) -> None:
    cluster, hand = start(3)
    shard = shard_of(hand)
    grant = hand.go(shard, 1).grant
    command = rescoped(cluster, HOST)
    cluster.world.run_for(5.0)
    assert not applied(cluster, command), "a worker may still send"
    answer = hand.wait(hand.ask(shard.lease, Extend(shard.lease, grant, hand.process.name)))
    assert isinstance(answer, Go)
    assert answer.stop
    hand.report(shard, grant, {shard.urls[0].url: 200}, final=True, left=tuple(url.url for url in shard.urls[1:]))
    cluster.world.run_for(5.0)
    assert applied(cluster, command)
    assert states(hand) == [(UrlState.DONE, None), OUT, OUT]
    assert leases(cluster) == []
    cluster.assert_kept()


def test_visit_within_the_scope_goes_on_and_delays_nothing(start: Start) -> None:
    cluster, hand = start(3)
    shard = shard_of(hand)
    grant = hand.go(shard, 1).grant
    command = rescoped(cluster, "/nowhere/")
    cluster.world.run_for(2.0)
    assert applied(cluster, command)
    answer = hand.wait(hand.ask(shard.lease, Extend(shard.lease, grant, hand.process.name)))
    assert isinstance(answer, Go)
    assert not answer.stop
    cluster.assert_kept()


def test_shard_that_no_worker_began_loses_what_is_outside(start: Start) -> None:
    cluster, hand = start(3)
    shard = shard_of(hand)
    command = rescoped(cluster, "/1$")
    cluster.world.run_for(2.0)
    assert applied(cluster, command)
    assert states(hand) == [(UrlState.LEASED, None), (UrlState.LEASED, None), OUT]
    assert len(hand.go(shard, 1).remaining) == 2
    cluster.assert_kept()


def test_command_waits_until_its_owner_has_the_revision(start: Start) -> None:
    cluster, hand = start(3)
    command = cluster.command(CommandKind.RESCOPE, revision=2)
    cluster.world.run_for(5.0)
    assert not applied(cluster, command)
    cluster.change_scope(Scope(exclude=(HOST,)))
    cluster.world.run_for(5.0)
    assert applied(cluster, command)
    assert states(hand) == [OUT] * 3
    cluster.assert_kept()


def test_link_of_an_earlier_revision_is_judged_again(start: Start) -> None:
    """A worker that has only the first revision reports it after the command was applied."""
    cluster, hand = start(2)
    command = rescoped(cluster, "/late")
    cluster.world.run_for(2.0)
    assert applied(cluster, command)
    page = next(iter(hand.states()))
    (host_id,) = cluster.database.rows("SELECT host_id FROM hosts WHERE host = :host", host=HOST)
    links = {f"http://{HOST}/late": 1, f"http://{HOST}/other": 1, "http://elsewhere.test/": 1}
    hand.discover(cluster.crawl_id, links, via=page, host_id=host_id[0])
    found = hand.states()
    assert found[f"http://{HOST}/late"] == OUT
    assert found[f"http://{HOST}/other"][0] in (UrlState.QUEUED, UrlState.LEASED)
    assert found["http://elsewhere.test/"] == (UrlState.EXCLUDED, "other_host")
    cluster.assert_kept()


def test_wider_scope_overtakes_and_queues_again(start: Start) -> None:
    cluster, hand = start(3)
    shard = shard_of(hand)
    rescoped(cluster, HOST)
    second = rescoped(cluster, "/0$", revision=3)
    cluster.world.run_for(5.0)
    assert applied(cluster, second)
    found = hand.states()
    assert found[f"http://{HOST}/0"] == OUT
    assert {found[f"http://{HOST}/{n}"][0] for n in (1, 2)} <= {UrlState.QUEUED, UrlState.LEASED}
    assert shard.spec == 1
    cluster.assert_kept()


@pytest.mark.parametrize("seed", range(WALKS))
def test_no_request_follows_an_applied_scope(database: Database, seed: int) -> None:
    """Two workers that never learn of it; owners and workers are killed at any time."""
    draw = random.Random(seed)
    trap = [Node(0, Kind.PAGE, tuple(range(8, 30))) for _ in range(22)]
    pages = [Node(1, Kind.PAGE, (n + 1, 8 + n)) for n in range(8)]
    cluster = Cluster(database, Site((*pages, *trap), seeds=(0, 8), delay_s=draw.choice((0.0, 0.5, 1.0))))
    try:
        cluster.start_owner()
        cluster.world.run_for(0.2)
        cluster.create_crawl()
        for _ in range(2):
            cluster.start_worker(batch=draw.choice((1, 3)))
        cluster.world.run_for(draw.uniform(0.0, 12.0))
        scope = Scope(mode=draw.choice((ScopeMode.ANY, ScopeMode.HOST)), exclude=(f"^http://{HOST}/",))
        cluster.change_scope(scope)
        command = cluster.command(CommandKind.RESCOPE, revision=2)
        for _ in range(draw.randrange(3)):
            cluster.world.run_for(draw.uniform(0.0, 6.0))
            cluster.world.kill(draw.choice(cluster.processes()))
            cluster.start_owner(loads_after_s=draw.choice((0.0, 1.0)))
            cluster.start_worker()
        until = cluster.world.now + 200.0
        while not applied(cluster, command) and cluster.world.now < until:
            cluster.world.run_for(0.2)
        assert applied(cluster, command)
        at = cluster.world.now
        cluster.world.run_for(60.0)
        late = [request for request in cluster.web.seen.get(HOST, ()) if request.start > at]
        assert late == []
        assert not cluster.database.rows(
            "SELECT 1 FROM urls u JOIN hosts h USING (host_id) WHERE h.host = :host AND u.state IN (0, 1, 2)", host=HOST
        )
        cluster.judge.links_balanced(cluster.crawl_id)
    finally:
        cluster.close()


def test_stored_page_is_read_again_although_its_host_gave_all_its_pages(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record lists no links, so that a wider scope queues it again."""
    spec = Cluster.spec

    def of_one_page(cluster: Cluster) -> CrawlSpec:
        return msgspec.structs.replace(spec(cluster), budget=Budget(max_pages_per_host=1))

    monkeypatch.setattr(Cluster, "spec", of_one_page)
    cluster = Cluster(database, Site((Node(0, Kind.PAGE, (1, 2)), Node(0, Kind.PAGE), Node(1, Kind.PAGE))))
    try:
        cluster.archive.short = {cluster.web.url(0)}
        by = ScopeOperator(cluster)
        cluster.scope = without({1})
        cluster.start_owner()
        cluster.start_worker()
        cluster.create_crawl()
        cluster.world.run_for(30.0)
        by.rescope()
        cluster.world.run_for(60.0)
        assert [len(cluster.web.seen.get(f"h{host}.test", ())) for host in (0, 1)] == [2, 1]
        rows = cluster.database.rows(f"SELECT u.url, u.state, u.reason FROM {URLS} u")
        assert {url: (state, reason) for url, state, reason in rows} == {
            cluster.web.url(0): (UrlState.DONE, None),
            cluster.web.url(1): (UrlState.EXCLUDED, "max_pages_per_host"),
            cluster.web.url(2): (UrlState.DONE, None),
        }
        cluster.assert_kept()
    finally:
        cluster.close()


@st.composite
def trees(draw: st.DrawFn) -> Site:
    """A web of up to 18 URLs on three hosts, most of which only one page links to."""
    n = draw(st.integers(6, 18))
    links: list[list[int]] = [[] for _ in range(n)]
    for child in range(1, n):
        links[draw(st.integers(max(0, child - 4), child - 1))].append(child)
    kinds = st.sampled_from([Kind.PAGE] * 12 + [Kind.REDIRECT, Kind.FLAKY, Kind.BUSY])
    nodes = [Node(draw(st.integers(0, 2)), draw(kinds) if of else Kind.PAGE, tuple(of)) for of in links[1:]]
    start = Node(0, Kind.PAGE, tuple(links[0]))
    return Site((start, *nodes), delay_s=draw(st.sampled_from([1.0, 0.0])))


class WiderScopeProtocol(Protocol):
    """The same rules over a crawl whose scope is narrowed and widened, with two pages in each chunk that is read.

    Workers leave out the links that the scope excludes. In the end all is admitted, and must be found. It has no rule
    after which a link may be lost, or that begins another crawl. Most runs would have one, and could show nothing.
    """

    lose_the_broker = None  # type: ignore[assignment]
    put_the_store_back = None  # type: ignore[assignment]
    delete_and_create = None  # type: ignore[assignment]
    delete_seed = None  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.operator: ScopeOperator | None = None
        self.patch = pytest.MonkeyPatch()

    @property
    def by(self) -> ScopeOperator:
        assert self.operator is not None
        return self.operator

    @initialize(
        site=trees(),
        workers=st.integers(1, 2),
        batch=st.sampled_from([1, 3, 100]),
        out=st.sets(st.integers(1, 2), min_size=1),
        short=st.sets(st.integers(0, 17), max_size=2),
        seconds=st.sampled_from([0.5, 8.0, 30.0]),
    )
    def begin(self, site: Site, workers: int, batch: int, out: set[int], short: set[int], seconds: float) -> None:
        self.patch.setattr(rediscover, "PAGES_A_CHUNK", 2)
        self.cluster = Cluster(one_database(), site)
        self.cluster.archive.short = {self.cluster.web.url(n) for n in short if n < len(site.nodes)}
        self.operator = ScopeOperator(self.cluster)
        self.cluster.scope = without(out)
        self.cluster.start_owner()
        for _ in range(workers):
            self.cluster.start_worker(batch=batch)
        self.cluster.create_crawl()
        self.cluster.world.run_for(seconds)

    @rule(hosts=st.sets(st.integers(0, 2), max_size=2))
    def rescope(self, hosts: set[int]) -> None:
        self.by.rescope(*(f"h{host}.test" for host in sorted(hosts)))

    @rule(seconds=st.sampled_from([0.1, 0.5, 4.0]))
    def widen_and_kill(self, seconds: float) -> None:
        """An owner dies in the middle of what it finds again."""
        self.by.rescope()
        self.at.world.run_for(seconds)
        for sim in self.at.owners:
            self.at.world.kill(sim.process)
        self.at.start_owner()

    @rule(times=st.integers(1, 4))
    def cut_off(self, times: int) -> None:
        """The broker does not get what an owner finds again."""
        self.at.archive.cut_off = times

    def look(self) -> None:
        self.by.look()
        super().look()

    def settle(self) -> None:
        self.by.settle()

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.patch.undo()


@pytest.mark.timeout(600)
def test_wider_scope_keeps_every_promise_whatever_fails(short: bool) -> None:
    examples = _EXAMPLES // 4 if short else _EXAMPLES
    run_state_machine_as_test(WiderScopeProtocol, settings=profile(examples, derandomize=True))
