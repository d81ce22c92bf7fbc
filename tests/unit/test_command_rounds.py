"""The rounds of the leader's publishers: none while it must not act, each reason logged, and no wake-up lost."""

import asyncio
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from api.leader import command_rounds
from api.leader.command_rounds import MAX_LOGGED, CommandErrors, CommandRounds
from shared.domain.errors import Permanent, Refused, Transient


def logged(errors: CommandErrors) -> Sequence[tuple[str, str, str, int, int]]:
    """Return what a round that has these errors logs: level, error, first command, its number, number of reasons."""

    async def once() -> CommandErrors:
        return errors

    with capture_logs() as lines:
        asyncio.run(CommandRounds("hosts", once, lambda: True).attempt())
    assert {line["of"] for line in lines} <= {"hosts"}
    assert all((line["event"] == "commands.refused") == (line["log_level"] == "error") for line in lines)
    return [(line["log_level"], line["error"], line["command"], line["count"], line["reasons"]) for line in lines]


def test_each_reason_is_logged_once_and_the_final_ones_first() -> None:
    errors: CommandErrors = {
        "a": Refused("full"),
        "b": Permanent("too large"),
        "c": Refused("full"),
        "d": Permanent("no stream"),
    }
    assert logged(errors) == [
        ("error", "too large", "b", 1, 3),
        ("error", "no stream", "d", 1, 3),
        ("warning", "full", "a", 2, 3),
    ]


def test_number_of_lines_of_a_round_is_bounded() -> None:
    lines = logged({f"c{n}": Permanent(f"{n} is too large") for n in range(99)})
    assert [line[2] for line in lines] == [f"c{n}" for n in range(MAX_LOGGED)]
    assert {line[4] for line in lines} == {99}


@pytest.mark.parametrize("error", [Transient("away"), Permanent("no table")])
def test_round_that_fails_as_a_whole_is_logged_and_ends_no_task(error: Exception) -> None:
    async def once() -> CommandErrors:
        raise error

    with capture_logs() as lines:
        asyncio.run(CommandRounds("hosts", once, lambda: True).attempt())
    event = "commands.refused" if isinstance(error, Permanent) else "commands.delayed"
    assert [(line["event"], line["error"]) for line in lines] == [(event, str(error))]


def test_wake_up_during_a_round_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_rounds, "LOOK_S", None)

    async def story() -> None:
        first, second = asyncio.Event(), asyncio.Event()

        async def once() -> CommandErrors:
            if first.is_set():
                second.set()
            else:
                first.set()
                rounds.wake()
            return {}

        rounds = CommandRounds("hosts", once, lambda: True)
        running = asyncio.create_task(rounds.run())
        await second.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(asyncio.wait_for(story(), 60))


def test_master_that_must_not_act_publishes_nothing_and_goes_on() -> None:
    async def story() -> None:
        asked, published = asyncio.Event(), list[bool]()

        async def once() -> CommandErrors:
            published.append(True)
            return {}

        def acting() -> bool:
            asked.set()
            return False

        rounds = CommandRounds("hosts", once, acting)
        rounds.wake()
        running = asyncio.create_task(rounds.run())
        await asked.wait()
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert published == []

    asyncio.run(story())
