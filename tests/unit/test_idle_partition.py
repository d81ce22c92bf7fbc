"""A partition without hosts and leases costs its dispatch nothing, and is dispatched as soon as it has one."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from api.frontier.dispatch import Dispatch
from api.frontier.ownership import Ownership
from shared.runtime.wake_up import WakeUp


class Partition:
    """What dispatch reads of its ownership."""

    look = cast(Any, Ownership.look)

    def __init__(self) -> None:
        self.work = WakeUp()
        self.hosts: list[str] = []
        self.leases: list[str] = []
        self.crawls = None
        self.settings = SimpleNamespace(sweep_s=1.0)
        self.looks = 0


class Looks(Dispatch):
    """Counts its looks."""

    async def once(self) -> bool:
        cast(Any, self._own).looks += 1
        return False


@pytest.mark.parametrize("what", ["hosts", "leases"])
def test_partition_at_rest_is_not_dispatched_until_it_has_something(what: str) -> None:
    async def main() -> None:
        partition = Partition()
        clock = SimpleNamespace(elapsed=lambda: 0.0)
        writer = SimpleNamespace(own=partition, clock=clock, store=None, stats=None)
        dispatch = Looks(cast(Any, writer), cast(Any, None))
        assert dispatch._pause() is None
        async with asyncio.TaskGroup() as group:
            running = group.create_task(dispatch.run())
            while not partition.looks:  # noqa: ASYNC110  a turn of the loop is all it needs
                await asyncio.sleep(0)
            partition.look()
            assert partition.work.revision == 0
            getattr(partition, what).append("one")
            partition.look()
            assert partition.work.revision == 1
            running.cancel()

    asyncio.run(asyncio.wait_for(main(), 30))
