"""Background tasks end with their block, and none fails unseen."""

import asyncio
import contextlib

import pytest

from shared.runtime.supervise import FAILPOINT, Tasks, failpoint_of, no_failpoint


def test_what_still_runs_is_cancelled_and_awaited_at_the_end() -> None:
    async def main() -> None:
        ended: list[str] = []

        async def until_cancelled() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.append("yes")

        async with Tasks() as tasks:
            tasks.start("waits", until_cancelled())
            await asyncio.sleep(0)
            assert repr(tasks) == "<Tasks waits>"
        assert ended == ["yes"]

    asyncio.run(main())


def test_a_task_that_fails_ends_the_block_with_its_own_exception() -> None:
    async def main() -> None:
        async def fails() -> None:
            raise LookupError("gone")

        async with Tasks() as tasks:
            tasks.start("fails", fails())
            await asyncio.Event().wait()

    with pytest.raises(LookupError, match="gone"):
        asyncio.run(main())


def test_an_exception_of_the_block_is_its_own() -> None:
    async def main() -> None:
        async with Tasks() as tasks:
            tasks.start("waits", asyncio.Event().wait())
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        asyncio.run(main())


def test_several_failures_are_told_together() -> None:
    async def main() -> None:
        async def fails_at_its_end() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                raise LookupError("late")

        async with Tasks() as tasks:
            tasks.start("fails", fails_at_its_end())
            await asyncio.sleep(0)
            raise LookupError("mine")

    with pytest.raises(ExceptionGroup) as told:
        asyncio.run(main())
    assert {str(error) for error in told.value.exceptions} == {"mine", "late"}


def test_a_cancelled_block_stays_cancelled() -> None:
    async def main() -> None:
        async def block() -> None:
            async with Tasks() as tasks:
                tasks.start("waits", asyncio.Event().wait())
                await asyncio.Event().wait()

        async with asyncio.TaskGroup() as group:
            task = group.create_task(block())
            await asyncio.sleep(0)
            task.cancel()
        assert task.cancelled()

    asyncio.run(main())


class Failed(Exception):
    """What a caller answers by trying again."""


async def fails_when(gate: asyncio.Event) -> None:
    try:
        await gate.wait()
    except asyncio.CancelledError:
        raise Failed from None  # a client library does so
    raise Failed


@pytest.mark.parametrize("turns", range(8))
def test_a_cancellation_that_meets_a_failing_task_is_not_lost_at_any_moment(turns: int) -> None:
    """Found by `./orb faults --seed 6 --rounds 114`: a watch of etcd that tried again outlived its session, and the
    master that waited for its end never campaigned again."""

    async def main() -> None:
        gate = asyncio.Event()

        async def tries_again() -> None:
            for _ in range(100):
                with contextlib.suppress(Failed):
                    async with Tasks() as tasks:
                        tasks.start("fails", fails_when(gate))
                        await asyncio.Event().wait()
                await asyncio.sleep(0)

        trying = asyncio.create_task(tries_again())
        await asyncio.sleep(0.01)
        if turns:
            gate.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        trying.cancel()
        gate.set()
        await asyncio.wait({trying})
        assert trying.cancelled()

    asyncio.run(main())


@pytest.mark.parametrize("turns", range(4))
def test_a_task_that_fails_while_its_block_ends_by_itself_cancels_nobody(turns: int) -> None:
    """Found by `./orb faults --seed 3 --rounds 55`: a watch of etcd that failed let its block go on, and so took the
    watcher along, which was to try again; masters heard of nothing for half a minute at a time."""

    async def main() -> int:
        task = asyncio.current_task()
        assert task is not None

        async def last_word(said: asyncio.Event) -> None:
            said.set()
            for _ in range(turns):
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
            raise LookupError("gone")

        async def block() -> None:
            said = asyncio.Event()
            async with Tasks() as tasks:
                tasks.start("last word", last_word(said))
                await said.wait()

        for _ in range(2):
            with pytest.raises(LookupError, match="gone"):
                await block()
            await asyncio.sleep(0)
        return task.cancelling()

    assert asyncio.run(main()) == 0


def test_a_time_limit_that_meets_a_failing_task_is_still_that_limit() -> None:
    async def main() -> None:
        async with asyncio.timeout(0.01):
            async with Tasks() as tasks:
                tasks.start("fails", fails_when(asyncio.Event()))
                await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        asyncio.run(main())


def test_a_failure_inside_of_a_task_that_was_cancelled_before_is_told() -> None:
    """As in the clean-up after a cancellation: nobody has asked this block to end."""

    async def main() -> None:
        told: list[str] = []

        async def cleans_up() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                gate = asyncio.Event()
                gate.set()
                try:
                    async with Tasks() as tasks:
                        tasks.start("fails", fails_when(gate))
                        await asyncio.Event().wait()
                except Failed:
                    told.append("failed")
                raise

        cleaning = asyncio.create_task(cleans_up())
        await asyncio.sleep(0)
        cleaning.cancel()
        await asyncio.wait({cleaning})
        assert told == ["failed"]
        assert cleaning.cancelled()

    asyncio.run(main())


def test_ended_waits_for_tasks_that_tasks_start() -> None:
    async def main() -> None:
        done: list[int] = []

        async with Tasks() as tasks:

            async def chain(left: int) -> None:
                await asyncio.sleep(0)
                done.append(left)
                if left:
                    tasks.start(f"chain {left}", chain(left - 1))

            tasks.start("chain", chain(3))
            await tasks.ended()
            assert done == [3, 2, 1, 0]
            assert len(tasks) == 0

    asyncio.run(main())


def test_a_failpoint_is_off_unless_it_is_set_right() -> None:
    assert failpoint_of({}) is no_failpoint
    for wrong in (":1", "stored:0", "stored:x"):
        with pytest.raises(ValueError):  # noqa: PT011  int says it in its own words
            failpoint_of({FAILPOINT: wrong})
