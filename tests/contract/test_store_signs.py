"""The store's promises about signs of change: pages with a right one are due sooner, and counts hold."""

from collections.abc import Callable

from msgspec.structs import replace

from shared.domain.crawl.recrawl_rules import CompiledRecrawl
from shared.domain.crawl.recrawl_spec import Recrawl, RecrawlPolicy
from shared.domain.frontier.page_history import decoded
from shared.domain.frontier.page_signs import PageSigns
from shared.domain.frontier.recrawl import SignalTrust
from shared.domain.frontier.recrawl_pages import PAGES_WITH_SIGNS, RATES, SIGN_SHARE_SUM, AdaptiveSchedule, RecrawlPages
from shared.domain.frontier.signals import HostSignals, signals_of
from shared.domain.frontier.states import UrlKind, UrlState, kind_flags
from shared.domain.frontier.store_model import Changes, FetchRow, UrlChange
from tests.contract.test_store_revisits import DAY_MS, HOST, LATER_MS, again, pages
from tests.support.database.store_tables import NOW_MS, Tables, books, link

OnStore = Callable[..., None]

READ_MS = NOW_MS + 2 * 3_600_000
SPEC = Recrawl(policy=RecrawlPolicy.ADAPTIVE, min_s=3600, max_s=30 * 86_400, requests_per_day=10)
RULES = CompiledRecrawl(SPEC)
RIGHT = HostSignals(SignalTrust(0.0, 30.0, 0.0, 30.0), NOW_MS)


def rules() -> PageSigns:
    return PageSigns(RULES, AdaptiveSchedule(RecrawlPages(10, RULES.of(""), {}, NOW_MS), 1.0, READ_MS))


async def trusted(t: Tables) -> None:
    await t.apply(Changes(signals={(t.crawl_id, t.host_id(HOST)): RIGHT.encoded()}))


def test_trusted_sign_brings_one_page_forward_and_its_queue(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await pages(t, due_ms=NOW_MS + 20 * DAY_MS)
        await trusted(t)
        changed, old = (link(f"http://{HOST}/{n}", 1, via=(t.host_id(HOST), b"s" * 16)) for n in (1, 2))
        sent = replace(changed, lastmod=NOW_MS // 1000 + 60), replace(old, lastmod=NOW_MS // 1000 - 60)
        found = await t.found_batch(t.batch(*sent), now_ms=READ_MS, signs={t.crawl_id: rules()})
        due = t.url(changed)["rank"]
        assert NOW_MS + 3_600_000 <= due < READ_MS + 3_600_000
        assert t.url(old)["rank"] == NOW_MS + 20 * DAY_MS
        [row] = await t.store.queue_rows([(t.crawl_id, t.host_id(HOST))])
        assert (row.next_due_ms, row.found_ms) == (due, READ_MS)
        assert signals_of(row.signals) == RIGHT
        assert found.due == {(t.crawl_id, t.host_id(HOST)): due}
        counts = await t.store.page_counts(t.crawl_id, t.fence.partition)
        assert (sum(counts[RATES].values()), sum(counts[SIGN_SHARE_SUM].values()) > 0) == (1, True)
        assert counts[PAGES_WITH_SIGNS] == dict.fromkeys(counts[SIGN_SHARE_SUM], 1)
        assert {(kind, bucket): n for (_, kind, bucket), n in found.counts.items()} == {
            (kind, bucket): n
            for kind in (RATES, SIGN_SHARE_SUM, PAGES_WITH_SIGNS)
            for bucket, n in counts[kind].items()
        }
        leased = await again(t, 5, now_ms=max(due, READ_MS))
        assert leased is not None
        [url] = leased.urls.values()
        assert url.last is not None
        assert (url.url, url.last.history.signalled) == (changed.url, True)
        assert books(t.at) == []

    on_store(story)


def test_sign_changes_no_due_time_without_trust_and_nothing_elsewhere(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await pages(t)
        sent = [replace(link(f"http://{HOST}/{n}", 1), lastmod=NOW_MS // 1000 + 60) for n in range(3)]
        for signs in ({}, {t.crawl_id: None}):
            await t.found_batch(t.batch(*sent), now_ms=READ_MS, signs=signs)
            assert {decoded(bytes(each), 0).signalled for (each,) in t.rows("SELECT recrawl FROM fetches")} == {False}
        for _ in range(2):
            found = await t.found_batch(t.batch(*sent), now_ms=READ_MS, signs={t.crawl_id: rules()})
            assert (found.due, found.listing) == ({}, set())
        assert {decoded(bytes(each), 0).signalled for (each,) in t.rows("SELECT recrawl FROM fetches")} == {True}
        assert {rank for (rank,) in t.rows("SELECT rank FROM urls")} == {LATER_MS}
        assert books(t.at) == []

    on_store(story)


def test_new_url_of_a_sitemap_is_recorded_for_the_host_of_the_sitemap(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await pages(t)
        via = (t.host_id(HOST), b"s" * 16)
        await t.found_batch(t.batch(replace(link(f"http://{HOST}/8", 1, via=via), kind=UrlKind.LISTED)), now_ms=READ_MS)
        assert t.rows("SELECT found_ms FROM queues") == [(0,)], "the crawl fetches its pages once"
        listed = replace(link(f"http://{HOST}/9", 1, via=via), kind=UrlKind.LISTED)
        await t.found_batch(t.batch(listed), now_ms=READ_MS, signs={t.crawl_id: None})
        assert t.rows("SELECT found_ms FROM queues") == [(READ_MS,)]

    on_store(story)


def test_sitemap_that_waits_is_leased_with_its_history(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        sitemap = replace(link(f"http://{HOST}/sitemap.xml", 0), kind=UrlKind.HOST_SITEMAP)
        await t.found(sitemap)
        row = await t.lease(HOST)
        assert row is not None
        place = (t.crawl_id, t.host_id(HOST), sitemap.fingerprint)
        history = replace(decoded(None, NOW_MS), compared=3, changes=0)
        flags = kind_flags(UrlKind.HOST_SITEMAP) | 8
        changes = Changes(freed=[row.lease_id])
        changes.urls.append(UrlChange(*place, UrlState.WAITING, LATER_MS, 0, flags, "new"))
        changes.fetches.append(FetchRow(*place, NOW_MS, 200, False, "sitemap", digest=b"d" * 20, etag='"1"',
                                        recrawl=history.encoded()))  # fmt: skip
        queue, counters = changes.queue(*place[:2]), changes.counters[t.crawl_id]
        queue.leased, queue.waiting, queue.next_due_ms = -1, 1, LATER_MS
        counters["leased"], counters["queued"], counters["revisits"] = -1, 1, 1
        await t.apply(changes)
        assert await again(t, 5, now_ms=LATER_MS - 1) is None
        leased = await again(t, 5)
        assert leased is not None
        [url] = leased.urls.values()
        assert url.last is not None
        assert (url.last.etag, url.last.history.quiet) == ('"1"', 3)
        assert books(t.at) == []

    on_store(story)
