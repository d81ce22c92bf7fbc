"""What a changed scope would exclude is counted exactly where little is queued, and estimated where much is."""

from collections.abc import Callable

import pytest

from shared.adapters.sql.catalog import scope_plan
from shared.adapters.sql.catalog.catalog import SqlCatalog
from shared.adapters.sql.frontier.store import SqlStore
from shared.domain.crawl.scope import CompiledScope
from shared.domain.crawl.scope_change import ScopeChange
from shared.domain.crawl.spec import CrawlSpec, Scope, Seed
from shared.domain.frontier.states import UrlState
from tests.support.database.store_tables import NOW_MS, Tables, link, links

OnStore = Callable[..., None]

HOST, OTHER = "a.example.com", "b.example.com"


async def planned(t: Tables, scope: Scope) -> ScopeChange:
    assert isinstance(t.store, SqlStore)
    spec = CrawlSpec(seeds=(Seed(url=f"http://{HOST}/"),), scope=scope)
    return await SqlCatalog(t.store.executor).scope_change(t.crawl_id, CompiledScope(spec))


def test_short_queue_is_counted_by_rule(on_store: OnStore) -> None:
    """Waiting URLs count, leased and ended ones do not."""

    async def story(t: Tables) -> None:
        assert await planned(t, Scope()) == ScopeChange(0, 0, {})
        (done, waiting) = links(HOST, ("trap/done", "trap/waiting"))
        for url, state in ((done, UrlState.DONE), (waiting, UrlState.WAITING)):
            await t.found(url)
            row = await t.lease(HOST)
            assert row is not None
            await t.settle(row, state, due_ms=NOW_MS + 60_000)
        await t.found(*links(HOST, (f"trap/{n}" for n in range(4))), *links(OTHER, ("x",)))
        page = (t.host_id(HOST), b"v" * 16)
        await t.found(link(f"http://{OTHER}/y", 3, via=page), link(f"http://{HOST}/z", 3, via=page))
        found = await planned(t, Scope(max_depth=2, exclude=("/trap/",)))
        assert found == ScopeChange(8, 8, {"depth": 2, "exclude_pattern": 5})
        assert await planned(t, Scope()) == ScopeChange(8, 8, {"other_host": 1})

    on_store(story)


def test_long_queue_is_estimated_from_both_its_ends(on_store: OnStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scope_plan, "MAX_PLANNED_URLS", 60)

    async def story(t: Tables) -> None:
        await t.found(*links(HOST, (f"first/{n}" for n in range(300))))
        await t.found(*links(HOST, (f"last/{n}" for n in range(300))), now_ms=NOW_MS + 1000)
        await t.found(*links(OTHER, range(10)))
        found = await planned(t, Scope(exclude=("/last/",)))
        assert (found.queued, found.read) == (610, 30)
        assert found.leaving == {"exclude_pattern": 300}

    on_store(story)


def test_hosts_with_the_longest_queues_stand_for_the_others(on_store: OnStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scope_plan, "MAX_PLANNED_HOSTS", 2)
    monkeypatch.setattr(scope_plan, "MAX_PLANNED_QUEUES", 5)

    async def story(t: Tables) -> None:
        for number, n in enumerate((30, 20, 1, 1, 8)):
            await t.found(*links(f"h{number}.example.com", range(n)))
        found = await planned(t, Scope(exclude=("//h0[.]",)))
        assert (found.queued, found.read, found.leaving) == (60, 50, {"exclude_pattern": 36})

    on_store(story)
