"""The store's promises about stored pages: due ones are leased again, counts hold, versions and changes are kept."""

import json
from collections.abc import Callable

import pytest

from shared.domain.crawl.exclusions import OWNER
from shared.domain.crawl.spec import Budget
from shared.domain.frontier.commands import CommandKind
from shared.domain.frontier.page_history import ChangeKind, PageHistory, change_of, unpacked
from shared.domain.frontier.revisits import LastFetch, RevisitRow, Superseded
from shared.domain.frontier.states import COUNTED_AS_PAGE, RETRY, REVISIT, UrlState, queued_as
from shared.domain.frontier.store_model import Changes, CommandRun, FetchRow, LeaseRequest, LeaseRow, UrlChange
from shared.domain.ids import CrawlId, LeaseId, Revision, numbered
from tests.support.database.store_tables import NOW_MS, PARTITION, Tables, link, links

OnStore = Callable[..., None]

HOST = "a.example.com"
DAY_MS = 86_400_000
LATER_MS = NOW_MS + DAY_MS
PAGE = COUNTED_AS_PAGE | REVISIT
COUNTS = "SELECT queued, leased, done, pages, retries, revisits, revisiting FROM crawl_counters"


def spec(**sections: object) -> str:
    return json.dumps({"seeds": [{"url": f"http://{HOST}/"}], **sections})


async def again(
    t: Tables, revisits: int, new: int = 0, *, now_ms: int = LATER_MS, budgets: dict[CrawlId, Budget] | None = None
) -> LeaseRow | None:
    """Lease up to so many stored pages that are due, and new URLs."""
    lease_id = LeaseId(numbered(t.next_lease, t.fence.partition))
    t.next_lease += 1
    request = LeaseRequest(
        lease_id, t.crawl_id, Revision(1), t.host_id(HOST), HOST, 0, "default", 0, new, revisits, revisits + new, True
    )
    rows = await t.store.dispatch(t.fence, t.next_lease, [request], now_ms, budgets or {})
    t.fence = t.fence.next()
    return rows[0] if rows else None


async def stored(t: Tables, row: LeaseRow, *, due_ms: int = LATER_MS, flags: int = PAGE, attempts: int = 0) -> None:
    """Store a page for every URL of a lease, to be fetched again at `due_ms`."""
    changes = Changes(freed=[row.lease_id], at_ms=NOW_MS)
    queue, counters = changes.queue(row.crawl_id, row.host_id), changes.counters[row.crawl_id]
    for key, url in row.urls.items():
        place = (row.crawl_id, row.host_id, key)
        changes.urls.append(UrlChange(*place, UrlState.WAITING, due_ms, attempts, flags, "new"))
        history = PageHistory(checked_ms=NOW_MS).encoded()
        changes.fetches.append(
            FetchRow(*place, NOW_MS, 200, True, size=9, digest=b"d" * 20, segment="s", offset=1, length=2,
                     etag='"1"', recrawl=history)
        )  # fmt: skip
        changes.page_changes.setdefault(row.crawl_id, []).append(change_of(ChangeKind.NEW, row.host_id, key, 1))
        new = not url.flags & COUNTED_AS_PAGE
        counters["leased"] -= 1
        counters["revisiting"] -= bool(url.flags & REVISIT)
        counters["queued"] += 1
        counters["pages"] += new
        counters[queued_as(flags) or "new"] += 1
        queue.leased -= 1
        queue.waiting += 1
        queue.pages += new
    queue.next_due_ms = due_ms
    await t.apply(changes)


async def pages(t: Tables, n: int = 3, *, due_ms: int = LATER_MS) -> LeaseRow:
    await t.found(*links(HOST, range(n), depth=1))
    row = await t.lease(HOST)
    assert row is not None
    await stored(t, row, due_ms=due_ms)
    return row


