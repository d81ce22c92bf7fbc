"""The store's promises about seeds taken back: what was never fetched leaves the queue, and nothing else changes."""

from collections.abc import Callable

import pytest

from api.crawls import seed_places
from shared.adapters.sql.engine import chunks
from shared.domain.frontier import command_progress
from shared.domain.frontier.commands import SEED_DELETED
from shared.domain.frontier.states import COUNTED_AS_PAGE, UrlState
from shared.domain.frontier.store_model import Changes, CommandRun, DiscoveredLink, UrlChange
from tests.support.database.store_tables import NOW_MS, PARTITION, Tables, link, links
from tests.support.database.url_rows import URLS

OnStore = Callable[..., None]

HOST = "a.example.com"
OTHER_HOST = "b.example.com"
VIA = (4096, b"v" * 16)


def _places(*seeds: DiscoveredLink) -> list[list[str | bytes]]:
    return [[seed.host, seed.fingerprint] for seed in seeds]


async def _ended(t: Tables, seed: DiscoveredLink, state: UrlState) -> None:
    """The host's only queued URL, fetched: it ends in `state`."""
    row = await t.lease(HOST, 1)
    assert row is not None
    assert list(row.urls) == [seed.fingerprint]
    await t.settle(row, state, due_ms=NOW_MS + 60_000, reason=None if state is UrlState.DONE else "http_500")


