"""What keeps the processes of a run alive, and when that is given up."""

import asyncio
from collections.abc import Sequence

import pytest

from cli.children import GivenUp, Keeper
from shared.domain.errors import Transient, Unusable


class Scripted:
    """A child whose starts and ends follow a script: an exception to raise from `start`, or a status to end with."""

    name = "broker"
    pid = None

    def __init__(self, script: Sequence[Exception | int]) -> None:
        self.script = list(script)
        self.starts = 0
        self.signals: list[int] = []

    async def start(self) -> None:
        self.starts += 1
        if isinstance(self.script[0], Exception):
            raise self.script.pop(0)  # type: ignore[misc]

    async def exited(self) -> int:
        status = self.script.pop(0)
        assert isinstance(status, int)
        return status

    def signal(self, number: int) -> None:
        self.signals.append(number)

    def last_words(self) -> str:
        return ""


def kept(child: Scripted) -> list[str]:
    """Start and keep a child to its end; what was told of it."""
    told: list[str] = []

    async def run() -> None:
        keeper = Keeper(child, told.append)
        assert await keeper.start()
        await keeper.keep()

    asyncio.run(run())
    return told


def test_a_child_killed_while_it_starts_is_started_again_the_first_time_and_later() -> None:
    child = Scripted([Transient("killed"), -9, Transient("killed"), 0])
    assert kept(child) == [
        "the broker did not come up (killed); it is started again",
        "the broker was killed by SIGKILL; it is started again",
        "the broker did not come up (killed); it is started again",
    ]
    assert child.starts == 4


def test_what_no_restart_can_help_is_given_up_at_once() -> None:
    child = Scripted([Unusable("no such program")])
    with pytest.raises(GivenUp, match="cannot start broker: no such program"):
        kept(child)
    assert child.starts == 1


def test_a_child_told_to_stop_while_it_rests_is_not_started_again() -> None:
    child = Scripted([Transient("killed"), -9])

    async def run() -> bool:
        keeper = Keeper(child, lambda line: keeper.stop())
        return await keeper.start()

    assert asyncio.run(run()) is False
    assert child.starts == 1
