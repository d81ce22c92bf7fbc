"""Background tasks end with their block, and none fails unseen."""

import asyncio
import signal
import subprocess
import sys

import pytest

from shared.supervise import FAILPOINT, Tasks, failpoint_of, no_failpoint


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


def test_a_failpoint_kills_at_the_pass_it_names() -> None:
    code = f"""if 1:
        from shared.supervise import failpoint_of
        here = failpoint_of({{"{FAILPOINT}": "stored:2"}})
        for name in ("stored", "other", "stored", "never"):
            print(name, flush=True)
            here(name)
    """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout.split() == [b"stored", b"other", b"stored"]


def test_a_failpoint_is_off_unless_it_is_set_right() -> None:
    assert failpoint_of({}) is no_failpoint
    for wrong in (":1", "stored:0", "stored:x"):
        with pytest.raises(ValueError):  # noqa: PT011  int says it in its own words
            failpoint_of({FAILPOINT: wrong})
