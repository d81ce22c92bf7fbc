"""One race a test, each derived from a rule of architecture §3 or found by the model (test_protocol.py)."""

import pytest

from api.crawls.finished_check import finished
from api.frontier.grants import GrantService
from api.members.owner_tuning import limits_of, started_as
from shared.domain.frontier.commands import CommandKind
from shared.domain.frontier.states import UrlState
from shared.domain.ops.config import HotConfig, MasterPart, master_tuning
from shared.wire.messages import Begin, Extend, Go, Gone, Superseded, Wait, encode
from tests.support.simulation import cluster as simulated
from tests.support.simulation.cluster import PARTITION, Cluster
from tests.support.simulation.manual_worker import ManualWorker, Start, leases, shard_of
from tests.support.simulation.world import EPOCH_MS, Fault

QUEUED, WAITING, LEASED, DONE, FAILED = (
    UrlState.QUEUED,
    UrlState.WAITING,
    UrlState.LEASED,
    UrlState.DONE,
    UrlState.FAILED,
)


def url(i: int) -> str:
    return f"http://h0.test/{i}"


def expire(cluster: Cluster) -> None:
    cluster.world.run_for(31.0)


# --- grants -----------------------------------------------------------------------------------------------------------


def test_final_of_an_old_grant_does_not_free_the_slot_of_the_new_one(start: Start) -> None:
    cluster, hand = start(2)
    shard = shard_of(hand)
    first = hand.go(shard, 1, "first")
    expire(cluster)
    second = hand.go(shard, 2, "second")
    assert second.grant == first.grant + 1
    hand.report(shard, first.grant, final=True)
    assert leases(cluster) == [shard.lease], "the second holder still has the host"
    hand.report(shard, second.grant, final=True)
    assert leases(cluster) == []
    cluster.assert_kept()


def test_what_an_old_holder_did_not_attempt_stays_with_the_new_one(start: Start) -> None:
    cluster, hand = start(2)
    shard = shard_of(hand)
    first = hand.go(shard, 1, "first")
    expire(cluster)
    hand.go(shard, 2, "second")
    hand.report(shard, first.grant, left=(url(0), url(1)))
    assert {state for state, _ in hand.states().values()} == {LEASED}


def test_a_lease_is_not_granted_again_before_its_grant_ran_out(start: Start) -> None:
    _, hand = start(1)
    shard = shard_of(hand)
    hand.go(shard, 1, "first")
    assert isinstance(hand.begin(shard, 2, "second"), Wait)
    assert isinstance(hand.begin(shard, 0, "late"), Superseded)
    assert isinstance(hand.begin(shard, 1, "first"), Go), "the holder may ask again"


def test_a_takeover_waits_for_the_grant_it_has_to_assume(start: Start) -> None:
    cluster, hand = start(1)
    shard = shard_of(hand)
    hand.go(shard, 1, "first")
    cluster.world.kill(cluster.owners[0].process)
    cluster.world.run_for(20.0)
    cluster.start_owner()
    cluster.world.run_for(1.0)
    assert isinstance(hand.begin(shard, 2, "second"), Wait)
    cluster.world.run_for(15.0)
    assert isinstance(hand.begin(shard, 2, "second"), Wait), "the old owner may have extended it up to its end"
    cluster.world.run_for(15.0)
    assert hand.go(shard, 2, "second").grant == 2


def test_outcomes_are_applied_before_the_second_grant(start: Start) -> None:
    cluster, hand = start(2)
    shard = shard_of(hand)
    first = hand.go(shard, 1, "first")
    expire(cluster)
    hand.report(shard, first.grant, {shard.urls[0].url: 200}, apply=False)
    asked = hand.begun(hand.ask(shard.lease, Begin(shard.lease, 2, "second")))
    hand.open_where(lambda what: not what.startswith("reports.read"))
    assert not asked.done(), "what was published before the question is not applied yet"
    hand.world.run_for(1.0)
    answer = asked.result()
    assert isinstance(answer, Go)
    assert answer.remaining == [1]


def test_an_extension_that_was_overtaken_by_another_grant_is_refused(start: Start) -> None:
    cluster, hand = start(1)
    shard = shard_of(hand)
    first = hand.go(shard, 1, "first")
    cluster.world.run_for(29.0)
    late = hand.begun(hand.ask(shard.lease, Extend(shard.lease, first.grant, "first")))
    hand.open_where(lambda what: what in ("ask", "ask.answer", "question.arrives"))
    own = cluster.owners[0].owner.ownership
    assert own is not None
    cluster.world.advance(2.0)
    second = hand.begun(hand.ask(shard.lease, Begin(shard.lease, 2, "second")))
    held = [gate for gate in cluster.world.gates if gate.what.startswith("sql.read")]
    assert held, "the extension waits for the proof of the term"
    for _ in range(60):
        hand.open_where(lambda what: not what.startswith("sql.read"))
    cluster.world.run_for(1.0)
    answers = [task.result() for task in (late, second)]
    assert sum(isinstance(answer, Go) for answer in answers) == 1, answers


