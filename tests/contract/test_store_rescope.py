"""The store's promises about a changed scope: what it excludes leaves the queue, and what it admits comes back."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from shared.adapters.sql.catalog.catalog import SqlCatalog
from shared.adapters.sql.engine import chunks
from shared.adapters.sql.frontier.store import SqlStore
from shared.domain.crawl.host_specs import HostSpecs
from shared.domain.crawl.override_spec import Override
from shared.domain.crawl.requisites_spec import Requisites
from shared.domain.crawl.scope import CompiledScope
from shared.domain.crawl.scope_change import ChangedScope
from shared.domain.crawl.spec import Budget, CrawlSpec, Scope, ScopeMode, Seed, encode_spec
from shared.domain.frontier import command_progress
from shared.domain.frontier.states import COUNTED_AS_PAGE, REVISIT, UrlKind, UrlState
from shared.domain.frontier.store_model import Changes, CommandRun, DiscoveredLink, UrlChange
from shared.domain.ids import CrawlId, HostId
from tests.support.database.store_tables import NOW_MS, Tables, books, link, links

OnStore = Callable[..., None]

HOST, OTHER = "a.example.com", "b.example.com"
QUEUED = (UrlState.QUEUED, None)


async def rescoped(
    t: Tables,
    scope: Scope,
    *,
    id: str = "s",
    revisits: bool = False,
    seed: str = HOST,
    max_pages_per_host: int | None = None,
) -> int:
    """Apply a scope to all that the crawl has found; the number of the command's chunks."""
    budget = Budget(max_pages_per_host=max_pages_per_host)
    spec = CrawlSpec(seeds=(Seed(url=f"http://{seed}/"),), scope=scope, budget=budget)
    t.changed = ChangedScope(CompiledScope(spec), revisits, HostSpecs(spec))
    return await t.command("rescope", id=id, revision=2)


def states(t: Tables, *urls: DiscoveredLink) -> list[tuple[int, str | None]]:
    return [(t.url(url)["state"], t.url(url)["reason"]) for url in urls]


def out(reason: str) -> tuple[int, str]:
    return UrlState.EXCLUDED, reason


async def balanced(t: Tables, *, queued: int, **excluded: int) -> None:
    counters = await t.store.counters(t.crawl_id)
    assert (counters.queued, counters.excluded) == (queued, sum(excluded.values()))
    assert (counters.url_drift(), counters.link_drift()) == (0, 0)
    tallies = (await t.store.tallies(t.crawl_id)).get("excluded", {})
    assert {reason: n for reason, n in tallies.items() if n} == excluded
    assert books(t.at) == []


def via(t: Tables, host: str) -> tuple[HostId, bytes]:
    return t.host_id(host), b"v" * 16


