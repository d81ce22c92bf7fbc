"""The store's promises about hops beyond the scope: the least number and the least depth win, in any order."""

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from shared.domain.crawl.host_specs import HostSpecs
from shared.domain.crawl.scope import CompiledScope
from shared.domain.crawl.scope_change import ChangedScope
from shared.domain.crawl.spec import CrawlSpec, Scope, ScopeMode, Seed
from shared.domain.frontier.page_visits import links_again
from shared.domain.frontier.states import UrlState, extra_hops_of
from shared.domain.ids import HostId
from tests.support.database.store_tables import Tables, books, link

OnStore = Callable[..., None]

HOST, OTHER = "a.example.com", "b.example.com"
A, B = f"http://{HOST}/", f"http://{OTHER}/"
VIA = (77, b"v" * 16)


def place(t: Tables, url: str) -> tuple[int, int]:
    row = t.url(link(url))
    return extra_hops_of(row["flags"]), row["depth"]


@pytest.mark.parametrize("order", list(permutations([(2, 1), (1, 3), (0, 5)])))
@pytest.mark.parametrize("together", [False, True])
def test_least_hops_and_least_depth_win_in_any_order(
    on_store: OnStore, order: tuple[tuple[int, int], ...], *, together: bool
) -> None:
    async def story(t: Tables) -> None:
        found = [link(B, depth, via=(70 + extra, b"v" * 16), extra=extra) for extra, depth in order]
        for batch in [found] if together else [[each] for each in found]:
            await t.found(*batch)
        assert place(t, B) == (0, 1)
        assert t.url(link(B))["via_host"] == 70, "the page in scope that has the link"
        assert books(t.at) == []

    on_store(story)


def test_done_page_with_fewer_hops_is_queued_again_for_its_links(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(link(A), link(B, 1, via=VIA, extra=2))
        row = await t.lease(OTHER)
        assert row is not None
        assert [url.extra for url in row.urls.values()] == [2]
        await t.settle(row, UrlState.DONE)
        await t.found(link(B, 1, via=VIA, extra=3))
        assert t.url(link(B))["state"] == UrlState.DONE
        found = await t.found(link(B, 4, via=VIA, extra=1))
        assert (t.url(link(B))["state"], place(t, B)) == (UrlState.QUEUED, (1, 1))
        assert list(found.queues.values()) == [1]
        assert books(t.at) == []

    on_store(story)


def test_leased_url_with_fewer_hops_is_known_to_its_owner_and_the_next(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(link(B, 1, via=VIA, extra=2))
        row = await t.lease(OTHER)
        assert row is not None
        found = await t.found(link(B, 1, via=VIA, extra=1))
        assert found.hops == [(row.lease_id, link(B).fingerprint, 1)]
        assert found.lowered == []
        (lease,) = (await t.claim(2)).leases
        (url,) = lease.urls.values()
        assert (extra_hops_of(url.flags), links_again(url, None)) == (1, True)
        await t.settle(lease, UrlState.QUEUED)
        again = await t.lease(OTHER)
        assert again is not None
        (url,) = again.urls.values()
        assert (url.extra, links_again(url, None)) == (1, False), "what is sent anew is sent with its hops"

    on_store(story)


def test_link_that_lowers_only_the_depth_keeps_the_hops(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(link(B, 5, via=VIA))
        row = await t.lease(OTHER)
        assert row is not None
        found = await t.found(link(B, 2, via=(78, b"w" * 16), extra=1), max_depth=9)
        assert (found.lowered, found.hops) == ([(row.lease_id, link(B).fingerprint, 2)], [])
        assert (place(t, B), t.url(link(B))["via_host"]) == ((0, 2), 77)

    on_store(story)


def test_changed_scope_sets_the_hops_of_what_waits(on_store: OnStore) -> None:
    async def scope(t: Tables, id: str, **of: Any) -> None:
        spec = CrawlSpec(seeds=(Seed(url=A),), scope=Scope(**of))
        t.changed = ChangedScope(CompiledScope(spec), revisits=False, host_specs=HostSpecs(spec))
        await t.command("rescope", id=id, revision=2)

    async def story(t: Tables) -> None:
        await t.found(link(A))
        page = (HostId(t.host_id(HOST)), b"v" * 16)
        await t.found(link(B, 1, via=page))
        await scope(t, "narrow", extra_hops=1)
        assert (t.url(link(B))["state"], place(t, B)) == (UrlState.QUEUED, (1, 1))
        await scope(t, "none")
        assert (t.url(link(B))["state"], t.url(link(B))["reason"]) == (UrlState.EXCLUDED, "other_host")
        await scope(t, "again", extra_hops=1)
        assert (t.url(link(B))["state"], place(t, B)) == (UrlState.QUEUED, (1, 1))
        await scope(t, "any", mode=ScopeMode.ANY)
        assert (t.url(link(B))["state"], place(t, B)) == (UrlState.QUEUED, (0, 1))
        assert books(t.at) == []

    on_store(story)
