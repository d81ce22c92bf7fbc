"""Masters and workers of a cluster divide hosts by one list: the one it was begun with, whatever is installed."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.adapters.local.clock import SystemClock
from shared.adapters.local.suffixes import installed_list, use_list
from shared.adapters.sql.frontier.store import SqliteStore
from shared.domain.web import url
from shared.domain.web.url import partition_of, registrable_domain
from shared.wire.keys import Keys, decode_suffixes
from shared.wire.messages import Malformed
from tests.support.crawl_controller import spec_publisher
from tests.support.engines.local_coordinator import LocalCoordinator
from workers.membership import list_in

CLOCK = SystemClock()
KEYS = Keys("test")
OLDER = "// an older list\ncom\nexample.com\n"


@pytest.fixture(autouse=True)
def _the_installed_list_again() -> Iterator[None]:
    yield
    url._fixed_suffixes.clear()
    for cached in (url._public_suffixes, registrable_domain, partition_of):
        cached.cache_clear()


def test_a_worker_waits_for_the_list_of_the_cluster_and_goes_by_it(tmp_path: Path) -> None:
    async def story() -> None:
        store = await SqliteStore.open(tmp_path / "crawl.db")
        assert await store.open_cluster(8, OLDER, 0) == (8, OLDER)
        assert await store.open_cluster(8, installed_list(), 0) == (8, OLDER), "the first call ever fixes it"
        coordinator = LocalCoordinator(CLOCK)
        async with coordinator.watch(KEYS.public_suffixes) as view:
            waiting = asyncio.create_task(list_in(view, KEYS))
            async with coordinator.session(30.0) as session:
                first = await session.campaign(KEYS.leader, b"m1")
                await spec_publisher(coordinator, first, KEYS, store).once()
                assert await asyncio.wait_for(waiting, 10) == OLDER
                stands = await coordinator.get(KEYS.public_suffixes)
                await first.resign()
                await spec_publisher(coordinator, await session.campaign(KEYS.leader, b"m2"), KEYS, store).once()
                assert await coordinator.get(KEYS.public_suffixes) == stands, "nothing differs: nothing is written"
        await store.close()

    asyncio.run(story())
    assert registrable_domain("a.b.example.com") == "example.com"
    before = partition_of("a.b.example.com", 4096)
    use_list(OLDER)
    assert registrable_domain("a.b.example.com") == "b.example.com"
    assert partition_of("a.b.example.com", 4096) != before


def test_the_list_that_is_installed_is_used_as_it_is() -> None:
    use_list(installed_list())
    assert url._fixed_suffixes == []


def test_a_value_that_is_no_list_says_so() -> None:
    with pytest.raises(Malformed, match="no public suffix list"):
        decode_suffixes(b"com\n")
