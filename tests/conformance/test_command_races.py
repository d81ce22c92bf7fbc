"""Commands that meet messages on their way: dead letters published again, and seeds deleted before they are applied."""

import asyncio
from typing import Any

import pytest

from api.frontier.ingest import Ingest
from shared.adapters.sql.frontier import discoveries as found
from shared.domain.errors import Permanent
from shared.domain.frontier.commands import SEED_DELETED, CommandKind
from shared.domain.frontier.states import UrlState
from shared.domain.ids import CrawlId
from shared.domain.web.url import fingerprint, host_of
from shared.wire.messages import Discoveries, Gone, Link, Origin, encode
from tests.support.simulation.cluster import Cluster
from tests.support.simulation.manual_worker import ManualWorker, Start

QUEUED, LEASED, EXCLUDED = UrlState.QUEUED, UrlState.LEASED, UrlState.EXCLUDED


def url(i: int) -> str:
    return f"http://h0.test/{i}"


def letters(cluster: Cluster) -> list[tuple[str, CrawlId | None]]:
    rows = cluster.database.rows("SELECT kind, crawl_id FROM dead_letters ORDER BY id")
    return [(kind, crawl_id) for kind, crawl_id in rows]


def links(cluster: Cluster) -> dict[str, int]:
    """The second identity's numbers."""
    names = ("accepted", "new", "known", "refused")
    row = cluster.database.rows(f"SELECT {', '.join(names)} FROM crawl_counters")[0]
    return dict(zip(names, row, strict=True))


@pytest.fixture
def buried(start: Start, monkeypatch: pytest.MonkeyPatch) -> tuple[Cluster, ManualWorker]:
    """One seed, and a message of two links that could not be written when it came."""
    cluster, hand = start(1)

    def refuse(*args: Any) -> None:
        if args[2]:
            raise Permanent("these rows can never be written")

    with monkeypatch.context() as broken:
        broken.setattr(found, "_merge", refuse)
        hand.discover(cluster.crawl_id, {url(5): 1, url(6): 1})
    assert letters(cluster) == [("discovery", cluster.crawl_id)]
    return cluster, hand


def test_links_of_a_buried_message_are_refused_and_its_producer_goes_on(buried: tuple[Cluster, ManualWorker]) -> None:
    cluster, hand = buried
    assert links(cluster) == {"accepted": 3, "new": 1, "known": 0, "refused": 2}
    hand.discover(cluster.crawl_id, {url(7): 1})
    assert links(cluster) == {"accepted": 4, "new": 2, "known": 0, "refused": 2}
    assert cluster.database.rows("SELECT gaps FROM producers WHERE producer = 'hand'") == [(0,)]
    cluster.judge.links_balanced(cluster.crawl_id)
    cluster.assert_kept()


@pytest.mark.parametrize("letter", [0, 1])
def test_replayed_message_is_applied_though_producer_is_far_beyond(
    buried: tuple[Cluster, ManualWorker], letter: int
) -> None:
    cluster, hand = buried
    hand.discover(cluster.crawl_id, {url(7): 1})
    cluster.command(CommandKind.REPLAY, letter=letter)
    cluster.world.run_for(1.0)
    assert set(hand.states()) == {url(0), url(5), url(6), url(7)}
    assert letters(cluster) == []
    assert links(cluster) == {"accepted": 6, "new": 4, "known": 0, "refused": 2}
    cluster.judge.links_balanced(cluster.crawl_id)
    cluster.assert_kept()


def test_owner_death_between_publish_and_delete_repeats_dead_letter(
    buried: tuple[Cluster, ManualWorker],
) -> None:
    """It is applied once: by its message id within two minutes, by its producer's number after them."""
    cluster, hand = buried
    cluster.command(CommandKind.REPLAY, letter=0)
    owner = cluster.owners[0].process
    hand.open_where(lambda what: what != "publish.discovery.answer")
    assert any(gate.what == "publish.discovery.answer" for gate in cluster.world.gates)
    cluster.world.kill(owner)
    assert letters(cluster) != []
    cluster.world.advance(130.0)
    cluster.start_owner()
    cluster.world.run_for(2.0)
    assert letters(cluster) == []
    assert links(cluster) == {"accepted": 5, "new": 3, "known": 0, "refused": 2}
    published = [data for subject, data in cluster.broker.history if subject.endswith("discovery")]
    assert published[-1] == published[-2], "it was published twice"
    cluster.judge.links_balanced(cluster.crawl_id)
    cluster.assert_kept()


