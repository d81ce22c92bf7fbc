"""The store's promises about dead letters: replayed or discarded once, each count following, whatever else happened."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from shared.adapters.sql.frontier import dead_letters as letters_room
from shared.domain.frontier.states import UrlState
from shared.domain.frontier.store_model import Changes, CommandRun, DeadLetterRow, LeaseRow, MessageDeadLetter
from shared.domain.ids import CrawlId, Term
from tests.support.database.store_tables import NOW_MS, OTHER, PARTITION, Tables, link, links

OnStore = Callable[..., None]

HOST = "a.example.com"


async def _buried(t: Tables, max_count: int = 500) -> LeaseRow:
    """URLs of the host given up as poison, each with its letter."""
    row = await t.lease(HOST, max_count)
    assert row is not None
    await t.settle(row, UrlState.FAILED, reason="poison")
    changes = Changes()
    for url in row.urls.values():
        changes.tallies[t.crawl_id, "failed", "poison"] += 1
        changes.dead_letters.append(DeadLetterRow(t.crawl_id, "url", NOW_MS, "5 grants ended", url=url.url))
    await t.apply(changes)
    return row


def _ids(t: Tables) -> list[int]:
    return [letter for (letter,) in t.rows("SELECT id FROM dead_letters ORDER BY id")]


def test_replayed_url_is_queued_with_fresh_attempts_without_dead_letter(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(*links(HOST, range(3), depth=2))
        await _buried(t, 2)
        first, second = _ids(t)
        assert await t.command("replay", letter=first, now_ms=NOW_MS + 5) == 1
        assert _ids(t) == [second]
        assert (await t.queue(HOST)).queued == 2
        assert await t.store.tallies(t.crawl_id) == {"failed": {"poison": 1}}
        fresh = "SELECT attempts, reason, lease_id FROM urls WHERE state = 0 AND rank > ?"
        assert t.rows(fresh, NOW_MS + 2 * 3_600_000) == [(0, None, None)]
        await t.command("replay", id="again", letter=first)
        assert (await t.queue(HOST)).queued == 2, "a letter that is gone is replayed no more"

    on_store(story)


def test_a_replay_of_what_is_no_longer_failed_only_takes_the_letter_away(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(*links(HOST, range(1)))
        await _buried(t)
        await t.command("retry_failed", id="r")
        (letter,) = _ids(t)
        await t.command("replay", letter=letter)
        assert _ids(t) == []
        assert (await t.queue(HOST)).queued == 1
        counters = await t.store.counters(t.crawl_id)
        assert (counters.queued, counters.failed, counters.url_drift(), counters.link_drift()) == (1, 0, 0, 0)

    on_store(story)


def test_all_letters_of_a_crawl_are_replayed_in_chunks_and_no_other_crawls(
    on_store: OnStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters_room, "_LETTERS_A_CHUNK", 3)

    async def story(t: Tables) -> None:
        other, _ = await t.store.put_crawl("other", "{}", NOW_MS)
        await t.found(*links(HOST, range(8)))
        await _buried(t)
        await t.bury(DeadLetterRow(other.crawl_id, "url", NOW_MS, "x", url=f"http://{HOST}/0"))
        await t.bury(DeadLetterRow(t.crawl_id, "discovery", NOW_MS, "a whole message", payload=b"m"))
        run = CommandRun("c1", t.crawl_id, "replay", {"letter": 0}, PARTITION)
        rest = await t.chunk(await t.accepted(run))
        assert rest is not None
        assert rest.after == _ids(t)[0] - 1, "the first three are gone"
        assert (await t.claim(2)).commands == (rest,)
        assert await t.run(rest) == 2, "another owner goes on with what is left"
        assert (await t.queue(HOST)).queued == 8
        kinds = t.rows("SELECT crawl_id, kind FROM dead_letters ORDER BY id")
        assert kinds == [(other.crawl_id, "url"), (t.crawl_id, "discovery")]
        assert t.value("SELECT outcome_seq FROM partitions WHERE partition = ?", PARTITION) == t.position.outcome_seq

    on_store(story)


def test_discarded_letters_leave_what_was_given_up_as_it_is(on_store: OnStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters_room, "_LETTERS_A_CHUNK", 2)

    async def story(t: Tables) -> None:
        await t.found(*links(HOST, range(3)))
        await _buried(t)
        await t.bury(DeadLetterRow(None, "outcome", NOW_MS, "of an unknown crawl", payload=b"m"))
        *ours, nobodys = _ids(t)
        await t.command("discard", id="one", letter=ours[0])
        assert _ids(t) == [*ours[1:], nobodys]
        await t.command("discard", id="all", letter=0)
        assert _ids(t) == [nobodys]
        await t.command("discard", id="last", letter=nobodys)
        assert _ids(t) == []
        assert t.value("SELECT count(*) FROM urls WHERE state = 4") == 3
        assert (await t.store.counters(t.crawl_id)).failed == 3

    on_store(story)


def test_a_letter_of_another_partition_is_not_touched(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.bury(DeadLetterRow(None, "outcome", NOW_MS, "x", payload=b"m"))
        (letter,) = _ids(t)
        other = Tables(t.store, t.at, t.crawl_id, (await t.store.claim(OTHER, Term(1))).fence)
        for kind in ("replay", "discard"):
            run = CommandRun(kind, CrawlId(0), kind, {"letter": letter}, OTHER)
            accepted = await other.accepted(run)
            assert accepted.through == letter
            assert await t.store.message_letters(replace(accepted, through=letter), 10) == []
            assert await other.chunk(replace(accepted, through=letter)) is None
        assert _ids(t) == [letter]

    on_store(story)


def test_messages_are_given_to_their_owner_in_order_and_forgotten_once_sent(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(link(f"http://{HOST}/"))
        await _buried(t)
        for payload in (b"one", b"two", b"three"):
            await t.bury(DeadLetterRow(t.crawl_id, "discovery", NOW_MS, "x", payload=payload))
        _, *messages = _ids(t)
        every = CommandRun("c", t.crawl_id, "replay", {"letter": 0}, PARTITION, through=messages[2])
        found = await t.store.message_letters(every, 2)
        assert found == [
            MessageDeadLetter(messages[0], "discovery", b"one"),
            MessageDeadLetter(messages[1], "discovery", b"two"),
        ]
        later = await t.store.message_letters(replace(every, after=messages[1]), 9)
        assert [letter.payload for letter in later] == [b"three"]
        single = replace(every, args={"letter": messages[2]})
        assert [letter.id for letter in await t.store.message_letters(single, 9)] == [messages[2]]
        run = await t.accepted(every)
        rest = await t.store.run_command(t.fence, run, NOW_MS, sent=messages[:2], upto=messages[1])
        t.fence = t.fence.next()
        assert rest == messages[1]
        assert [letter.payload for letter in await t.store.message_letters(every, 9)] == [b"three"]

    on_store(story)
