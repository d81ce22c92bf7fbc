"""Seeds, listed: those of the spec in its order, then the uploaded ones, each once and with its state."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from api.routes import seed_list as declared_seeds
from shared.domain.archive.model import Exchange
from shared.domain.ops.access import Role
from shared.domain.web.url import fingerprint
from tests.support.api.paging import walked
from tests.support.api.rest_api import api, problem
from tests.support.archive.archived_pages import elsewhere, reported
from tests.support.archive.exchanges import AT_MS, answer
from tests.support.database.store_tables import Tables, link, sqlite_tables

SEEDS = "/v1/crawls/docs/seeds"


@asynccontextmanager
async def declared(folder: Path, seeds: Sequence[object]) -> AsyncIterator[tuple[Tables, httpx.AsyncClient]]:
    """A crawl whose spec has these seeds, and an operator."""
    async with sqlite_tables(folder) as tables, api(tables.path) as us, us.as_role(Role.OPERATOR) as client:
        put = await client.put("/v1/crawls/docs", json={"spec": {"seeds": seeds}})
        assert put.status_code == 200, put.text
        yield tables, client


@pytest.mark.parametrize("limit", [1, 2, 3, 500])
@pytest.mark.parametrize("scanned", [1, 5_000])
def test_each_seed_is_listed_once_with_its_source_and_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, scanned: int
) -> None:
    monkeypatch.setattr(declared_seeds, "SCANNED", scanned)

    async def story() -> None:
        spec = ["https://b.test/", {"url": "https://a.test/", "priority": 3}, "https://never.test/"]
        async with declared(tmp_path, spec) as (tables, client):
            done = Exchange(answer(b"x", url="https://a.test/"), AT_MS, 0)
            await reported(tables, [done], [elsewhere("1-a.warc.gz")])
            await tables.found(link("https://b.test/"), *(link(f"https://u.test/{n}", priority=n) for n in range(5)))
            via = (tables.host_id("a.test"), fingerprint("https://a.test/"))
            await tables.found(*(link(f"https://a.test/{n}", 1, via=via) for n in range(30)))
            listed = await walked(client, f"{SEEDS}?limit={limit}")
            ours, uploaded = listed[:3], listed[3:]
            assert [(seed["url"], seed["source"], seed["priority"], seed["state"]) for seed in ours] == [
                ("https://b.test/", "spec", 0, "queued"),
                ("https://a.test/", "spec", 3, "done"),
                ("https://never.test/", "spec", 0, None),
            ]
            assert (ours[1]["status"], ours[1]["fetched_at"]) == (200, "2023-11-14T22:13:20.123000Z")
            assert sorted(seed["url"] for seed in uploaded) == [f"https://u.test/{n}" for n in range(5)]
            assert {seed["source"] for seed in uploaded} == {"uploaded"}
            assert {seed["url"][-1]: seed["priority"] for seed in uploaded} == {str(n): n for n in range(5)}

    asyncio.run(story())


def test_a_crawl_that_was_never_started_has_its_seeds_all_the_same(tmp_path: Path) -> None:
    async def story() -> None:
        async with declared(tmp_path, ["https://a.test/"]) as (_, client):
            assert await walked(client, SEEDS) == [
                {
                    "url": "https://a.test/", "source": "spec", "priority": 0, "state": None, "reason": None,
                    "status": None, "fetched_at": None, "labels": {}, "given_source": None,
                }
            ]  # fmt: skip

    asyncio.run(story())


def test_a_seed_taken_out_of_the_spec_is_listed_as_one_that_was_uploaded(tmp_path: Path) -> None:
    async def story() -> None:
        async with declared(tmp_path, ["https://a.test/", "https://b.test/"]) as (tables, client):
            await tables.found(link("https://a.test/"), link("https://b.test/"))
            await client.patch("/v1/crawls/docs", json={"spec": {"seeds": ["https://b.test/"]}})
            listed = await walked(client, SEEDS)
            assert [(seed["url"], seed["source"]) for seed in listed] == [
                ("https://b.test/", "spec"),
                ("https://a.test/", "uploaded"),
            ]

    asyncio.run(story())


def test_a_cursor_of_our_own_making_ends_nowhere_else(tmp_path: Path) -> None:
    async def story() -> None:
        async with declared(tmp_path, ["https://a.test/"]) as (_, client):
            for cursor in ("x", "WzEsMiwzXQ", "W10"):
                problem(await client.get(f"{SEEDS}?cursor={cursor}"), 422, "invalid")
            problem(await client.get("/v1/crawls/none/seeds"), 404, "not-found")

    asyncio.run(story())
