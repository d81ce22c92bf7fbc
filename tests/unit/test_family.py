"""The processes of one command: they end in the order that is said, the first reason counts, and nobody is left."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator

import pytest

from cli.local.process_group import ProcessGroup, RunEnd, RunOutcome
from cli.local.supervisor import Child
from cli.terminal.progress import Silent
from shared.domain.errors import Unusable


class Living:
    """A child that lives until it is signalled; SIGTERM may be ignored, and every signal is put down in `ends`."""

    def __init__(
        self, name: str, ends: list[str], *, stubborn: bool = False, status: int = 0, patience_s: float = 25.0
    ) -> None:
        self.name = name
        self.patience_s = patience_s
        self._ends = ends
        self._stubborn = stubborn
        self._status = status
        self._over = asyncio.Event()
        self._started = False
        self.refuse: Exception | None = None

    @property
    def pid(self) -> int | None:
        return 1 if self._started and not self._over.is_set() else None

    async def start(self) -> None:
        if self.refuse is not None:
            raise self.refuse
        self._started = True

    async def exited(self) -> int:
        await self._over.wait()
        return self._status

    def signal(self, number: int) -> None:
        if self.pid is not None and not (self._stubborn and number == signal.SIGTERM):
            self._ends.append(f"{self.name} {signal.Signals(number).name}")
            self._over.set()

    def ends(self) -> None:
        """By itself."""
        self._over.set()

    def last_words(self) -> str:
        return ""


@pytest.fixture(autouse=True)
def _hang_up_is_not_ignored() -> Iterator[None]:
    """Let SIGHUP end a run also where the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def ended(work: Callable[[ProcessGroup, list[str]], Awaitable[None]]) -> tuple[RunOutcome, list[str]]:
    """How a family ended that did this work, and who was ended in which order."""
    ends: list[str] = []

    async def story() -> RunOutcome:
        family = ProcessGroup(Silent(notes=False))
        return await asyncio.wait_for(family.run(lambda: work(family, ends)), 30)

    return asyncio.run(story()), ends


async def two(family: ProcessGroup, ends: list[str], *, stubborn: bool = False) -> None:
    for name in ("engine", "member"):
        assert await family.start(Living(name, ends, stubborn=stubborn))


def send(*numbers: int) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


def test_ctrl_c_ends_children_in_the_order_that_is_said() -> None:
    async def work(family: ProcessGroup, ends: list[str]) -> None:
        await two(family, ends)
        send(signal.SIGINT)
        await family.over.wait()
        await family.drain(["member"], ["engine"])

    assert ended(work) == (RunOutcome(RunEnd.INTERRUPTED), ["member SIGTERM", "engine SIGTERM"])


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_ctrl_c_waits_for_nobody(second: int) -> None:
    async def work(family: ProcessGroup, ends: list[str]) -> None:
        await two(family, ends, stubborn=True)
        send(signal.SIGINT)
        await family.over.wait()
        send(second)
        await family.drain(["member"], ["engine"])

    assert ended(work) == (RunOutcome(RunEnd.INTERRUPTED, at_once=True), ["engine SIGKILL", "member SIGKILL"])


def test_closed_terminal_signals_twice_and_group_still_drains() -> None:
    async def work(family: ProcessGroup, ends: list[str]) -> None:
        await two(family, ends)
        send(signal.SIGHUP)
        await family.over.wait()
        send(signal.SIGHUP)
        await asyncio.sleep(0)
        await family.drain(["member"], ["engine"])

    assert ended(work) == (RunOutcome(RunEnd.INTERRUPTED), ["member SIGTERM", "engine SIGTERM"])


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_signal_that_the_command_inherited_as_ignored_ends_no_run(number: int) -> None:
    async def work(family: ProcessGroup, ends: list[str]) -> None:
        await two(family, ends)
        send(number)
        await asyncio.sleep(0)
        assert not family.over.is_set()
        assert signal.getsignal(number) == signal.SIG_IGN
        send(signal.SIGTERM)
        await family.over.wait()
        await family.drain(["member"], ["engine"])

    before = signal.signal(number, signal.SIG_IGN)
    try:
        assert ended(work) == (RunOutcome(RunEnd.INTERRUPTED), ["member SIGTERM", "engine SIGTERM"])
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_child_beyond_its_stop_time_is_killed() -> None:
    async def work(family: ProcessGroup, ends: list[str]) -> None:
        assert await family.start(Living("engine", ends, stubborn=True, patience_s=0.01))
        assert await family.start(Living("member", ends))
        family.end(RunOutcome(RunEnd.INTERRUPTED))
        await family.drain(["member"], ["engine"])

    assert ended(work) == (RunOutcome(RunEnd.INTERRUPTED), ["member SIGTERM", "engine SIGKILL"])


def test_once_the_end_was_decided_nobody_is_started_any_more() -> None:
    async def work(family: ProcessGroup, ends: list[str]) -> None:
        family.end(RunOutcome(RunEnd.INTERRUPTED))
        late = Living("late", ends)
        assert not await family.start(late)
        assert late.pid is None

    assert ended(work) == (RunOutcome(RunEnd.INTERRUPTED), [])


def test_the_first_reason_to_end_is_the_one_that_counts() -> None:
    async def work(family: ProcessGroup, ends: list[str]) -> None:
        family.end(RunOutcome(RunEnd.FAILED, "the disk is full"))
        family.end(RunOutcome(RunEnd.FINISHED))
        assert family.over.is_set()

    assert ended(work) == (RunOutcome(RunEnd.FAILED, "the disk is full"), [])


def test_child_that_cannot_start_ends_the_whole_group() -> None:
    async def work(family: ProcessGroup, ends: list[str]) -> None:
        await two(family, ends)
        third = Living("third", ends)
        third.refuse = Unusable("no port")
        assert not await family.start(third)
        assert family.over.is_set()

    ending, ends = ended(work)
    assert ending == RunOutcome(RunEnd.FAILED, "cannot start third: no port")
    assert ends == ["engine SIGKILL", "member SIGKILL"]


def test_what_it_means_that_a_child_ended_well_is_said_by_who_started_it() -> None:
    async def work(family: ProcessGroup, ends: list[str]) -> None:
        async def finished(child: Child) -> RunOutcome:
            return RunOutcome(RunEnd.FINISHED, child.name)

        child = Living("master", ends)
        await family.start(child, ended=finished)
        child.ends()
        await family.over.wait()

    assert ended(work) == (RunOutcome(RunEnd.FINISHED, "master"), [])


def test_work_that_fails_leaves_no_child_behind() -> None:
    ends: list[str] = []

    async def story() -> None:
        family = ProcessGroup(Silent(notes=False))

        async def work() -> None:
            await two(family, ends)
            raise ValueError("a bug")

        await family.run(work)

    with pytest.raises(ExceptionGroup):
        asyncio.run(asyncio.wait_for(story(), 30))
    assert ends == ["engine SIGKILL", "member SIGKILL"]
