"""Hosts of any size that are given up: URL by URL in chunks, with others in between, and whoever dies meanwhile."""

from collections import Counter

import msgspec
import pytest

from shared.adapters.sql.frontier import apply
from shared.domain.crawl.spec import Budget, CrawlSpec, Retry
from shared.domain.frontier.failure import HOST_UNREACHABLE
from shared.domain.frontier.states import UrlState
from shared.domain.ids import HostId
from shared.domain.web.url import fingerprint
from shared.ports.broker import VisitMessage
from shared.wire.messages import HostNote, Outcome, encode
from tests.support.simulation.cluster import Cluster
from tests.support.simulation.manual_worker import ManualWorker, Start

CHUNK = 4
URLS = 3 * CHUNK
DEAD = (UrlState.FAILED, HOST_UNREACHABLE)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "_GIVEN_UP_AT_ONCE", CHUNK)


def url(i: int) -> str:
    return f"http://h0.test/{i}"


def begun(start: Start) -> tuple[Cluster, ManualWorker]:
    """A host with several chunks of URLs."""
    cluster, hand = start(1)
    hand.discover(cluster.crawl_id, {url(i): 1 for i in range(1, URLS)})
    return cluster, hand


def unanswered(hand: ManualWorker) -> VisitMessage:
    """The host's next shard comes back untouched: nobody answers there. Its message, to be acknowledged."""
    hand.world.run_for(60.0)  # the host was left alone since the last time
    message, shard = hand.pull()
    grant = hand.go(shard, 1).grant
    left: list[bytes] = [fingerprint(entry.url) for entry in shard.urls]
    note = HostNote(failure="connect")
    hand.publish("outcome", encode(Outcome(shard.lease, shard.crawl, grant, shard.host_id, [], left, True, 0, note)))
    return message


def ends(hand: ManualWorker) -> Counter[tuple[int, str | None]]:
    return Counter(hand.states().values())


def test_a_dead_hosts_urls_all_fail_however_many_there_are(start: Start) -> None:
    cluster, hand = begun(start)
    for _ in range(3):
        hand.wait(unanswered(hand).ack())
    cluster.world.run_for(1.0)
    assert ends(hand) == {DEAD: URLS}
    assert cluster.database.rows("SELECT queued, waiting, leased FROM queues") == [(0, 0, 0)]
    cluster.assert_kept()


def test_a_crawl_says_itself_how_often_a_host_may_not_answer(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = Cluster.spec

    def patient(cluster: Cluster) -> CrawlSpec:
        return msgspec.structs.replace(spec(cluster), retry=Retry(host_attempts=1))

    monkeypatch.setattr(Cluster, "spec", patient)
    cluster, hand = begun(start)
    hand.wait(unanswered(hand).ack())
    cluster.world.run_for(1.0)
    assert ends(hand) == {DEAD: URLS}
    cluster.assert_kept()


def test_next_owner_completes_giving_up_of_host_after_owner_death(start: Start) -> None:
    """After one more request: the next owner finds what is left in the queue, and the host as dead as it was."""
    cluster, hand = begun(start)
    for _ in range(2):
        hand.wait(unanswered(hand).ack())
    message = unanswered(hand)
    hand.open_where(lambda _: not ends(hand)[DEAD])
    assert ends(hand)[DEAD] == CHUNK
    cluster.world.kill(cluster.owners[0].process)
    cluster.start_owner()
    hand.wait(message.ack())
    hand.wait(unanswered(hand).ack())
    cluster.world.run_for(1.0)
    assert ends(hand) == {DEAD: URLS}
    cluster.assert_kept()


def test_all_that_a_hosts_page_budget_leaves_over_is_excluded(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = Cluster.spec

    def of_two_pages(cluster: Cluster) -> CrawlSpec:
        return msgspec.structs.replace(spec(cluster), budget=Budget(max_pages_per_host=2))

    monkeypatch.setattr(Cluster, "spec", of_two_pages)
    cluster, hand = begun(start)
    pages = 0
    while pages < 2:
        message, shard = hand.pull()
        grant = hand.go(shard, 1).grant
        hand.report(shard, grant, {entry.url: 200 for entry in shard.urls}, final=True)
        hand.wait(message.ack())
        pages += len(shard.urls)
    hand.world.run_for(60.0)
    assert ends(hand) == {(UrlState.DONE, None): 2, (UrlState.EXCLUDED, "max_pages_per_host"): URLS - 2}
    assert cluster.database.rows("SELECT queued, waiting, leased FROM queues") == [(0, 0, 0)]
    cluster.assert_kept()


def test_host_is_not_given_up_for_a_pause_in_which_it_was_not_asked(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second failed probe came long after the first, and failed all URLs of the host."""
    spec = Cluster.spec

    def impatient(cluster: Cluster) -> CrawlSpec:
        return msgspec.structs.replace(spec(cluster), retry=Retry(outage_s=600))

    monkeypatch.setattr(Cluster, "spec", impatient)
    cluster, hand = begun(start)
    message, shard = hand.pull()
    hand.report(shard, hand.go(shard, 1).grant, {entry.url: 200 for entry in shard.urls}, final=True)
    hand.wait(message.ack())
    hand.wait(unanswered(hand).ack())
    hand.world.run_for(1_000.0)  # no worker takes the next shard
    probes = 1
    while not ends(hand)[DEAD]:
        hand.wait(unanswered(hand).ack())
        probes += 1
        hand.world.run_for(1.0)
    assert 6 <= probes <= 12
    cluster.assert_kept()


@pytest.mark.parametrize("loaded", [True, False])
def test_outage_lasts_though_the_queue_is_not_in_memory(start: Start, loaded: bool) -> None:
    """Queues leave memory while leases are out: after a command, a new revision, or the end of the crawl."""
    cluster, hand = begun(start)
    message, shard = hand.pull()
    hand.report(shard, hand.go(shard, 1).grant, {entry.url: 200 for entry in shard.urls}, final=True)
    hand.wait(message.ack())
    [sim] = cluster.owners
    crawl, own = sim.crawls.get(cluster.crawl_id), sim.owner.ownership
    assert crawl is not None
    assert own is not None
    for _ in range(3):
        hand.world.run_for(60.0)
        message, shard = hand.pull()
        grant = hand.go(shard, 1).grant
        if not loaded:
            sim.crawls.remove(cluster.crawl_id)
        own.hosts.drop_crawl(cluster.crawl_id)
        left: list[bytes] = [fingerprint(entry.url) for entry in shard.urls]
        note = HostNote(failure="connect")
        outcome = Outcome(shard.lease, shard.crawl, grant, shard.host_id, [], left, True, 0, note)
        hand.publish("outcome", encode(outcome))
        hand.world.run_for(0.1)
        assert (own.hosts.queue(cluster.crawl_id, HostId(shard.host_id)) is not None) == loaded
        if not loaded:
            sim.crawls.put(crawl)
            own.hosts.mark_incomplete(cluster.crawl_id)
        hand.wait(message.ack())
    assert ends(hand)[DEAD] == 0
    cluster.assert_kept()