def test_narrower_scope_takes_urls_from_the_queue_by_rule(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        seed, trapped = link(f"http://{HOST}/"), link(f"http://{HOST}/calendar/seed")
        await t.found(seed, trapped)
        page = via(t, HOST)
        near, deep = link(f"http://{HOST}/near", 1, via=page), link(f"http://{HOST}/deep", 3, via=page)
        trap = [link(f"http://{HOST}/calendar/{n}", 1, via=page) for n in range(5)]
        far = link(f"http://{OTHER}/", 1, via=page)
        await t.found(near, deep, *trap, far)
        await rescoped(t, Scope(max_depth=2, exclude=("/calendar/",)))
        assert states(t, seed, near) == [QUEUED, QUEUED]
        assert states(t, deep, far) == [out("depth"), out("other_host")]
        assert states(t, *trap, trapped) == [out("exclude_pattern")] * 6
        await balanced(t, queued=2, depth=1, other_host=1, exclude_pattern=6)
        assert (await t.queue(HOST)).queued == 2
        assert (await t.queue(OTHER)).queued == 0

    on_store(story)


def test_seed_stays_under_rules_that_only_links_obey(on_store: OnStore) -> None:
    """Its redirect may be on another host of its domain."""

    async def story(t: Tables) -> None:
        seed = link(f"http://{HOST}/a/a/a/a/a/seed")
        await t.found(seed)
        page = via(t, HOST)
        target = link("http://www.example.com/landing", 0, hops=1, via=page)
        later = link("http://www.example.com/landing", 1, hops=1, via=page)
        await t.found(target)
        await rescoped(t, Scope(mode=ScopeMode.HOST, include=("/docs/",), max_depth=0))
        assert states(t, seed, target) == [QUEUED, QUEUED]
        assert later.fingerprint == target.fingerprint

    on_store(story)


def test_sitemap_is_judged_as_one_and_its_pages_as_links(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(link(f"http://{HOST}/"))
        page = via(t, HOST)
        sitemap = replace(link(f"http://{HOST}/sitemap.xml", 0, hops=1, via=page), kind=UrlKind.HOST_SITEMAP)
        listed = replace(link(f"http://{HOST}/news/1", 1, via=page), kind=UrlKind.LISTED)
        await t.found(sitemap, listed)
        await rescoped(t, Scope(include=("/docs/",)))
        assert states(t, sitemap, listed) == [QUEUED, out("include_pattern")]
        await rescoped(t, Scope(max_depth=0), id="s2")
        assert states(t, sitemap, listed) == [out("depth"), out("include_pattern")]
        await rescoped(t, Scope(), id="s3")
        assert states(t, sitemap, listed) == [QUEUED, QUEUED]
        await balanced(t, queued=3)

    on_store(story)


def test_requisites_leave_and_come_back_first_and_a_page_among_them_stays(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(link(f"http://{HOST}/"))
        page = via(t, HOST)
        at = (f"{HOST}/s", f"{HOST}/b", f"{OTHER}/f")
        style, both, far = (link(f"http://{place}", 1, hops=1, via=page) for place in at)
        await t.found(*(replace(each, kind=UrlKind.REQUISITE) for each in (style, both, far)), replace(both, hops=0))

        async def after(scope: Requisites, id: str) -> list[tuple[int, str | None]]:
            await rescoped(t, Scope(requisites=scope), id=id)
            assert (await t.store.counters(t.crawl_id)).requisites == states(t, style, both, far).count(QUEUED)
            return states(t, style, both, far)

        assert await after(Requisites.ALL, "s1") == [QUEUED, QUEUED, QUEUED]
        assert await after(Requisites.SAME_HOST, "s2") == [QUEUED, QUEUED, out("requisite_host")]
        assert await after(Requisites.NONE, "s3") == [out("requisite_host"), QUEUED, out("requisite_host")]
        await balanced(t, queued=2, requisite_host=2)
        assert await after(Requisites.ALL, "s4") == [QUEUED, QUEUED, QUEUED]
        assert all(int(str(t.url(each)["rank"])) < 0 for each in (style, both, far))
        await balanced(t, queued=4)

    on_store(story)


def test_higher_limit_of_pages_queues_again_what_it_excluded(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        spent = UrlState.EXCLUDED, "max_pages_per_host"
        first, rest, deep = link(f"http://{HOST}/"), links(HOST, range(4)), link(f"http://{HOST}/deep/")
        await t.found(first)
        row = await t.lease(HOST)
        assert row is not None
        await t.settle(row, UrlState.DONE, pages=1)
        await t.found(*rest, deep)
        await t.apply(Changes(give_up=[(t.crawl_id, t.host_id(HOST), *spent)]))
        await rescoped(t, Scope(exclude=("/deep/",)), max_pages_per_host=1)
        assert states(t, *rest, deep) == [spent] * 5
        await rescoped(t, Scope(exclude=("/deep/",)), id="s2", max_pages_per_host=2)
        assert states(t, *rest, deep) == [QUEUED] * 4 + [spent], "the scope does not admit the last one"
        assert (await t.queue(HOST)).queued == 4
        await t.apply(Changes(give_up=[(t.crawl_id, t.host_id(HOST), *spent)]))
        await rescoped(t, Scope(), id="s3")
        assert states(t, *rest, deep) == [QUEUED] * 5
        counters = await t.store.counters(t.crawl_id)
        assert (counters.queued, counters.excluded, counters.url_drift()) == (5, 0, 0)

    on_store(story)


def test_host_budget_spares_stored_pages_that_are_queued_for_their_links(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        page, other = links(HOST, range(2))
        await t.found(page)
        row = await t.lease(HOST)
        assert row is not None
        again = UrlChange(t.crawl_id, row.host_id, page.fingerprint, UrlState.QUEUED, 7, 0, COUNTED_AS_PAGE, "depth")
        changes = Changes(freed=[row.lease_id], urls=[again])
        changes.queue(t.crawl_id, row.host_id).leased -= 1
        changes.queue(t.crawl_id, row.host_id).queued += 1
        changes.counters[t.crawl_id].update({"leased": -1, "queued": 1})
        await t.apply(changes)
        await t.found(other)
        await t.apply(Changes(give_up=[(t.crawl_id, row.host_id, UrlState.EXCLUDED, "max_pages_per_host")]))
        assert states(t, page, other) == [(UrlState.QUEUED, "depth"), out("max_pages_per_host")]
        assert (await t.queue(HOST)).queued == 1
        await t.apply(Changes(give_up=[(t.crawl_id, row.host_id, UrlState.FAILED, "host_unreachable")]))
        assert t.url(page)["state"] == UrlState.FAILED, "a host that is given up fails all of its URLs"

    on_store(story)


def test_wider_scope_queues_again_what_a_narrower_one_excluded(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        urls = links(HOST, range(8))
        await t.found(*urls)
        await rescoped(t, Scope(exclude=("/[0-5]$",)))
        await balanced(t, queued=2, exclude_pattern=6)
        await rescoped(t, Scope(exclude=("/[0-2]$",)), id="s2")
        assert states(t, *urls) == [out("exclude_pattern")] * 3 + [QUEUED] * 5
        await balanced(t, queued=5, exclude_pattern=3)
        await rescoped(t, Scope(), id="s3")
        await balanced(t, queued=8)
        row = await t.lease(HOST)
        assert row is not None
        assert len(row.order) == 8

    on_store(story)


def test_other_reasons_to_exclude_survive_a_wider_scope(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        (denied,) = links(HOST, ("private",))
        await t.found(denied)
        row = await t.lease(HOST)
        assert row is not None
        await t.settle(row, UrlState.EXCLUDED, reason="robots")
        await rescoped(t, Scope())
        assert states(t, denied) == [out("robots")]

    on_store(story)


def test_waiting_urls_leave_and_stored_pages_wait_again(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        retried, stored = links(HOST, ("retried", "stored"))
        await t.found(retried, stored)
        row = await t.lease(HOST)
        assert row is not None
        changes = Changes(freed=[row.lease_id])
        queue, counters = changes.queue(t.crawl_id, row.host_id), changes.counters[t.crawl_id]
        due_ms = NOW_MS + 60_000
        for url, flags in ((retried, 0), (stored, REVISIT | COUNTED_AS_PAGE)):
            place = (t.crawl_id, row.host_id, url.fingerprint)
            changes.urls.append(UrlChange(*place, UrlState.WAITING, due_ms, 1, flags, "http_500"))
        queue.leased, queue.waiting, queue.next_due_ms = -2, 2, due_ms
        counters["leased"], counters["queued"], counters["revisits"] = -2, 2, 1
        await t.apply(changes)
        await rescoped(t, Scope(exclude=(HOST,)))
        assert states(t, retried, stored) == [out("exclude_pattern")] * 2
        left = await t.queue(HOST)
        assert (left.queued, left.waiting, left.next_due_ms) == (0, 0, 0)
        assert (await t.store.counters(t.crawl_id)).revisits == 0
        await rescoped(t, Scope(), id="s2", revisits=True)
        assert states(t, retried, stored) == [QUEUED, (UrlState.WAITING, None)]
        back = await t.queue(HOST)
        assert (back.queued, back.waiting, back.next_due_ms) == (1, 1, NOW_MS)
        counted = await t.store.counters(t.crawl_id)
        assert (counted.queued, counted.revisits, counted.url_drift()) == (2, 1, 0)
        assert books(t.at) == []

    on_store(story)


def test_ended_and_leased_urls_stay_as_they_are(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        done, leased = links(HOST, ("done", "leased"))
        await t.found(done)
        row = await t.lease(HOST)
        assert row is not None
        await t.settle(row, UrlState.DONE)
        await t.found(leased)
        assert await t.lease(HOST) is not None
        await rescoped(t, Scope(exclude=(HOST,)))
        assert states(t, done, leased) == [(UrlState.DONE, None), (UrlState.LEASED, None)]

    on_store(story)


def test_rescope_goes_on_where_the_last_chunk_ended(on_store: OnStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the middle of a host, and although rows that are written meanwhile carry its mark."""
    monkeypatch.setattr(command_progress, "HOSTS_A_CHUNK", 2)
    monkeypatch.setattr(chunks, "ROWS_A_CHUNK", 4)
    monkeypatch.setattr(chunks, "STEP", 3)
    monkeypatch.setattr(chunks, "CHUNK_S", 60.0)

    async def story(t: Tables) -> None:
        hosts = [f"h{n}.example.com" for n in range(5)]
        await t.found(*(url for host in hosts for url in links(host, range(7))))
        assert await rescoped(t, Scope(exclude=("/[0-5]$",))) > 8
        await balanced(t, queued=5, exclude_pattern=30)
        assert await rescoped(t, Scope(), id="s2") > 8
        await balanced(t, queued=35)

    on_store(story)


def test_later_rescope_ends_the_one_in_progress(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        (url,) = links(HOST, ("a",))
        await t.found(url)
        for id in ("first", "second"):
            run = CommandRun(id, t.crawl_id, "rescope", {"revision": 2}, t.fence.partition)
            assert await t.accept(run) is not None
        assert t.rows("SELECT id FROM commands_in_progress") == [("second",)]
        assert t.rows("SELECT id FROM commands") == [("first",)]
        again = CommandRun("first", t.crawl_id, "rescope", {"revision": 2}, t.fence.partition)
        assert await t.accept(again) is None

    on_store(story)


def test_link_outside_the_scope_is_excluded_at_once_until_found_within(on_store: OnStore) -> None:
    """The link that the scope admits gives the depth, even if it is the greater."""

    async def story(t: Tables) -> None:
        await t.found(link(f"http://{HOST}/"), link(f"http://{OTHER}/"))
        url = link(f"http://{OTHER}/x", 1, via=via(t, HOST))
        within = link(f"http://{OTHER}/x", 4, via=via(t, OTHER))
        outside = replace(url, outside="other_host")
        found = await t.found(outside)
        assert (found.new, found.queues, states(t, url)) == (1, {}, [out("other_host")])
        await balanced(t, queued=2, other_host=1)
        again = await t.found(outside)
        assert (again.known, states(t, url)) == (1, [out("other_host")])
        both = await t.found(outside, within)
        assert (list(both.queues.values()), states(t, url)) == ([1], [QUEUED])
        assert (t.url(url)["depth"], t.url(url)["via_host"]) == (4, t.host_id(OTHER))
        await balanced(t, queued=3)

    on_store(story)


def test_scope_revision_is_the_last_that_changed_the_scope(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        def spec(scope: Scope, *seeds: str, name: str = "x") -> str:
            given = tuple(Seed(url=f"http://{HOST}/{seed}") for seed in seeds)
            return encode_spec(CrawlSpec(name=name, seeds=given, scope=scope)).decode()

        async def put(scope: Scope, *seeds: str) -> tuple[int, int]:
            row, _ = await t.store.put_crawl("scoped", spec(scope, *seeds), NOW_MS)
            return row.revision, await t.store.scope_revision(row.crawl_id)

        assert await put(Scope(), "a") == (1, 1)
        assert await put(Scope(), "a", "b") == (2, 1)
        assert await put(Scope(max_depth=3), "a", "b") == (3, 3)
        assert await put(Scope(max_depth=3), "a") == (4, 3)
        below = Scope(mode=ScopeMode.PREFIX)
        assert await put(below, "a") == (5, 5)
        assert await put(below, "a", "b") == (6, 6), "in mode prefix the seeds decide"
        assert await put(below, "b", "a") == (7, 6)

        async def limited(n: int | None, hosts: int | None = None) -> int:
            overrides = () if hosts is None else (Override(hosts=("x.test",), max_pages_per_host=hosts),)
            made = CrawlSpec(
                name="limit",
                seeds=(Seed(url=f"http://{HOST}/"),),
                budget=Budget(max_pages_per_host=n),
                overrides=overrides,
            )
            row, _ = await t.store.put_crawl("limited", encode_spec(made).decode(), NOW_MS)
            return await t.store.scope_revision(row.crawl_id)

        assert [await limited(n) for n in (None, 5, 4, 6, None)] == [1, 1, 1, 4, 5], "a higher limit admits more"
        assert [await limited(None, n) for n in (3, 2, 4)] == [5, 5, 8]

    on_store(story)


def test_command_of_a_changed_scope_has_its_progress_shown(on_store: OnStore) -> None:
    """No client requests it, so nothing records it: its progress is read from the revision and the owners' marks."""

    async def story(t: Tables) -> None:
        async def put(scope: Scope) -> CrawlId:
            spec = CrawlSpec(name="shown", seeds=(Seed(url=f"http://{HOST}/"),), scope=scope)
            t.changed = ChangedScope(CompiledScope(spec), False, HostSpecs(spec))
            row, _ = await t.store.put_crawl("shown", encode_spec(spec).decode(), NOW_MS)
            return row.crawl_id

        assert isinstance(t.store, SqlStore)
        catalog = SqlCatalog(t.store.executor)

        async def progress(command_id: str) -> tuple[str, int, int] | None:
            command = await catalog.command(command_id)
            return None if command is None else (command.kind, command.applied, command.partitions)

        crawl_id = await put(Scope())
        narrower, wider = f"rescope-{crawl_id}-2", f"rediscover-{crawl_id}-3"
        assert await progress(f"rescope-{crawl_id}-1") is None, "the first scope changes nothing"
        assert await progress(narrower) is None
        await put(Scope(max_depth=1))
        assert await progress(narrower) == ("rescope", 0, 8)
        assert await progress(wider) is None
        run = CommandRun(narrower, crawl_id, "rescope", {"revision": 2}, t.fence.partition)
        await t.run(await t.accept(run))
        assert await progress(narrower) == ("rescope", 1, 8)
        await put(Scope(max_depth=2))
        assert await progress(wider) == ("rediscover", 0, 8)
        assert await progress(narrower) == ("rescope", 1, 8), "what was applied stays known"
        for unknown in ("rescope-999-2", f"rescope-{crawl_id}-9", f"seeds-{crawl_id}-2", "rescope-1-x"):
            assert await progress(unknown) is None

    on_store(story)