def test_a_deposed_owner_answers_nothing(start: Start) -> None:
    cluster, hand = start(1)
    shard = shard_of(hand)
    hand.go(shard, 1, "first")
    old = cluster.owners[0]
    writer = old.owner.writer
    assert writer is not None
    old.process.stopped = True
    cluster.start_owner()
    cluster.world.run_for(1.0)
    old.process.stopped = False
    granting = GrantService(writer, cluster.broker.client(old.process))
    for question in (
        Begin(shard.lease, 1, "first"),
        Begin(shard.lease + 4096, 1, "other"),
        Extend(shard.lease, 1, "first"),
        Extend(shard.lease, 7, "other"),
    ):
        assert cluster.world.do(hand.process, _on(cluster, old.process, granting, question)) is None, question
    cluster.assert_kept()


async def _on(cluster: Cluster, process: object, granting: GrantService, question: Begin | Extend) -> bytes | None:
    """An answer of the old owner, whose own tasks stand still."""
    cluster.world.smooth = True
    try:
        return await granting.answer(encode(question))
    finally:
        cluster.world.smooth = False


# --- giving up --------------------------------------------------------------------------------------------------------


def test_a_shard_that_expires_twice_comes_back_smaller(start: Start) -> None:
    cluster, hand = start(8)
    message, shard = hand.pull()
    assert len(shard.urls) == 8
    for delivery in (1, 2):
        hand.go(shard, delivery, f"victim{delivery}")
        expire(cluster)
    assert isinstance(hand.begin(shard, 3), Gone)
    hand.wait(message.ack())
    smaller = shard_of(hand)
    assert len(smaller.urls) == 1
    cluster.assert_kept()


def test_a_single_url_is_buried_after_five_grants_and_can_be_retried(start: Start) -> None:
    cluster, hand = start(1)
    shard = shard_of(hand)
    for delivery in range(1, 6):
        hand.go(shard, delivery, f"victim{delivery}")
        expire(cluster)
    assert isinstance(hand.begin(shard, 6), Gone)
    assert hand.states() == {url(0): (FAILED, "poison")}
    assert cluster.database.rows("SELECT kind, url FROM dead_letters") == [("url", url(0))]
    cluster.command(CommandKind.RETRY_FAILED)
    cluster.world.run_for(0.5)
    assert hand.states()[url(0)][0] in (QUEUED, LEASED)
    cluster.assert_kept()