def test_due_pages_are_leased_with_their_last_fetch_and_before_new_urls(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        first = await pages(t)
        await t.found(link(f"http://{HOST}/new", 1))
        assert t.rows(COUNTS) == [(4, 0, 0, 3, 0, 3, 0)]
        assert await again(t, 5, now_ms=LATER_MS - 1) is None, "nothing is due yet"
        row = await again(t, 2, 1)
        assert row is not None
        assert [bool(row.urls[key].flags & REVISIT) for key in row.order].count(True) == 2
        assert t.rows(COUNTS) == [(1, 3, 0, 3, 0, 1, 2)]
        queue = await t.queue(HOST)
        assert (queue.queued, queue.waiting, queue.leased, queue.next_due_ms) == (0, 1, 3, LATER_MS)
        known = next(row.urls[key] for key in row.order if row.urls[key].flags & REVISIT)
        assert known.last == LastFetch(NOW_MS, b"d" * 20, '"1"', None, PageHistory(checked_ms=NOW_MS))
        (loaded,) = (await t.claim(2)).leases
        assert loaded == row, "a new owner knows what the pages are compared with"
        assert set(first.order) >= {key for key in row.order if row.urls[key].last}

    on_store(story)


def test_refresh_leaves_pages_that_become_due_later_but_no_retry(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await pages(t, 2)
        row = await again(t, 1)
        assert row is not None
        await stored(t, row, due_ms=LATER_MS + 5, flags=PAGE | RETRY, attempts=1)
        await t.found(link(f"http://{HOST}/late", 1))
        new = await t.lease(HOST)
        assert new is not None
        await stored(t, new, due_ms=LATER_MS + 5)
        request = LeaseRequest(
            LeaseId(numbered(t.next_lease, t.fence.partition)), t.crawl_id, Revision(1), t.host_id(HOST), HOST, 0,
            "default", 0, 0, 9, 9, True, LATER_MS,
        )  # fmt: skip
        [taken] = await t.store.dispatch(t.fence, t.next_lease + 1, [request], LATER_MS + 10, {})
        t.fence = t.fence.next()
        assert len(taken.order) == 2
        assert set(taken.order).isdisjoint(new.order)

    on_store(story)


def test_pages_that_are_fetched_again_use_up_no_budget(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await pages(t)
        await t.found(*links(HOST, range(10, 20), depth=1))
        budgets = {t.crawl_id: Budget(max_pages=5)}
        row = await again(t, 3, 9, budgets=budgets)
        assert row is not None
        assert len(row.order) == 5, "three revisits, and two new pages up to the limit"
        assert await again(t, 3, 9, budgets=budgets) is None

    on_store(story)


def test_retry_of_a_page_counts_as_one_and_is_leased_when_due(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await pages(t, 1)
        row = await again(t, 1)
        assert row is not None
        await stored(t, row, due_ms=LATER_MS + 5, flags=PAGE | RETRY, attempts=1)
        assert t.rows(COUNTS) == [(1, 0, 0, 1, 1, 0, 0)]
        assert await t.store.waits_for_retry(t.crawl_id)
        taken = await again(t, 1, now_ms=LATER_MS + 5)
        assert not await t.store.waits_for_retry(t.crawl_id)
        assert taken is not None
        assert t.rows(COUNTS) == [(0, 1, 0, 1, 0, 0, 1)]
        assert next(iter(taken.urls.values())).attempt == 2

    on_store(story)


def test_retry_of_a_new_url_is_no_retry_of_a_stored_page(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await pages(t, 1)
        await t.found(link(f"http://{HOST}/new", 1))
        new = await t.lease(HOST)
        assert new is not None
        await stored(t, new, flags=RETRY, attempts=1)
        assert not await t.store.waits_for_retry(t.crawl_id)

    on_store(story)


def test_changed_page_keeps_its_earlier_versions_up_to_the_limit(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        row = await pages(t, 1)
        (key,) = row.order
        place = (t.crawl_id, row.host_id, key)
        for version in range(1, 5):
            fetched = FetchRow(*place, NOW_MS + version, 200, True, segment=f"s{version}", offset=1, length=2,
                               recrawl=PageHistory(version=version + 1).encoded())  # fmt: skip
            superseded = Superseded(*place, version, version + 1 - 3)
            await t.apply(Changes(superseded=[superseded], fetches=[fetched], at_ms=NOW_MS + version))
        assert t.rows("SELECT version, segment, at_ms FROM page_versions ORDER BY version") == [
            (3, "s2", NOW_MS + 2), (4, "s3", NOW_MS + 3),
        ]  # fmt: skip
        assert t.value("SELECT segment FROM fetches") == "s4"

    on_store(story)


def test_unchanged_page_keeps_its_row_and_takes_new_validators(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        row = await pages(t, 1)
        place = (t.crawl_id, row.host_id, row.order[0])
        history = PageHistory(compared=1, checked_ms=LATER_MS)
        await t.apply(Changes(revisited=[RevisitRow(*place, history.encoded(), '"2"', None)]))
        found = t.rows("SELECT at_ms, segment, etag, recrawl, history FROM fetches")
        assert [(*rest, bytes(recrawl)) for *rest, recrawl, _ in found] == [(NOW_MS, "s", '"2"', history.encoded())]
        assert found[0][-1] is None, "an unchanged page adds no line to the history"

    on_store(story)


def test_leased_page_has_the_reason_that_keeps_it_out_of_lists(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        row = await pages(t, 2)
        place = (t.crawl_id, row.host_id, row.order[0])
        recrawl = PageHistory(checked_ms=NOW_MS).encoded()
        hidden = FetchRow(*place, NOW_MS + 1, 200, False, "noindex", digest=b"d" * 20, segment="s", recrawl=recrawl)
        await t.apply(Changes(fetches=[hidden]))
        again_row = await again(t, 2)
        assert again_row is not None
        reasons = {key: url.last.reason for key, url in again_row.urls.items() if url.last is not None}
        assert reasons == {row.order[0]: "noindex", row.order[1]: ""}

    on_store(story)


def test_log_of_changes_has_a_row_for_each_transaction_in_order(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        row = await pages(t)
        entry = change_of(ChangeKind.GONE, row.host_id, row.order[0], 1)
        await t.apply(Changes(page_changes={t.crawl_id: [entry]}, at_ms=NOW_MS))
        logged = t.rows("SELECT at_ms, number, entries FROM page_changes ORDER BY at_ms, partition, number")
        assert [(at_ms, len(list(unpacked(bytes(entries))))) for at_ms, _, entries in logged] == [
            (NOW_MS, 3), (NOW_MS, 1),
        ]  # fmt: skip
        assert list(unpacked(bytes(logged[1][2]))) == [entry]
        assert logged[0][1] < logged[1][1] == t.fence.version

    on_store(story)


def test_spent_host_budget_excludes_new_urls_and_no_stored_page(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        row = await pages(t)
        await t.found(*links(HOST, range(10, 14), depth=1))
        await t.apply(Changes(give_up=[(t.crawl_id, row.host_id, UrlState.EXCLUDED, "max_pages_per_host")]))
        assert t.rows(COUNTS) == [(3, 0, 0, 3, 0, 3, 0)]
        await t.apply(Changes(give_up=[(t.crawl_id, row.host_id, UrlState.FAILED, "host_unreachable")]))
        assert t.rows(COUNTS) == [(0, 0, 0, 3, 0, 0, 0)]

    on_store(story)


def test_page_found_nearer_leaves_the_waiting_pages_to_be_read_again(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await pages(t)
        found = await t.found(link(f"http://{HOST}/1", 0), max_depth=3)
        assert sum(found.queues.values()) == 1
        assert t.rows(COUNTS) == [(3, 0, 0, 3, 0, 2, 0)]
        queue = await t.queue(HOST)
        assert (queue.queued, queue.waiting) == (1, 2)
        taken = await again(t, 0, 9)
        assert taken is not None
        assert [url.flags & REVISIT for url in taken.urls.values()] == [0]
        assert [url.last is not None for url in taken.urls.values()] == [True], "it is compared all the same"

    on_store(story)


def test_page_found_nearer_is_leased_though_the_budget_is_spent(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await pages(t)
        await t.found(*links(HOST, range(10, 20), depth=1))
        done = await t.lease(HOST, 1)
        assert done is not None
        await t.settle(done, UrlState.DONE, pages=1)
        await t.apply(Changes(urls=[UrlChange(t.crawl_id, done.host_id, done.order[0], UrlState.DONE, 0, 0, 1, None)]))
        before = t.rows(COUNTS)
        nearer = t.batch(link(f"http://{HOST}/1", 0), link(done.urls[done.order[0]].url, 0))
        found = await t.found_batch(nearer, max_depth=3, now_ms=NOW_MS + 5, signs={t.crawl_id: None})
        assert (sum(found.queues.values()), found.due) == (0, {(t.crawl_id, t.host_id(HOST)): NOW_MS + 5})
        assert before == [(12, 0, 1, 4, 0, 3, 0)]
        assert t.rows(COUNTS) == [(13, 0, 0, 4, 2, 2, 0)]
        queue = await t.queue(HOST)
        assert (queue.queued, queue.waiting, queue.next_due_ms) == (9, 4, NOW_MS + 5)
        taken = await again(t, 9, now_ms=NOW_MS + 5, budgets={t.crawl_id: Budget(max_pages=4)})
        assert taken is not None
        assert {(url.url, url.depth) for url in taken.urls.values()} == {
            (f"http://{HOST}/1", 0), (done.urls[done.order[0]].url, 0),
        }  # fmt: skip
        assert t.rows("SELECT count(*) FROM fetches WHERE etag = ''") == [(1,)], "the next request has no condition"

    on_store(story)


def test_stored_pages_that_failed_are_retried_outside_the_budget(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.store.put_crawl("docs", spec(recrawl={"policy": "fixed"}), NOW_MS)
        row = await pages(t)
        await t.found(*links(HOST, range(10, 14), depth=1))
        await t.apply(Changes(give_up=[(t.crawl_id, row.host_id, UrlState.FAILED, "host_unreachable")]))
        await t.found(link(f"http://{HOST}/1", 0), max_depth=3)
        await t.command(CommandKind.RETRY_FAILED, now_ms=NOW_MS + 9)
        assert t.rows(COUNTS) == [(7, 0, 0, 3, 3, 0, 0)]
        queue = await t.queue(HOST)
        assert (queue.queued, queue.waiting, queue.next_due_ms) == (4, 3, NOW_MS + 9)
        taken = await again(t, 9, now_ms=NOW_MS + 9, budgets={t.crawl_id: Budget(max_pages=3)})
        assert taken is not None
        assert set(taken.order) == set(row.order)
        conditions = [(url.last.etag, url.last.last_modified) for url in taken.urls.values() if url.last]
        assert conditions == [("", "")] * 3, "one was found nearer, so each body must come"

    on_store(story)


def test_retry_leaves_the_validators_of_pages_that_did_not_fail(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.store.put_crawl("docs", spec(recrawl={"policy": "fixed"}), NOW_MS)
        row = await pages(t)
        await t.apply(Changes(give_up=[(t.crawl_id, row.host_id, UrlState.FAILED, "host_unreachable")]))
        await t.found(*links(HOST, range(10, 12), depth=1))
        new = await t.lease(HOST)
        assert new is not None
        await stored(t, new)
        await t.command(CommandKind.RETRY_FAILED, now_ms=NOW_MS + 9)
        kept = t.rows("SELECT fingerprint FROM fetches WHERE etag <> ''")
        assert {bytes(key) for (key,) in kept} == {bytes(key) for key in new.order}

    on_store(story)


def test_retry_queues_failed_pages_as_new_ones_without_recrawl(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.store.put_crawl("docs", spec(recrawl={"policy": "fixed"}), NOW_MS)
        row = await pages(t)
        await t.apply(Changes(give_up=[(t.crawl_id, row.host_id, UrlState.FAILED, "host_unreachable")]))
        await t.store.put_crawl("docs", spec(), NOW_MS)
        await t.command(CommandKind.RECRAWL, id="off", every_ms=0)
        await t.command(CommandKind.RETRY_FAILED, now_ms=NOW_MS + 9)
        assert t.rows("SELECT DISTINCT state, flags FROM urls") == [(UrlState.QUEUED, COUNTED_AS_PAGE)]
        assert t.rows(COUNTS) == [(3, 0, 0, 3, 0, 0, 0)]
        queue = await t.queue(HOST)
        assert (queue.queued, queue.waiting, queue.next_due_ms) == (3, 0, 0)
        await t.apply(Changes(give_up=[(t.crawl_id, row.host_id, UrlState.EXCLUDED, OWNER)]))
        assert t.rows("SELECT DISTINCT state, reason FROM urls") == [(UrlState.EXCLUDED, OWNER)]

    on_store(story)


@pytest.mark.parametrize("depth", [0, 1])
def test_command_reaches_done_pages_that_are_given_as_seeds_again(on_store: OnStore, depth: int) -> None:
    """A new revision publishes its seeds behind its command, perhaps before the command is applied."""

    async def story(t: Tables) -> None:
        await t.found(*links(HOST, range(2), depth=depth))
        row = await t.lease(HOST)
        assert row is not None
        await stored(t, row)
        await t.command(CommandKind.RECRAWL, id="off", every_ms=0)
        run = await t.accepted(CommandRun("on", t.crawl_id, CommandKind.RECRAWL, {"every_ms": 1000}, PARTITION))
        await t.found(*links(HOST, range(1), depth=0), marks={t.crawl_id: run.number})
        await t.run(run)
        assert t.rows("SELECT DISTINCT state, rank FROM urls") == [(UrlState.WAITING, NOW_MS + 1000)]

    on_store(story)


def test_deletion_takes_no_page_that_is_given_as_a_seed_behind_it(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(link(f"http://{HOST}/deep", 2, via=(1, b"v" * 16)))
        row = await t.lease(HOST)
        assert row is not None
        await stored(t, row)
        run = await t.accepted(CommandRun("d", t.crawl_id, "delete_seeds", {"all": True, "places": []}, PARTITION))
        await t.found(link(f"http://{HOST}/deep"), marks={t.crawl_id: run.number})
        await t.run(run)
        assert t.rows("SELECT DISTINCT state FROM urls") == [(UrlState.WAITING,)]

    on_store(story)


def test_command_gives_done_pages_a_due_time_and_takes_it_away(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        row = await pages(t, 30)
        await t.command(CommandKind.RECRAWL, id="off", every_ms=0)
        assert t.rows(COUNTS) == [(0, 0, 30, 30, 0, 0, 0)]
        assert t.value("SELECT count(*) FROM urls WHERE state = 3 AND flags = 1") == 30
        await t.command(CommandKind.RECRAWL, id="on", every_ms=1000)
        assert t.rows(COUNTS) == [(30, 0, 0, 30, 0, 30, 0)]
        assert t.value("SELECT min(rank) FROM urls WHERE state = 1") == NOW_MS + 1000
        queue = await t.queue(HOST)
        assert (queue.waiting, queue.next_due_ms) == (30, NOW_MS + 1000)
        assert await t.store.due_before(t.crawl_id, NOW_MS + 1000)
        assert not await t.store.due_before(t.crawl_id, NOW_MS + 999)
        assert row.crawl_id == t.crawl_id

    on_store(story)


def test_added_recrawl_keeps_the_rules_of_patterns_and_the_last_comparison(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        row = await pages(t, 4)
        history = PageHistory(compared=1, checked_ms=LATER_MS).encoded()
        await t.apply(Changes(revisited=[RevisitRow(t.crawl_id, row.host_id, key, history) for key in row.order[:3]]))
        await t.command(CommandKind.RECRAWL, id="off", every_ms=0)
        paths = [row.urls[key].url.rpartition("/")[2] for key in row.order]
        rules = [{"match": f"/{paths[0]}$", "policy": "never"}, {"match": f"/{paths[1]}$", "min_s": 5000}]
        recrawl = {"policy": "fixed", "min_s": 60, "by_pattern": rules}
        await t.store.put_crawl("docs", spec(recrawl=recrawl), NOW_MS)
        await t.command(CommandKind.RECRAWL, id="on", every_ms=60_000)
        found = {bytes(key): rest for key, *rest in t.rows("SELECT fingerprint, state, rank, reason FROM urls")}
        assert [tuple(found[key]) for key in row.order] == [
            (UrlState.DONE, 0, "fetched_once"),
            (UrlState.WAITING, LATER_MS + 5_000_000, None),
            (UrlState.WAITING, LATER_MS + 60_000, None),
            (UrlState.WAITING, NOW_MS + 60_000, None),
        ]
        assert t.rows(COUNTS) == [(3, 0, 1, 4, 0, 3, 0)]
        queue = await t.queue(HOST)
        assert (queue.waiting, queue.next_due_ms) == (3, NOW_MS + 60_000)

    on_store(story)


def test_page_fetched_once_is_due_again_by_the_rules_of_a_later_spec(on_store: OnStore) -> None:
    """Its rule had the policy `never`, so it stayed done when the section was removed and added again."""

    async def story(t: Tables) -> None:
        row = await pages(t, 2)
        never = {"match": f"/{row.urls[row.order[0]].url.rpartition('/')[2]}$", "policy": "never"}
        fixed: dict[str, object] = {"policy": "fixed", "min_s": 60}
        due: list[tuple[object, ...]] = [(UrlState.WAITING, NOW_MS + 60_000, None)] * 2
        steps: list[tuple[dict[str, object] | None, list[tuple[object, ...]]]] = [
            (fixed | {"by_pattern": [never]}, [(UrlState.DONE, 0, "fetched_once"), due[0]]),
            (None, [(UrlState.DONE, 0, "fetched_once"), (UrlState.DONE, 0, None)]),
            (fixed, due),
        ]
        await t.command(CommandKind.RECRAWL, id="first", every_ms=0)
        for number, (recrawl, expected) in enumerate(steps):
            await t.store.put_crawl("docs", spec() if recrawl is None else spec(recrawl=recrawl), NOW_MS)
            await t.command(CommandKind.RECRAWL, id=str(number), every_ms=60_000 if recrawl else 0)
            found = {bytes(key): rest for key, *rest in t.rows("SELECT fingerprint, state, rank, reason FROM urls")}
            assert [tuple(found[key]) for key in row.order] == expected
        assert t.rows(COUNTS) == [(2, 0, 0, 2, 0, 2, 0)]

    on_store(story)


def test_deleted_crawl_leaves_no_version_and_no_change(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        row = await pages(t, 2)
        place = (t.crawl_id, row.host_id, row.order[0])
        fetched = FetchRow(*place, LATER_MS, 200, True, segment="s2", offset=1, length=2)
        await t.apply(Changes(superseded=[Superseded(*place, 1, 0)], fetches=[fetched]))
        assert t.value("SELECT count(*) FROM page_versions") == 1
        await t.command(CommandKind.DELETE)
        for table in ("page_versions", "page_changes", "fetches", "urls"):
            assert t.value(f"SELECT count(*) FROM {table}") == 0, table

    on_store(story)
