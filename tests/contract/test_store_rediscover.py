"""The store's promises about a wider scope: which pages are read, where a chunk goes on, what is queued."""

from collections.abc import Callable, Iterable

import pytest
from msgspec.structs import replace

from shared.domain.archive.model import RecordLocation
from shared.domain.crawl import wider_scope
from shared.domain.crawl.spec import CrawlSpec, Scope, ScopeMode, Seed, encode_spec
from shared.domain.crawl.wider_scope import ReadablePage, Rediscovered
from shared.domain.frontier.states import COUNTED_AS_PAGE, RETRY, REVISIT, UrlState
from shared.domain.frontier.store_model import Changes, CommandRun, DiscoveredLink, FetchRow
from shared.domain.ids import Fingerprint, HostId
from tests.support.database.store_tables import NOW_MS, Tables, books, links

OnStore = Callable[..., None]

HOST, OTHER = "a.example.com", "b.example.com"


def location(n: int) -> RecordLocation:
    return RecordLocation("1-a.warc.gz", n * 100, 100)


async def stored(t: Tables, urls: Iterable[DiscoveredLink], left_out: str | None, *, record: bool = True) -> None:
    """Fetch the URLs: all are done, with the links that their pages leave out."""
    pages = list(urls)
    await t.found(*pages)
    row = await t.lease(pages[0].host)
    assert row is not None
    await t.settle(row, UrlState.DONE)
    fetches = []
    for n, page in enumerate(pages):
        row_of = FetchRow(*(t.crawl_id, t.host_id(page.host), page.fingerprint), NOW_MS, 200, True, left_out=left_out)
        at = location(n)
        recorded = replace(row_of, segment=at.segment, offset=at.offset, length=at.length)
        fetches.append(recorded if record else row_of)
    await t.apply(Changes(fetches=fetches))


async def accepted(t: Tables, id: str = "r", revision: int = 2) -> CommandRun:
    return await t.accepted(CommandRun(id, t.crawl_id, "rediscover", {"revision": revision}, t.fence.partition))


async def applied(t: Tables, run: CommandRun, done: Rediscovered) -> CommandRun | None:
    rest = await t.store.run_command(t.fence, run, NOW_MS, found=done)
    t.fence = t.fence.next()
    return None if rest is None else replace(run, after=rest)


async def walked(t: Tables, run: CommandRun | None) -> list[ReadablePage]:
    """Read all pages of a command, chunk by chunk."""
    pages: list[ReadablePage] = []
    while run is not None:
        some = await t.store.readable_pages(run)
        pages += some.pages
        run = await applied(t, run, Rediscovered(len(some.pages), 0, (), some.rest))
    return pages


async def tallies(t: Tables) -> dict[str, int]:
    return (await t.store.tallies(t.crawl_id)).get("rediscovered", {})


def place(t: Tables, page: DiscoveredLink) -> tuple[HostId, Fingerprint]:
    return t.host_id(page.host), page.fingerprint