def test_a_seed_that_was_never_fetched_is_excluded_and_one_that_was_stays(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        done, failed, waiting, queued, kept = links(HOST, ("done", "failed", "waiting", "queued", "kept"))
        for seed, state in ((done, UrlState.DONE), (failed, UrlState.FAILED), (waiting, UrlState.WAITING)):
            await t.found(seed)
            await _ended(t, seed, state)
        await t.found(queued, kept)
        assert await t.command("delete_seeds", all=False, places=_places(done, failed, waiting, queued)) == 1
        ends = {path: (t.url(seed)["state"], t.url(seed)["reason"]) for path, seed in (
            ("done", done), ("failed", failed), ("waiting", waiting), ("queued", queued), ("kept", kept),
        )}  # fmt: skip
        assert ends == {
            "done": (UrlState.DONE, None),
            "failed": (UrlState.FAILED, "http_500"),
            "waiting": (UrlState.EXCLUDED, SEED_DELETED),
            "queued": (UrlState.EXCLUDED, SEED_DELETED),
            "kept": (UrlState.QUEUED, None),
        }
        queue = await t.queue(HOST)
        assert (queue.queued, queue.waiting, queue.next_due_ms) == (1, 0, 0)
        counters = await t.store.counters(t.crawl_id)
        assert (counters.queued, counters.done, counters.failed, counters.excluded) == (1, 1, 1, 2)
        assert (counters.url_drift(), counters.link_drift()) == (0, 0)
        assert (await t.store.tallies(t.crawl_id))["excluded"] == {SEED_DELETED: 2}

    on_store(story)


def test_page_queued_for_refetch_stays_page_and_leased_url_stays_leased(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        page, out = links(HOST, ("page", "out"))
        await t.found(page)
        row = await t.lease(HOST, 1)
        assert row is not None
        again = UrlChange(
            t.crawl_id, row.host_id, page.fingerprint, UrlState.QUEUED, NOW_MS, 0, COUNTED_AS_PAGE, "depth"
        )
        changes = Changes(urls=[again], freed=[row.lease_id])
        queue, counters = changes.queue(t.crawl_id, row.host_id), changes.counters[t.crawl_id]
        queue.leased, queue.queued, counters["leased"], counters["queued"] = -1, 1, -1, 1
        await t.apply(changes)
        await t.command("delete_seeds", id="p", all=False, places=_places(page))
        assert (t.url(page)["state"], t.url(page)["reason"]) == (UrlState.DONE, None)
        await t.found(out)
        await t.lease(HOST)
        await t.command("delete_seeds", id="o", all=False, places=_places(out))
        assert t.url(out)["state"] == UrlState.LEASED
        assert (await t.store.counters(t.crawl_id)).excluded == 0

    on_store(story)


def test_what_a_page_led_to_is_no_seed_and_what_nobody_knows_is_no_error(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        found = link(f"http://{HOST}/found", 1, via=VIA)
        await t.found(found)
        await t.command("delete_seeds", all=False, places=_places(found, *links("nobody.example.com", range(2))))
        assert t.url(found)["state"] == UrlState.QUEUED
        await t.command("delete_seeds", id="all", all=True, places=[])
        assert t.url(found)["state"] == UrlState.QUEUED

    on_store(story)


def test_all_but_the_specs_seeds_are_deleted_in_chunks_that_may_start_over(
    on_store: OnStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_progress, "HOSTS_A_CHUNK", 2)

    async def story(t: Tables) -> None:
        kept = [link(f"http://{HOST}/1"), link(f"http://{HOST}/2")]
        hosts = [HOST, OTHER_HOST, "c.example.com", "d.example.com", "e.example.com"]
        for host in hosts:
            await t.found(*links(host, range(4)))
        run = CommandRun("c1", t.crawl_id, "delete_seeds", {"all": True, "places": _places(*kept)}, PARTITION)
        rest = await t.chunk(await t.accepted(run))
        assert (await t.claim(2)).commands == (rest,)
        assert await t.run(rest) >= 2
        left = t.rows("SELECT fingerprint FROM urls WHERE state = 0 ORDER BY 1")
        assert [bytes(key) for (key,) in left] == sorted(seed.fingerprint for seed in kept)
        assert (await t.store.counters(t.crawl_id)).excluded == 18

    on_store(story)


def test_the_seeds_of_one_host_are_deleted_in_chunks_of_bounded_size(
    on_store: OnStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "ROWS_A_CHUNK", 6)
    monkeypatch.setattr(chunks, "CHUNK_S", 60.0)

    async def story(t: Tables) -> None:
        kept = link(f"http://{OTHER_HOST}/3")
        for host in (HOST, OTHER_HOST):
            await t.found(*links(host, range(10)))
        run = CommandRun("c1", t.crawl_id, "delete_seeds", {"all": True, "places": _places(kept)}, PARTITION)
        rest = await t.chunk(await t.accepted(run))
        assert (await t.store.counters(t.crawl_id)).excluded == 6
        assert (await t.claim(2)).commands == (rest,)
        assert await t.run(rest) == 3, "of 14 seeds that are left"
        assert t.rows(f"SELECT url FROM {URLS} u WHERE state = 0") == [(kept.url,)]
        assert (await t.store.counters(t.crawl_id)).excluded == 19

    on_store(story)


def test_commands_between_fingerprints_do_together_what_one_for_all_does(
    on_store: OnStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "ROWS_A_CHUNK", 3)
    monkeypatch.setattr(seed_places, "MESSAGE_BYTES", 90)

    async def story(t: Tables) -> None:
        for host in (HOST, OTHER_HOST):
            await t.found(*links(host, range(20)))
        kept = [*links(HOST, range(5)), *links(OTHER_HOST, range(3, 7))]
        parts = seed_places.between([(seed.host, seed.fingerprint) for seed in kept])
        assert len(parts) > 3
        for n, args in enumerate(parts):
            between = {name: args[name] for name in ("places", "above", "upto")}
            await t.command("delete_seeds_between", id=f"c{n}", now_ms=NOW_MS, **between)
        left = t.rows("SELECT fingerprint FROM urls WHERE state = 0")
        assert sorted(bytes(key) for (key,) in left) == sorted(seed.fingerprint for seed in kept)
        assert (await t.store.counters(t.crawl_id)).excluded == 31

    on_store(story)


def test_any_number_of_the_specs_seeds_may_be_on_one_host(on_store: OnStore) -> None:
    """More than a statement may have parameters."""

    async def story(t: Tables) -> None:
        await t.found(link(f"http://{HOST}/uploaded"), link(f"http://{HOST}/7"))
        kept = links(HOST, range(40_000))
        await t.command("delete_seeds", all=True, places=_places(*kept))
        assert t.rows(f"SELECT url FROM {URLS} u WHERE state = 0") == [(f"http://{HOST}/7",)]

    on_store(story)


def test_many_named_seeds_go_in_chunks(on_store: OnStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_progress, "PLACES_A_CHUNK", 4)

    async def story(t: Tables) -> None:
        seeds = [*links(HOST, range(5)), *links(OTHER_HOST, range(5))]
        await t.found(*seeds)
        assert await t.command("delete_seeds", all=False, places=_places(*seeds)) == 3
        assert t.value("SELECT count(*) FROM urls WHERE reason = ?", SEED_DELETED) == 10

    on_store(story)


def test_a_deleted_seed_is_queued_again_by_a_seed_and_not_by_a_link(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        seed = link(f"http://{HOST}/")
        await t.found(seed)
        await t.command("delete_seeds", id="d", all=False, places=_places(seed))
        await t.found(link(seed.url, 1, via=VIA), link(seed.url, 0, hops=1, via=VIA))
        assert t.url(seed)["state"] == UrlState.EXCLUDED, "found late or early, it stays out"
        await t.found(link(seed.url, 0, hops=1, via=VIA), link(seed.url, priority=7), now_ms=NOW_MS + 1)
        row = t.url(seed)
        assert (row["state"], row["reason"], row["attempts"]) == (UrlState.QUEUED, None, 0)
        counters = await t.store.counters(t.crawl_id)
        assert (counters.discovered, counters.queued, counters.excluded) == (1, 1, 0)
        assert (counters.known, counters.url_drift(), counters.link_drift()) == (4, 0, 0)
        assert "excluded" not in await t.store.tallies(t.crawl_id)
        leased = await t.lease(HOST)
        assert leased is not None
        assert leased.urls[seed.fingerprint].priority == 7

    on_store(story)


@pytest.mark.parametrize("places", [[["a.test"]], [["a.test", "text"]], ["a.test"]])
def test_a_deletion_of_what_is_no_place_is_no_command(on_store: OnStore, places: list[object]) -> None:
    async def story(t: Tables) -> None:
        run = CommandRun("c1", t.crawl_id, "delete_seeds", {"all": False, "places": places}, PARTITION)
        with pytest.raises(ValueError, match="places"):
            await t.accept(run)

    on_store(story)