def test_grants_before_split_and_dead_letter_are_configurable(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = HotConfig(master=MasterPart(split_after_expiries=1, dead_letter_after_expiries=2))
    turned = limits_of(simulated.SETTINGS, master_tuning(wanted, started_as(simulated.SETTINGS, "info")))
    monkeypatch.setattr(simulated, "SETTINGS", turned)
    cluster, hand = start(2)
    message, shard = hand.pull()
    hand.go(shard, 1, "victim1")
    expire(cluster)
    assert isinstance(hand.begin(shard, 2), Gone), "it is cut smaller"
    hand.wait(message.ack())
    smaller = shard_of(hand)
    for delivery in (1, 2):
        hand.go(smaller, delivery, f"victim{delivery}")
        expire(cluster)
    assert isinstance(hand.begin(smaller, 3), Gone)
    assert list(hand.states().values()).count((FAILED, "poison")) == 1
    cluster.assert_kept()


def test_grants_that_an_overloaded_owner_answered_too_late_are_nobodys_fault(start: Start) -> None:
    """A worker waits only so long: such an answer comes to nobody, and no URL may be buried for it."""
    cluster, hand = start(1)
    shard = shard_of(hand)
    for delivery in range(1, 8):
        asked = hand.begun(hand.ask(shard.lease, Begin(shard.lease, delivery, f"victim{delivery}")))
        hand.open_where(lambda what: what in ("ask", "question.arrives"))
        cluster.world.advance(2.5)
        cluster.world.run_for(1.0)
        assert isinstance(asked.result(), Go), delivery
        expire(cluster)
    assert isinstance(hand.begin(shard, 8), Go)
    assert cluster.database.rows("SELECT kind FROM dead_letters") == []
    cluster.assert_kept()


# --- reports ----------------------------------------------------------------------------------------------------------


def test_redelivered_discoveries_are_counted_once(start: Start) -> None:
    cluster, hand = start(1)
    data = hand.discover(cluster.crawl_id, {url(5): 1, url(6): 1})
    for i in range(3):
        hand.publish("discovery", data, f"again{i}")
    cluster.world.run_for(0.5)
    accepted, new, known = cluster.database.rows("SELECT accepted, new, known FROM crawl_counters")[0]
    assert (accepted, new, known) == (3, 3, 0)


def test_the_position_of_another_stream_means_reading_from_its_start(start: Start) -> None:
    cluster, hand = start(3)
    hand.discover(cluster.crawl_id, {url(5): 1})
    cluster.broker.wipe()
    other = ManualWorker(cluster, "other")
    other.discover(cluster.crawl_id, {url(6): 1})
    cluster.world.run_for(5.0)
    assert url(6) in hand.states()
    assert cluster.owners[0].owner.alarms


def test_a_command_between_two_outcomes_is_applied_in_its_place(start: Start) -> None:
    cluster, hand = start(2)
    shard = shard_of(hand)
    grant = hand.go(shard, 1).grant
    hand.report(shard, grant, {url(0): 404}, apply=False)
    cluster.command(CommandKind.RETRY_FAILED)
    hand.report(shard, grant, {url(1): 404}, apply=False)
    cluster.world.run_for(0.5)
    states = hand.states()
    assert states[url(0)][0] == QUEUED
    assert states[url(1)][0] == FAILED
    cluster.assert_kept()


def test_a_command_beside_discoveries_does_not_move_their_position_back(start: Start) -> None:
    """Found by the model: the finished check then waited for ever."""
    cluster, hand = start(1)
    sequence = hand.publish("discovery", b"\xc1")
    hand.open_where(lambda what: not what.startswith("sql.write"))
    cluster.command(CommandKind.RETRY_FAILED)
    hand.open_where(lambda what: not what.startswith("sql.write"))
    assert [gate.what for gate in cluster.world.gates if gate.what.startswith("sql")] == ["sql.write"], "one waits"
    cluster.world.run_for(0.5)
    assert cluster.judge.position() == (cluster.broker.sequence, sequence)


def test_a_message_that_can_never_be_applied_holds_up_no_other(start: Start) -> None:
    cluster, hand = start(3)
    shard = shard_of(hand)
    grant = hand.go(shard, 1).grant
    hand.report(shard, grant, {url(0): 200}, apply=False)
    hand.report(shard, grant, {url(1): 2**63}, apply=False)
    hand.report(shard, grant, {url(2): 200}, apply=False)
    cluster.world.run_for(0.5)
    states = hand.states()
    assert (states[url(0)][0], states[url(1)][0], states[url(2)][0]) == (DONE, LEASED, DONE)
    assert cluster.database.rows("SELECT kind FROM dead_letters") == [("outcome",)]
    cluster.assert_kept()


def test_a_late_outcome_of_a_deleted_crawl_changes_nothing(start: Start) -> None:
    cluster, hand = start(2)
    shard = shard_of(hand)
    grant = hand.go(shard, 1).grant
    cluster.delete_crawl()
    cluster.create_crawl()
    cluster.world.run_for(0.5)
    before = cluster.database.rows("SELECT * FROM urls")
    hand.report(shard, grant, {url(0): 200})
    hand.discover(shard.crawl, {url(9): 1})
    assert cluster.database.rows("SELECT * FROM urls") == before
    cluster.assert_kept()


def test_a_host_visited_for_a_deleted_crawl_stays_taken_through_a_takeover(start: Start) -> None:
    """Found by the model: the lease was deleted with its crawl, so the next owner sent a second worker to the host."""
    cluster, hand = start(2)
    shard = shard_of(hand)
    hand.go(shard, 1)
    cluster.delete_crawl()
    cluster.create_crawl()
    cluster.world.run_for(0.5)
    cluster.world.kill(cluster.owners[0].process)
    cluster.start_owner()
    cluster.world.run_for(5.0)
    hand.heard()
    cluster.world.run_for(5.0)
    assert leases(cluster) == [shard.lease]
    cluster.world.run_for(30.0)
    assert leases(cluster) != [shard.lease]


# --- depth ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("takeover", [False, True])
def test_a_depth_lowered_while_the_url_is_out_fetches_it_again(start: Start, takeover: bool) -> None:
    """Its links were judged at the depth it was sent with, so what they lead to may be missing."""
    cluster, hand = start(1, max_depth=3)
    shard = shard_of(hand)
    grant = hand.go(shard, 1).grant
    hand.discover(shard.crawl, {url(5): 3})
    hand.report(shard, grant, {url(0): 200}, final=True)
    cluster.world.run_for(2.0)
    shard = shard_of(hand)
    assert [entry.url for entry in shard.urls] == [url(5)]
    grant = hand.go(shard, 1).grant
    hand.discover(shard.crawl, {url(5): 1})
    if takeover:
        cluster.world.kill(cluster.owners[0].process)
        cluster.start_owner()
        cluster.world.run_for(1.0)
    hand.report(shard, grant, {url(5): 200}, final=True)
    state, reason = hand.states()[url(5)]
    assert state in (QUEUED, LEASED)
    assert reason == "depth"
    cluster.assert_kept()


def test_a_depth_lowered_after_the_page_was_done_reaches_the_same_pages(start: Start) -> None:
    cluster, hand = start(1, max_depth=3)
    shard = shard_of(hand)
    grant = hand.go(shard, 1).grant
    hand.discover(shard.crawl, {url(5): 3})
    hand.report(shard, grant, {url(0): 200}, final=True)
    cluster.world.run_for(2.0)
    shard = shard_of(hand)
    hand.report(shard, hand.go(shard, 1).grant, {url(5): 200}, final=True)
    assert hand.states()[url(5)][0] == DONE
    hand.discover(shard.crawl, {url(5): 2})
    assert hand.states()[url(5)][0] in (QUEUED, LEASED)
    assert cluster.database.rows("SELECT pages FROM crawl_counters") == [(2,)], "a page counts once"
    cluster.assert_kept()


# --- the operator -----------------------------------------------------------------------------------------------------


def test_finished_is_not_said_when_a_discovery_came_between_the_two_looks(start: Start) -> None:
    cluster, hand = start(1)
    shard = shard_of(hand)
    hand.report(shard, hand.go(shard, 1).grant, {url(0): 200}, final=True)
    sim = cluster.owners[0]
    crawl = sim.crawls.get(cluster.crawl_id)
    assert crawl is not None
    looking = cluster.world.spawn(cluster.operator, finished(cluster.finished_check(), crawl, [sim.owner]), "look")
    for _ in range(2):
        hand.world.loop.pump()
        gate = next(gate for gate in cluster.world.gates if gate.process is cluster.operator)
        cluster.world.gates.remove(gate)
        gate.opened.set_result(None)
    hand.world.loop.pump()
    hand.publish("discovery", _found(cluster, hand))
    hand.open_where(lambda what: not what.startswith("reports.read"))
    assert looking.result() is None
    cluster.world.run_for(0.5)
    assert url(7) in hand.states()


def _found(cluster: Cluster, hand: ManualWorker) -> bytes:
    from shared.wire.messages import Discoveries, Link, Origin

    return encode(Discoveries(cluster.crawl_id, 1, "between", 1, 1, [Origin(0, b"", [Link(url(7), 1)])]))


def test_a_blocked_host_gets_no_shard_and_an_outcome_does_not_unblock_it(start: Start) -> None:
    cluster, hand = start(2)
    shard = shard_of(hand)
    grant = hand.go(shard, 1).grant
    until_ms = EPOCH_MS + round((cluster.world.now + 60) * 1000)
    cluster.put_policy("h0.test", until_ms=until_ms)
    cluster.world.run_for(2.0)
    hand.report(shard, grant, {url(0): 200}, final=True, left=(url(1),))
    for _ in range(10):
        hand.heard()
        cluster.world.run_for(1.0)
    assert leases(cluster) == []
    for _ in range(60):
        hand.heard()
        cluster.world.run_for(1.0)
    assert len(leases(cluster)) == 1, "and is visited again afterwards"


def test_a_crawl_that_becomes_known_after_its_seeds_is_dispatched(start: Start) -> None:
    cluster, hand = start(1)
    sim = cluster.owners[0]
    cluster.delete_crawl()
    cluster.create_crawl()
    known = sim.crawls.get(cluster.crawl_id)
    assert known is not None
    sim.crawls.remove(cluster.crawl_id)
    cluster.world.run_for(3.0)
    assert [state for state, _ in hand.states().values()] == [QUEUED]
    sim.crawls.put(known)
    cluster.world.run_for(2.0)
    assert shard_of(hand).crawl == cluster.crawl_id


def test_a_claim_whose_answer_was_lost_is_no_deposition(start: Start) -> None:
    """Found by the model: the owner claimed again under its own term, was refused, and left the partition alone."""
    cluster, hand = start(1)
    cluster.world.kill(cluster.owners[0].process)
    sim = cluster.start_owner()
    sim.process.fault = Fault.UNANSWERED
    cluster.world.run_for(3.0)
    assert sim.owner.ownership is not None
    assert len(shard_of(hand).urls) == 1
    assert sim.owner.partition == PARTITION