def test_pages_whose_links_the_scope_left_out_are_read_and_no_others(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        read, unlisted = links(HOST, range(3)), links(OTHER, range(2))
        await stored(t, read, "depth 2;nofollow 1")
        await stored(t, unlisted, "other_host 1;unlisted 7")
        await stored(t, links("c.example.com", range(2)), "nofollow 1;robots 2")
        await stored(t, links("d.example.com", range(2)), None)
        unstored = links("e.example.com", range(2))
        await stored(t, unstored, "depth 1", record=False)
        await t.found(*links("f.example.com", range(2)))
        pages = await walked(t, await accepted(t))
        assert {(page.fingerprint, page.unlisted) for page in pages} == {
            *((each.fingerprint, False) for each in (*read, *unstored)),
            *((each.fingerprint, True) for each in unlisted),
        }
        without_record = {page.fingerprint for page in pages if page.location is None}
        assert without_record == {each.fingerprint for each in unstored}, "media.stored kept them out of the archive"
        assert {page.url for page in pages} == {each.url for each in (*read, *unlisted, *unstored)}
        by_key = {page.fingerprint: page for page in pages}
        assert [by_key[each.fingerprint].location for each in read] == [location(n) for n in range(3)]
        assert await tallies(t) == {"pages": 7}
        assert await t.store.crawls_with_commands([t.crawl_id]) == set()

    on_store(story)


def test_chunk_is_bounded_and_the_next_one_goes_on_behind_it(
    on_store: OnStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.adapters.sql.frontier.rediscover.PAGES_A_CHUNK", 4)

    async def story(t: Tables) -> None:
        urls = [*links(HOST, range(6)), *links(OTHER, range(5))]
        await stored(t, urls[:6], "depth 1")
        await stored(t, urls[6:], "depth 1")
        run = await accepted(t)
        first = await t.store.readable_pages(run)
        assert len(first.pages) == 4
        assert first == await t.store.readable_pages(run), "until it is applied it is the same chunk"
        pages = await walked(t, run)
        assert len(pages) == 11
        assert {page.fingerprint for page in pages} == {each.fingerprint for each in urls}

    on_store(story)
    assert wider_scope.PAGES_A_CHUNK == 100


def test_chunk_that_changes_nothing_still_changes_the_version(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await stored(t, links(HOST, range(1)), None)
        run = await accepted(t)
        before = await t.store.counters(t.crawl_id)
        assert await applied(t, run, Rediscovered(0, 0, (), None)) is None
        after = await t.store.counters(t.crawl_id)
        assert after.version > before.version
        assert replace(after, version=before.version) == before

    on_store(story)


def test_pages_with_unlisted_links_are_queued_again_whatever_they_wait_for(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        done, waits = links(HOST, range(2)), links(OTHER, range(1))
        await stored(t, done, "depth 1;unlisted 1")
        await t.found(*waits)
        row = await t.lease(OTHER)
        assert row is not None
        for url in row.urls.values():
            url.flags = COUNTED_AS_PAGE | REVISIT
        await t.settle(row, UrlState.WAITING, due_ms=NOW_MS + 5)
        await t.apply(Changes(counters={t.crawl_id: {"revisits": 1}}))
        again = [place(t, each) for each in (*done, *waits)]
        assert await applied(t, await accepted(t), Rediscovered(3, 9, again, None)) is None
        assert [t.url(each)["state"] for each in (*done, *waits)] == [UrlState.QUEUED] * 2 + [UrlState.WAITING]
        waiting = t.url(waits[0])
        assert (waiting["flags"], waiting["rank"]) == (COUNTED_AS_PAGE | REVISIT | RETRY, NOW_MS), "it needs no budget"
        counters = await t.store.counters(t.crawl_id)
        assert (counters.queued, counters.done, counters.revisits, counters.retries) == (3, 0, 0, 1)
        assert (counters.url_drift(), counters.link_drift()) == (0, 0)
        assert books(t.at) == []
        assert await tallies(t) == {"pages": 3, "links": 9, "queued_again": 3}
        leased = await t.lease(HOST)
        assert leased is not None
        assert await applied(t, await accepted(t, "r2"), Rediscovered(1, 0, again, None)) is None
        assert (await t.store.counters(t.crawl_id)).leased == 2, "what is leased or queued stays"
        assert {key: n for key, n in (await tallies(t)).items() if n} == {"pages": 1}, "they count the last scope"

    on_store(story)


def test_later_command_ends_an_earlier_one_of_its_kind_only(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.accepted(CommandRun("s", t.crawl_id, "rescope", {"revision": 2}, t.fence.partition))
        await accepted(t, "r1")
        await accepted(t, "r2")
        assert [run.id for run in (await t.claim(50)).commands] == ["s", "r2"]
        assert t.rows("SELECT id FROM commands") == [("r1",)]

    on_store(story)


@pytest.mark.parametrize("kind", ["rescope", "rediscover"])
def test_late_message_of_an_earlier_command_changes_nothing(on_store: OnStore, kind: str) -> None:
    async def story(t: Tables) -> None:
        await stored(t, links(HOST, range(3)), "depth 1")
        args: dict[str, object] = {"revision": 3}
        await t.accepted(CommandRun("later", t.crawl_id, kind, args, t.fence.partition))
        assert await t.accept(CommandRun("early", t.crawl_id, kind, {"revision": 2}, t.fence.partition)) is None
        assert t.rows("SELECT id FROM commands") == [("early",)], "its message is applied"
        assert [(run.id, run.args) for run in (await t.claim(50)).commands] == [("later", args)]

    on_store(story)


def test_pages_fetched_under_the_wider_scope_are_not_read(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        early, late = links(HOST, range(2)), links(OTHER, range(3))
        await stored(t, early, "depth 1;unlisted 1;scope 2")
        await stored(t, late, "depth 1;unlisted 1;scope 3")
        pages = await walked(t, await accepted(t, revision=3))
        assert {page.fingerprint for page in pages} == {each.fingerprint for each in early}
        assert all(page.unlisted for page in pages)
        pages = await walked(t, await accepted(t, id="later", revision=4))
        assert len(pages) == 5

    on_store(story)


def test_widened_revision_is_the_newest_that_may_admit_more(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        async def put(scope: Scope) -> int | None:
            spec = encode_spec(CrawlSpec(name="w", seeds=(Seed(url=f"http://{HOST}/"),), scope=scope)).decode()
            row, _ = await t.store.put_crawl("widened", spec, NOW_MS)
            return await t.store.widened_revision(row.crawl_id)

        assert await put(Scope(max_depth=2)) is None
        assert await put(Scope(max_depth=1)) is None
        assert await put(Scope(max_depth=3)) == 3
        assert await put(Scope(max_depth=2)) == 3
        assert await put(Scope(max_depth=2, mode=ScopeMode.ANY)) == 5

    on_store(story)
