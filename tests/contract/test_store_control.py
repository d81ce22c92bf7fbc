"""The store's promises to those who control the cluster: epochs never fall, and nobody ends what has moved."""

from collections.abc import Callable

from shared.adapters.sql.frontier import purge_holds as holds
from shared.adapters.sql.frontier.store import SqlStore
from shared.domain.frontier.states import CrawlState, Position
from shared.domain.ids import Partition, Revision
from tests.support.database.store_tables import NOW_MS, PARTITION, Tables, link

OnStore = Callable[..., None]


def test_the_epoch_only_rises(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        assert await t.store.epoch() == 1
        assert await t.store.raise_epoch(5) == 5
        assert await t.store.raise_epoch(3) == 5
        assert await t.store.epoch() == 5

    on_store(story)


def test_partition_positions_exist_from_start_and_owners_move_theirs(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        assert await t.store.positions() == {Partition(p): Position() for p in range(8)}
        await t.found(link("http://a.test/"))
        positions = dict(await t.store.positions())
        assert positions.pop(PARTITION) == t.position != Position()
        assert set(positions.values()) == {Position()}

    on_store(story)


def test_a_crawl_advances_only_from_the_state_and_revision_that_were_seen(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        first, seeding, running = Revision(1), CrawlState.SEEDING, CrawlState.RUNNING
        assert not await t.store.advance_crawl(t.crawl_id, Revision(2), seeding, running, None, NOW_MS)
        assert not await t.store.advance_crawl(t.crawl_id, first, CrawlState.PAUSED, running, None, NOW_MS)
        assert await t.store.advance_crawl(t.crawl_id, first, seeding, running, None, NOW_MS + 1)
        assert not await t.store.advance_crawl(t.crawl_id, first, seeding, running, None, NOW_MS + 2)
        row = await t.store.crawl(t.crawl_id)
        assert row is not None
        assert (row.state, row.started_at_ms, row.finished_at_ms) == (running, NOW_MS + 1, None)

    on_store(story)


def test_leader_with_outdated_counters_does_not_end_crawl(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        running, finished = CrawlState.RUNNING, CrawlState.FINISHED
        await t.store.set_state(t.crawl_id, running, None, NOW_MS)
        seen = (await t.store.counters(t.crawl_id)).version
        await t.found(link("http://a.test/"))
        end = (t.crawl_id, Revision(1), running, finished, "complete", NOW_MS + 9)
        assert not await t.store.advance_crawl(*end, counted=seen)
        assert await t.store.advance_crawl(*end, counted=(await t.store.counters(t.crawl_id)).version)
        row = await t.store.crawl(t.crawl_id)
        assert row is not None
        assert (row.state, row.finished_reason, row.finished_at_ms) == (finished, "complete", NOW_MS + 9)

    on_store(story)


def test_hold_that_beats_for_over_a_day_is_kept_when_another_begins(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        assert isinstance(t.store, SqlStore)
        write, hour_ms = t.store.executor.write, 3600 * 1000
        await write(lambda c: holds.take(c, "long", NOW_MS))
        assert await write(lambda c: holds.beat(c, "long", NOW_MS + 20 * hour_ms))
        await write(lambda c: holds.take(c, "second", NOW_MS + 30 * hour_ms))
        assert await t.store.report_holds() == {"long": 2, "second": 1}
        await write(lambda c: holds.take(c, "third", NOW_MS + 45 * hour_ms))
        assert await t.store.report_holds() == {"second": 1, "third": 1}

    on_store(story)


def test_holds_beat_apart_and_those_of_dead_processes_are_removed(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        assert isinstance(t.store, SqlStore)
        write = t.store.executor.write
        await write(lambda c: holds.take(c, "dead", NOW_MS))
        await write(lambda c: holds.take(c, "a", NOW_MS + 1))
        assert await write(lambda c: holds.beat(c, "a", NOW_MS + 2))
        assert await t.store.report_holds() == {"dead": 1, "a": 2}
        await write(lambda c: holds.take(c, "b", NOW_MS + 24 * 3600 * 1000 + 1))
        assert await t.store.report_holds() == {"a": 2, "b": 1}
        await write(lambda c: holds.release(c, "a"))
        assert not await write(lambda c: holds.beat(c, "a", NOW_MS + 2)), "it is gone, and that is said"
        assert await t.store.report_holds() == {"b": 1}

    on_store(story)
