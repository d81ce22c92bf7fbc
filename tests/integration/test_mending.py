"""A broker whose writes failed on a full disk is restarted by the command whose child it is, once there is room."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

from cli.local.nats_restart import APART_S, ENOUGH_BYTES, NatsRestart
from cli.local.process_group import ProcessGroup, RunEnd, RunOutcome
from cli.local.supervisor import Engine
from shared.adapters.nats import EmbeddedServer
from tests.support.progress_recorder import NoteRecorder

FAILED = "[1] [ERR] JetStream failed to store a msg on stream '$G > REPORTS': write /d/1.blk: no space left on device\n"


class Broker:
    """A child that only hears signals, and its log."""

    name, pid, patience_s = "broker", 1, 1.0

    def __init__(self) -> None:
        self.failed: str | None = None
        self.signals: list[int] = []

    def storage_failure(self) -> str | None:
        return self.failed

    def signal(self, number: int) -> None:
        self.signals.append(number)

    async def start(self) -> None: ...

    async def exited(self) -> int:
        return 0

    def last_words(self) -> str:
        return ""


def test_broker_is_killed_after_failed_write_with_space_not_at_each_check() -> None:
    broker, watch, clock = Broker(), NoteRecorder(), [100.0]
    mending = NatsRestart(broker, broker, watch, now=lambda: clock[0])
    mending.look(ENOUGH_BYTES)
    broker.failed = FAILED
    mending.look(ENOUGH_BYTES - 1)
    assert broker.signals == []
    mending.look(ENOUGH_BYTES)
    mending.look(ENOUGH_BYTES)
    assert broker.signals == [signal.SIGKILL]
    assert len(watch.notes) == 1
    clock[0] += APART_S
    mending.look(ENOUGH_BYTES)
    assert broker.signals == [signal.SIGKILL] * 2


async def until(true: Callable[[], bool]) -> None:
    for _ in range(3000):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come true")


def test_the_server_comes_back_and_is_left_alone_then(tmp_path: Path) -> None:
    async def run() -> None:
        watch = NoteRecorder()
        family, server = ProcessGroup(watch), EmbeddedServer(tmp_path)
        broker, clock = Engine("broker", server), [100.0]
        mending = NatsRestart(server, broker, watch, now=lambda: clock[0])

        async def work() -> None:
            assert await family.start(broker)
            first = broker.pid
            with (tmp_path / "nats.log").open("a") as log:
                log.write(FAILED)
            mending.look(ENOUGH_BYTES)
            await until(lambda: broker.pid not in (None, first) and server.storage_failure() is None)
            clock[0] += APART_S
            mending.look(ENOUGH_BYTES)
            family.end(RunOutcome(RunEnd.FINISHED))

        await family.run(work)
        assert sum(line.startswith("NATS stores nothing") for line in watch.notes) == 1
        assert "broker was killed by SIGKILL; it is started again" in watch.notes

    asyncio.run(asyncio.wait_for(run(), 60))
