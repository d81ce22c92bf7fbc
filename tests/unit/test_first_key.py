"""The first admin key where the database has no room, or its answer is lost: the one that is kept is shown."""

import asyncio
from typing import cast

import pytest

from api.cluster_main import show_first_key
from shared.domain.errors import ResourceFull, Transient
from shared.domain.ops.access import ApiKey, digest_of
from shared.ports.catalog import Catalog


class Small:
    """A catalog that has no room at first, and whose next answer is lost on its way."""

    def __init__(self) -> None:
        self.kept: list[ApiKey] = []
        self.tries = 0

    async def add_first_key(self, key: ApiKey) -> bool:
        self.tries += 1
        if self.tries <= 2:
            raise ResourceFull("the disk is full", retry_in=0.01)
        if not self.kept:
            self.kept.append(key)
            raise Transient("the answer was lost", retry_in=0.01)
        return key in self.kept


def test_master_waits_for_space_for_first_key_and_shows_kept_one(
    capfd: pytest.CaptureFixture[str],
) -> None:
    small = Small()
    asyncio.run(asyncio.wait_for(show_first_key(cast(Catalog, small), 0), 30))
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("orb: ")]
    [key] = small.kept
    assert [digest_of(line.split()[-1]) for line in said] == [key.digest]
    asyncio.run(asyncio.wait_for(show_first_key(cast(Catalog, small), 0), 30))
    assert "orb: " not in capfd.readouterr().err, "it is shown once"