def test_a_message_that_fails_again_is_another_letter_and_the_command_ends(start: Start) -> None:
    cluster, hand = start(1)
    for n in range(3):
        hand.publish("discovery", b"\xc1", f"garbage{n}")
        hand.publish("outcome", b"\xc1", f"more{n}")
    cluster.world.run_for(0.5)
    assert len(letters(cluster)) == 6
    cluster.command(CommandKind.REPLAY, letter=2)
    cluster.world.run_for(1.0)
    rows = [row[0] for row in cluster.database.rows("SELECT id FROM dead_letters ORDER BY id")]
    assert rows == [1, 3, 4, 5, 6, 7]
    assert cluster.database.rows("SELECT kind FROM commands") == [("replay",)]
    cluster.assert_kept()


def test_a_message_whose_links_can_never_be_written_says_whose_it_is(start: Start) -> None:
    cluster, hand = start(1)
    wrong = Discoveries(cluster.crawl_id, 1, "w", 1, 1, [Origin(2**63, b"v" * 16, [Link(url(5), 1)])])
    hand.publish("discovery", encode(wrong))
    cluster.world.run_for(0.5)
    assert letters(cluster) == [("discovery", cluster.crawl_id)]
    assert links(cluster) == {"accepted": 2, "new": 1, "known": 0, "refused": 1}
    cluster.command(CommandKind.DISCARD, letter=0)
    cluster.world.run_for(0.5)
    assert letters(cluster) == []
    cluster.assert_kept()


def test_seeds_accepted_before_deletion_are_deleted_when_applied_late(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They travel on another subject than the command, and may be behind it."""
    cluster, hand = start(1)
    held: list[asyncio.Future[None]] = []
    apply = Ingest.discoveries

    async def later(self: Ingest, reports: Any) -> None:
        held.append(asyncio.get_running_loop().create_future())
        await held[-1]
        await apply(self, reports)

    monkeypatch.setattr(Ingest, "discoveries", later)
    hand.discover(cluster.crawl_id, {url(5): 0})
    places = [(host_of(url(5)), fingerprint(url(5)))]
    cluster.judge.taken_back[cluster.crawl_id] = {url(5)}
    cluster.command(CommandKind.DELETE_SEEDS, all=False, places=places)
    cluster.world.run_for(5.0)
    assert held
    assert cluster.database.rows("SELECT 1 FROM commands") == [], "it waits for them"
    for waiting in held:
        waiting.set_result(None)
    cluster.world.run_for(1.0)
    assert hand.states()[url(5)] == (EXCLUDED, SEED_DELETED)
    cluster.assert_kept()


def test_a_seed_that_was_sent_out_and_not_begun_is_called_back_and_excluded(start: Start) -> None:
    """In a pool whose workers are gone it would be out for ever. A worker that asks all the same is sent away."""
    cluster, hand = start(3)
    message, shard = hand.pull()
    assert {state for state, _ in hand.states().values()} == {LEASED}
    for choice in (0, 1):
        cluster.delete_seed(choice)
    cluster.world.run_for(0.2)
    assert isinstance(hand.begin(shard, message.delivery), Gone)
    states = hand.states()
    assert [states[url(i)] for i in (0, 1)] == [(EXCLUDED, SEED_DELETED)] * 2
    assert states[url(2)][0] in (QUEUED, LEASED)
    hand.wait(message.ack())
    _, left = hand.pull()
    assert [entry.url for entry in left.urls] == [url(2)]
    cluster.assert_kept()


def test_a_seed_that_is_out_when_it_is_deleted_is_fetched_and_stays(start: Start) -> None:
    cluster, hand = start(2)
    _, shard = hand.pull()
    grant = hand.go(shard, 1).grant
    for choice in (0, 1):
        cluster.delete_seed(choice)
    cluster.world.run_for(1.0)
    assert {state for state, _ in hand.states().values()} == {LEASED}
    hand.report(shard, grant, {url(0): 200}, final=True, left=(url(1),))
    assert hand.states() == {url(0): (UrlState.DONE, None), url(1): (QUEUED, None)}
    cluster.assert_kept()
