"""A run's processes are kept alive, but not for ever."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from cli.local import logs
from cli.local import supervisor as children
from cli.local.logs import begin_log, bound_log, tail
from cli.local.supervisor import RestartBudget, RestartLimitReached, Supervisor, ended_by, environment, logged_error_of
from shared.domain.errors import Unusable


class Scripted:
    """A child whose lives end as a script says; the last one lives until it is told to end."""

    name = "worker-1"

    patience_s = 1.0

    def __init__(self, *ends: int, words: str = "") -> None:
        self.ends = list(ends)
        self.starts = 0
        self.signals: list[int] = []
        self.words = words
        self.refuse: Exception | None = None
        self._told = asyncio.Event()

    @property
    def pid(self) -> int | None:
        return 1

    async def start(self) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.starts += 1

    async def exited(self) -> int:
        if self.ends:
            return self.ends.pop(0)
        await self._told.wait()
        return -signal.SIGTERM

    def signal(self, number: int) -> None:
        self.signals.append(number)
        self._told.set()

    def last_words(self) -> str:
        return self.words


Story = Callable[[], Coroutine[Any, Any, None]]


def keeper_of(child: Scripted, told: Callable[[str], None], wait_s: float = 0.0) -> Supervisor:
    return Supervisor(child, told, RestartBudget(first_wait_s=wait_s, longest_wait_s=wait_s))


def run(story: Story) -> None:
    asyncio.run(asyncio.wait_for(story(), 30))


def test_the_wait_grows_and_many_deaths_in_a_short_time_are_too_many() -> None:
    deaths = RestartBudget(5, 60.0, 0.2, 5.0)
    assert [deaths.died(float(second)) for second in range(6)] == [0.2, 0.4, 0.8, 1.6, 3.2, None]


def test_deaths_far_apart_are_forgiven() -> None:
    deaths = RestartBudget(5, 60.0, 0.2, 5.0)
    assert {deaths.died(61.0 * number) for number in range(50)} == {0.2}


def test_a_dead_child_is_started_again_and_told_of() -> None:
    async def story() -> None:
        child, told = Scripted(-9, 1, 0), list[str]()
        keeper = keeper_of(child, told.append)
        await keeper.start()
        await keeper.keep()
        assert told == [
            "worker-1 was killed by SIGKILL; it is started again",
            "worker-1 ended with status 1; it is started again",
        ]
        assert (keeper.restarts, child.starts) == (2, 3)

    run(story)


def test_a_child_that_dies_again_and_again_is_given_up_with_its_last_words() -> None:
    async def story() -> None:
        child = Scripted(*[1] * 9, words="Traceback\nValueError: no")
        keeper = keeper_of(child, lambda line: None)
        await keeper.start()
        with pytest.raises(RestartLimitReached, match=r"(?s)again and again.*ValueError: no"):
            await keeper.keep()
        assert child.starts == 6

    run(story)


@pytest.mark.parametrize(
    "words",
    ["noise\norb: the disk is full: make room", '{"event": "master.failed", "error": "the disk is full: make room"}'],
)
def test_what_no_restart_can_help_is_told_in_the_childs_own_sentence(words: str) -> None:
    async def story() -> None:
        child = Scripted(4, words=words)
        keeper = keeper_of(child, lambda line: None)
        await keeper.start()
        with pytest.raises(RestartLimitReached, match=r"^the disk is full: make room$"):
            await keeper.keep()
        assert child.starts == 1

    run(story)


def test_child_without_its_port_is_started_again_once_all_were_ready() -> None:
    """Another process took the port for metrics while the worker was away; that ended the whole cluster."""

    async def story() -> None:
        child = Scripted(*([4] * 20), words="orb: cannot listen at 127.0.0.1:9100 for metrics")
        said: list[str] = []
        keeper = keeper_of(child, said.append)
        await keeper.start()
        keeper.ready()
        kept = asyncio.create_task(keeper.keep())
        while child.ends or child.starts < 21:  # noqa: ASYNC110  a script has no event for it
            await asyncio.sleep(0)
        keeper.stop()
        await kept
        assert keeper.restarts == len(said) == 20
        assert "cannot listen at 127.0.0.1:9100 for metrics; it is started again" in said[0]

    run(story)


def test_a_child_that_ends_well_is_left_in_peace() -> None:
    async def story() -> None:
        child = Scripted(0)
        keeper = keeper_of(child, lambda line: None)
        await keeper.start()
        await keeper.keep()
        assert child.starts == 1

    run(story)


def test_a_child_that_is_to_last_is_started_again_also_where_it_ended_well() -> None:
    async def story() -> None:
        child, told = Scripted(0), list[str]()
        keeper = Supervisor(child, told.append, RestartBudget(first_wait_s=0.0), lasting=True)
        await keeper.start()
        task = asyncio.ensure_future(keeper.keep())
        while child.starts < 2:  # noqa: ASYNC110 - it has no event; a turn of the loop is all it needs
            await asyncio.sleep(0)
        keeper.stop()
        await task
        assert told == ["worker-1 ended with status 0; it is started again"]

    run(story)


@pytest.mark.parametrize("refusal", [Unusable("no port"), OSError(11, "no more processes")])
def test_a_start_that_the_system_refuses_is_given_up(refusal: Exception) -> None:
    async def story() -> None:
        child = Scripted()
        child.refuse = refusal
        with pytest.raises(RestartLimitReached, match=r"cannot start worker-1: .*no "):
            await keeper_of(child, lambda line: None).start()

    run(story)


def test_a_stop_asked_for_while_a_child_starts_reaches_it() -> None:
    async def story() -> None:
        child = Scripted()
        keeper = keeper_of(child, lambda line: None)
        keeper.stop()
        await keeper.start()
        await keeper.keep()
        assert child.signals == [signal.SIGTERM, signal.SIGTERM]

    run(story)


def test_a_stop_during_the_wait_before_a_restart_starts_nothing() -> None:
    async def story() -> None:
        child = Scripted(1)
        told = asyncio.Event()
        keeper = keeper_of(child, lambda line: told.set(), wait_s=3600.0)
        await keeper.start()
        task = asyncio.ensure_future(keeper.keep())
        await told.wait()
        keeper.stop()
        await task
        assert child.starts == 1

    run(story)


def test_logs_are_bounded_and_those_of_the_run_before_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LOG_BYTES", 100)
    log = tmp_path / "logs" / "master.log"
    begin_log(log)
    with log.open("ab") as appended:
        appended.write(b"x" * 101)
        appended.flush()
        bound_log(log)
        appended.write(b"later\n")
    assert (log.read_bytes(), len((log.parent / "master.log.1").read_bytes())) == (b"later\n", 101)
    begin_log(log)
    assert (log.read_bytes(), (log.parent / "master.log.1").read_bytes()) == (b"", b"later\n")
    assert tail(log) == []
    assert tail(tmp_path / "none") == []


def test_words_without_a_sentence_are_none() -> None:
    assert logged_error_of(Scripted(words='{"event": "x"}\n[1]\nplain')) is None


def test_ends_in_words() -> None:
    assert [ended_by(status) for status in (1, -9)] == ["ended with status 1", "was killed by SIGKILL"]


def test_children_find_this_code_and_not_the_current_directorys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("ORB_ADDRESS", "elsewhere:1")
    found = environment({"ORB_DIR": "/x"}, without=["ORB_ADDRESS", "ORB_NEVER_SET"])
    assert "ORB_ADDRESS" not in found
    root = str(Path(children.__file__).parents[2])
    assert found["PYTHONPATH"].split(":") == [root, "/elsewhere"]
    assert (found["PYTHONSAFEPATH"], found["ORB_DIR"]) == ("1", "/x")
