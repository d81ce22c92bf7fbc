"""robots.txt: asked for once by all workers together, through its redirects, and shared by whoever waits for it."""

import asyncio
from pathlib import Path

import pytest

from shared.domain.frontier import End
from shared.wire.messages import UrlOutcome
from tests.support.broker import BrokerServer
from tests.support.broker import server as server
from tests.support.fetching import run
from tests.support.owner import owner_of, spec_for, worker
from tests.support.rawserver import Connection, Script, page, raw_server

PRIVATE = page(b"User-agent: *\nDisallow: /private\n", b"Content-Type: text/plain", b"Cache-Control: max-age=600")
EMPTY = page(b"", b"Content-Type: text/plain")
GONE = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


def answering(robots: dict[bytes, bytes]) -> Script:
    """Answers the paths that `robots` names, and everything else with an empty page."""

    async def script(connection: Connection) -> None:
        while True:
            path = (await connection.request()).split()[1]
            await connection.send(robots.get(path, EMPTY))

    return script


def moved(to: str) -> bytes:
    return f"HTTP/1.1 301 Moved\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode()


def ends(results: list[UrlOutcome]) -> list[End]:
    return [End(result.end) for result in results]


def test_two_workers_ask_for_it_once(server: BrokerServer, tmp_path: Path) -> None:
    async def main() -> None:
        async with raw_server(answering({b"/robots.txt": PRIVATE})) as site:
            async with owner_of(server, tmp_path, spec_for(site.url())) as owner:
                for name in ("w1", "w2"):
                    async with worker(server, tmp_path, id=name):
                        leases = [await owner.send(site.url("/a"), site.url("/private/b"), slot=n) for n in range(4)]
                        for lease in leases:
                            await owner.ended(lease)
                            assert ends(owner.results(lease)) == [End.ANSWERED, End.DENIED]
            asked = [request.split()[1] for request in site.requests]
            assert asked.count(b"/robots.txt") == 1
            assert b"/private/b" not in asked

    run(main())


@pytest.mark.parametrize(("hops", "obeyed"), [(1, True), (5, True), (6, False)])
def test_five_redirects_are_followed_and_more_mean_that_there_is_none(
    server: BrokerServer, tmp_path: Path, hops: int, obeyed: bool
) -> None:
    async def main() -> None:
        chain = {b"/robots.txt": moved("/r1")} | {b"/r%d" % n: moved(f"/r{n + 1}") for n in range(1, hops)}
        chain[b"/r%d" % hops] = PRIVATE
        async with (
            raw_server(answering(chain)) as site,
            owner_of(server, tmp_path, spec_for(site.url())) as owner,
            worker(server, tmp_path),
        ):
            lease = await owner.send(site.url("/private/b"))
            await owner.ended(lease)
            assert ends(owner.results(lease)) == [End.DENIED if obeyed else End.ANSWERED]

    run(main())


def test_without_one_everything_is_allowed_and_that_is_remembered_too(server: BrokerServer, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            raw_server(answering({b"/robots.txt": GONE})) as site,
            owner_of(server, tmp_path, spec_for(site.url())) as owner,
            worker(server, tmp_path),
        ):
            for slot in range(2):
                lease = await owner.send(site.url("/private/b"), slot=slot)
                await owner.ended(lease)
                assert ends(owner.results(lease)) == [End.ANSWERED]
            assert [request.split()[1] for request in site.requests].count(b"/robots.txt") == 1

    run(main())


def test_a_spec_that_does_not_obey_never_asks(server: BrokerServer, tmp_path: Path) -> None:
    async def main() -> None:
        spec = spec_for("http://127.0.0.1/", politeness={"obey_robots": False})
        async with (
            raw_server(answering({b"/robots.txt": PRIVATE})) as site,
            owner_of(server, tmp_path, spec) as owner,
            worker(server, tmp_path),
        ):
            await owner.ended(await owner.send(site.url("/private/b")))
            assert [request.split()[1] for request in site.requests] == [b"/private/b"]

    run(main())


def test_visits_that_wait_for_an_answer_that_does_not_come_share_the_failure(
    server: BrokerServer, tmp_path: Path
) -> None:
    async def main() -> None:
        asked, go_on = asyncio.Event(), asyncio.Event()

        async def resets(connection: Connection) -> None:
            await connection.request()
            asked.set()
            await go_on.wait()
            connection.reset()

        async with (
            raw_server(resets) as site,
            owner_of(server, tmp_path, spec_for(site.url())) as owner,
            worker(server, tmp_path),
        ):
            leases = [await owner.send(site.url("/a"), slot=slot) for slot in range(4)]
            await owner.until(lambda: len(owner.questions) >= 4)
            await asked.wait()
            go_on.set()
            for lease in leases:
                last = await owner.ended(lease)
                assert last.note is not None
                assert (last.note.failure, len(last.not_attempted)) == ("robots_reset", 1)

    run(main())
