"""Look-ups of host names: silent name servers delay no other host, and their threads are bounded."""

import asyncio
import socket
import threading
from typing import Any

import pytest

from tests.support.web.fetchers import run
from workers.fetch import names as module
from workers.fetch.names import Names, NotResolved, is_name


class Resolver:
    """Stands for `socket.getaddrinfo`. Names with `silent` get no answer before `answering` is set."""

    def __init__(self) -> None:
        self.answering = threading.Event()
        self.asked: list[str] = []

    def __call__(self, host: bytes, *_: object, **__: object) -> list[Any]:
        self.asked.append(host.decode())
        if b"silent" in host and not self.answering.wait(60):
            raise AssertionError("the test has ended without an answer")
        if b"failing" in host and len(self.asked) > 1:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        if b"unknown" in host or (b"leaving" in host and len(self.asked) > 1):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        found = ["192.0.2.1", "192.0.2.1", "fe80::1%eth0"]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in found]


async def ended(names: Names) -> None:
    """Wait for the end of all look-ups."""
    await asyncio.gather(*(look_up.result for look_up in names._under_way.values()))


def test_addresses_of_a_name_are_kept_in_order_and_asked_for_once() -> None:
    async def main() -> None:
        resolver = Resolver()
        names = Names(resolver)
        both = await asyncio.gather(names.addresses("a.example", 5), names.addresses("a.example", 5))
        assert [*both, await names.addresses("a.example", 5)] == [("192.0.2.1", "fe80::1")] * 3
        assert resolver.asked == ["a.example"]

    run(main())


def test_failed_look_up_says_why_and_is_repeated_later(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        resolver = Resolver()
        names = Names(resolver)
        for _ in range(2):
            with pytest.raises(NotResolved, match="Name or service not known"):
                await names.addresses("unknown.example", 5)
        assert resolver.asked == ["unknown.example"]
        monkeypatch.setattr(module, "FAILED_S", 0.0)
        with pytest.raises(NotResolved, match="Name or service not known"):
            await names.addresses("unknown.example", 5)
        assert resolver.asked == ["unknown.example"] * 2

    run(main())


def test_silent_name_ends_at_its_limit_and_delays_no_other() -> None:
    async def main() -> None:
        resolver = Resolver()
        names = Names(resolver)
        silent = [asyncio.create_task(names.addresses(f"silent{n}.example", 60)) for n in range(100)]
        await asyncio.sleep(0)
        assert await names.addresses("a.example", 60) == ("192.0.2.1", "fe80::1")
        assert not any(task.done() for task in silent)
        with pytest.raises(NotResolved, match=r"no answer within 0\.1 s"):
            await names.addresses("silent.example", 0.1)
        with pytest.raises(NotResolved, match="no answer within"):
            await names.addresses("silent.example", 60)
        resolver.answering.set()
        assert set(await asyncio.gather(*silent)) == {("192.0.2.1", "fe80::1")}
        await ended(names)
        assert await names.addresses("silent.example", 60) == ("192.0.2.1", "fe80::1")
        assert resolver.asked.count("silent.example") == 1

    run(main())


def test_known_addresses_serve_while_name_servers_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH_S", 0.0)

    async def main() -> None:
        resolver = Resolver()
        names = Names(resolver)
        for asked in range(1, 4):
            assert await names.addresses("failing.example", 5) == ("192.0.2.1", "fe80::1")
            await ended(names)
            assert len(resolver.asked) == asked
        monkeypatch.setattr(module, "USABLE_S", 0.0)
        with pytest.raises(NotResolved, match="Temporary failure"):
            await names.addresses("failing.example", 5)

    run(main())


def test_known_addresses_serve_while_a_silent_look_up_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH_S", 0.0)

    async def main() -> None:
        resolver = Resolver()
        resolver.answering.set()
        names = Names(resolver)
        await names.addresses("silent.example", 5)
        resolver.answering.clear()
        for _ in range(3):
            assert await names.addresses("silent.example", 0.01) == ("192.0.2.1", "fe80::1")
        resolver.answering.set()
        await ended(names)
        assert resolver.asked == ["silent.example"] * 2

    run(main())


def test_known_addresses_of_a_name_that_is_gone_do_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH_S", 0.0)

    async def main() -> None:
        names = Names(Resolver())
        for _ in range(2):
            assert await names.addresses("leaving.example", 5) == ("192.0.2.1", "fe80::1")
        await ended(names)
        with pytest.raises(NotResolved, match="not known"):
            await names.addresses("leaving.example", 5)

    run(main())


def test_look_up_beyond_the_bound_waits_without_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LOOKUPS", 1)

    async def main() -> None:
        resolver = Resolver()
        names = Names(resolver)
        with pytest.raises(NotResolved):
            await names.addresses("silent.example", 0.01)
        waiting = [asyncio.create_task(names.addresses("a.example", 5)) for _ in range(3)]
        await asyncio.sleep(0.2)
        assert not any(task.done() for task in waiting)
        assert resolver.asked == ["silent.example"]
        resolver.answering.set()
        assert await asyncio.gather(*waiting) == [("192.0.2.1", "fe80::1")] * 3
        assert resolver.asked == ["silent.example", "a.example"]

    run(main())


def test_look_ups_wait_while_the_system_refuses_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    async def main() -> None:
        resolver = Resolver()
        names = Names(resolver)
        silent = asyncio.create_task(names.addresses("silent.example", 5))
        await asyncio.sleep(0)
        monkeypatch.setattr(threading, "Thread", Refused)
        waiting = asyncio.create_task(names.addresses("a.example", 5))
        await asyncio.sleep(0)
        monkeypatch.undo()
        resolver.answering.set()
        assert [await silent, await waiting] == [("192.0.2.1", "fe80::1")] * 2
        monkeypatch.setattr(threading, "Thread", Refused)
        with pytest.raises(OSError, match="no thread"):
            await names.addresses("b.example", 5)
        monkeypatch.undo()
        assert await names.addresses("b.example", 5) == ("192.0.2.1", "fe80::1")

    run(main())


def test_names_beyond_the_bound_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_NAMES", 2)

    async def main() -> None:
        resolver = Resolver()
        names = Names(resolver)
        for host in ("a.example", "b.example", "c.example", "c.example", "a.example"):
            await names.addresses(host, 5)
        assert resolver.asked == ["a.example", "b.example", "c.example", "a.example"]

    run(main())


@pytest.mark.parametrize(
    ("host", "looked_up"),
    [
        ("a.example", True),
        ("a.example.", True),
        ("192.0.2.1", False),
        ("[2001:db8::1]", False),
        ("localhost", False),
        ("a.localhost.", False),
    ],
)
def test_is_name_is_false_where_no_look_up_is_needed(host: str, looked_up: bool) -> None:
    assert is_name(host) is looked_up
