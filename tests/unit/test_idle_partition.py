"""A partition without hosts and leases costs its dispatch nothing, and is dispatched as soon as it has one."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from api.frontier.dispatch import Dispatch
from api.frontier.ownership import Ownership
from api.frontier.sweep import Sweep
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

    def stopped(self) -> bool:
        return not self.hosts


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


class Rounds(Sweep):
    """Counts its rounds, on a partition whose state the test sets."""

    def __init__(self, own: Any) -> None:
        self._own, self._hosts, self._purged = own, own.queues, cast(Any, 0)
        self._orphans: Any = SimpleNamespace(wait_s=lambda: 3600.0)
        self.rounds = 0

    async def once(self) -> None:
        self.rounds += 1
        self._own.position = self._purged


class Queues(list[str]):
    """The hosts of a partition in memory, none of which is late."""

    def incomplete(self) -> list[int]:
        return []


def test_sweep_of_a_partition_at_rest_waits_until_there_is_something() -> None:
    async def main() -> None:
        queues, paused = Queues(), False
        own = SimpleNamespace(
            partition=0,
            queues=queues,
            hosts=queues,
            leases=[],
            position=0,
            orphans_suspected=False,
            work=WakeUp(),
            moved=WakeUp(),
            settings_changed=WakeUp(),
            repair_needed=WakeUp(),
            settings=SimpleNamespace(sweep_interval_s=0.0, orphans_interval_s=3600.0),
            stopped=lambda: paused or not queues,
        )
        sweep = Rounds(own)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(sweep.run())
            await _turns()
            assert sweep.rounds == 1, "at rest"
            Ownership.move(cast(Any, own), cast(Any, 5))
            await _turns()
            assert sweep.rounds == 2, "a report was applied, which must be purged"
            queues.append("host")
            own.repair_needed.notify()
            await _turns()
            assert sweep.rounds > 3, "with a host it is swept periodically"
            paused = True
            await _turns()
            before = sweep.rounds
            await _turns()
            assert sweep.rounds == before, "at rest: the host's crawls are all paused"
            paused = False
            Ownership.resumed(cast(Any, own))
            await _turns()
            assert sweep.rounds > before + 1, "a crawl was resumed"
            running.cancel()

    asyncio.run(asyncio.wait_for(main(), 30))


async def _turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)
