"""robots.txt: asked for once by all workers together, through its redirects, and shared by whoever waits for it."""

import asyncio
import gzip
import threading
from contextlib import AsyncExitStack
from itertools import pairwise, product
from pathlib import Path

import pytest

from shared.domain.frontier.states import UrlEnd
from shared.domain.web.robots import RobotsRules
from shared.domain.web.robots_rules import AgentRules
from shared.wire.messages import UrlOutcome
from tests.support.api.scripted_owner import owner_of, spec_for, worker
from tests.support.engines.nats_server import BrokerServer
from tests.support.engines.nats_server import server as server
from tests.support.web.fetchers import run
from tests.support.web.raw_server import Connection, Script, page, raw_server
from workers.robots import PARSED_ON_LOOP

PRIVATE = page(b"User-agent: *\nDisallow: /private\n", b"Content-Type: text/plain", b"Cache-Control: max-age=600")
EMPTY = page(b"", b"Content-Type: text/plain")
ALIKE = b"User-agent: *\n" + b"".join(
    b"Disallow: /%s\n" % b"".join(letters) for letters in product((b"*a", b"*b"), repeat=13)
)
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


def ends(results: list[UrlOutcome]) -> list[UrlEnd]:
    return [UrlEnd(result.end) for result in results]


def test_two_workers_ask_for_it_once(server: BrokerServer, tmp_path: Path) -> None:
    async def main() -> None:
        async with raw_server(answering({b"/robots.txt": PRIVATE})) as site:
            async with owner_of(server, tmp_path, spec_for(site.url())) as owner:
                for name in ("w1", "w2"):
                    async with worker(server, tmp_path, id=name):
                        leases = [await owner.send(site.url("/a"), site.url("/private/b"), slot=n) for n in range(4)]
                        for lease in leases:
                            await owner.ended(lease)
                            assert ends(owner.results(lease)) == [UrlEnd.ANSWERED, UrlEnd.DENIED]
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
            assert ends(owner.results(lease)) == [UrlEnd.DENIED if obeyed else UrlEnd.ANSWERED]

    run(main())


def test_hosts_that_redirect_to_one_robots_txt_request_it_once(server: BrokerServer, tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            target = await stack.enter_async_context(raw_server(answering({b"/robots.txt": PRIVATE})))
            to_target = answering({b"/robots.txt": moved(target.url("/robots.txt"))})
            sites = [await stack.enter_async_context(raw_server(to_target)) for _ in range(6)]
            owner = await stack.enter_async_context(owner_of(server, tmp_path, spec_for(target.url())))
            for name, hosts in (("w1", sites[:3]), ("w2", sites[3:])):
                async with worker(server, tmp_path, id=name):
                    leases = [await owner.send(site.url("/private/b"), slot=slot) for slot, site in enumerate(hosts)]
                    for lease in leases:
                        await owner.ended(lease)
                        assert ends(owner.results(lease)) == [UrlEnd.DENIED]
            assert [request.split()[1] for request in target.requests] == [b"/robots.txt"]

    run(main())


def test_hosts_whose_robots_txt_redirect_to_pages_of_a_host_let_it_rest(server: BrokerServer, tmp_path: Path) -> None:
    delay_s = 0.5

    async def main() -> None:
        asked: list[float] = []

        async def target_script(connection: Connection) -> None:
            while True:
                await connection.request()
                asked.append(asyncio.get_running_loop().time())
                await connection.send(EMPTY)

        async with AsyncExitStack() as stack:
            target = await stack.enter_async_context(raw_server(target_script))
            scripts = [answering({b"/robots.txt": moved(target.url(f"/?of={n}"))}) for n in range(4)]
            sites = [await stack.enter_async_context(raw_server(script)) for script in scripts]
            spec = spec_for(target.url(), politeness={"delay_s": delay_s})
            owner = await stack.enter_async_context(owner_of(server, tmp_path, spec))
            await stack.enter_async_context(worker(server, tmp_path))
            leases = [await owner.send(site.url("/a"), slot=slot) for slot, site in enumerate(sites)]
            for lease in leases:
                await owner.ended(lease)
                assert ends(owner.results(lease)) == [UrlEnd.ANSWERED]
        assert len(asked) == len(sites)
        assert min(later - earlier for earlier, later in pairwise(asked)) >= delay_s

    run(main())


def test_a_host_rests_after_a_redirect_to_its_robots_txt(server: BrokerServer, tmp_path: Path) -> None:
    delay_s = 1.0

    async def main() -> None:
        asked: list[tuple[bytes, float]] = []

        async def target_script(connection: Connection) -> None:
            while True:
                path = (await connection.request()).split()[1]
                asked.append((path, asyncio.get_running_loop().time()))
                await connection.send(PRIVATE if path == b"/robots.txt" else EMPTY)

        async with (
            raw_server(target_script) as target,
            raw_server(answering({b"/robots.txt": moved(target.url("/robots.txt"))})) as site,
            owner_of(server, tmp_path, spec_for(site.url())) as owner,
            worker(server, tmp_path),
        ):
            await owner.ended(await owner.send(site.url("/a")))
            await owner.ended(await owner.send(target.url("/a"), slot=1, delay_ms=int(delay_s * 1000)))
        assert [path for path, _ in asked] == [b"/robots.txt", b"/a"]
        assert asked[1][1] - asked[0][1] >= delay_s

    run(main())


def test_hosts_whose_robots_txt_redirect_to_each_other_are_both_visited(server: BrokerServer, tmp_path: Path) -> None:
    async def main() -> None:
        places: dict[bytes, bytes] = {}
        async with (
            raw_server(answering(places)) as one,
            raw_server(answering({b"/robots.txt": moved(one.url("/robots.txt"))})) as other,
            owner_of(server, tmp_path, spec_for(one.url())) as owner,
            worker(server, tmp_path),
        ):
            places[b"/robots.txt"] = moved(other.url("/robots.txt"))
            leases = [await owner.send(site.url("/private/b"), slot=slot) for slot, site in enumerate((one, other))]
            for lease in leases:
                await owner.ended(lease)
                assert ends(owner.results(lease)) == [UrlEnd.ANSWERED]

    run(main())


def test_a_failure_behind_a_redirect_is_not_that_of_the_next_visit(server: BrokerServer, tmp_path: Path) -> None:
    async def main() -> None:
        places = {b"/robots.txt": b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n"}
        async with (
            raw_server(answering(places)) as target,
            raw_server(answering({b"/robots.txt": moved(target.url("/robots.txt"))})) as site,
            owner_of(server, tmp_path, spec_for(site.url())) as owner,
            worker(server, tmp_path),
        ):
            failed = await owner.ended(await owner.send(site.url("/a")))
            assert failed.note is not None
            assert failed.note.failure == "robots_http_500"
            places[b"/robots.txt"] = PRIVATE
            for url in (site.url("/private/b"), target.url("/private/b")):
                lease = await owner.send(url, slot=1)
                await owner.ended(lease)
                assert ends(owner.results(lease)) == [UrlEnd.DENIED]
            assert [request.split()[1] for request in target.requests] == [b"/robots.txt"] * 2

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
                assert ends(owner.results(lease)) == [UrlEnd.ANSWERED]
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


def test_hosts_of_ones_own_are_visited_without_robots_and_marked(server: BrokerServer, tmp_path: Path) -> None:
    async def main() -> None:
        async with raw_server(answering({b"/robots.txt": PRIVATE})) as site:
            spec = spec_for(site.url(), robots={"ignore_for": [site.url().split("/")[2]]})
            async with owner_of(server, tmp_path, spec) as owner, worker(server, tmp_path):
                lease = await owner.send(site.url("/private/b"))
                await owner.ended(lease)
                assert ends(owner.results(lease)) == [UrlEnd.ANSWERED]
                assert [request.split()[1] for request in site.requests] == [b"/private/b"]

    run(main())
    [segment] = (tmp_path / "archive").glob("*.warc.gz*")
    assert gzip.decompress(segment.read_bytes()).count(b"robots: ignore\r\n") == 1


def test_robots_txt_is_renewed_behind_the_pages_at_the_hosts_delay(
    server: BrokerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.robots.RENEWED_AT", 0.0)

    async def main() -> None:
        async with (
            raw_server(answering({b"/robots.txt": PRIVATE})) as site,
            owner_of(server, tmp_path, spec_for(site.url())) as owner,
            worker(server, tmp_path),
        ):
            lease = await owner.send(site.url("/a"), site.url("/b"), delay_ms=300)
            last = await owner.ended(lease)
            assert ends(owner.results(lease)) == [UrlEnd.ANSWERED, UrlEnd.ANSWERED]
            assert last.note is not None
            assert last.note.failure == ""
            asked = [request.split()[1] for request in site.requests]
            assert asked == [b"/robots.txt", b"/a", b"/b", b"/robots.txt"]
            assert last.quiet_ms < 300, "the host's rest counts from the renewal"

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


def coded(body: bytes) -> bytes:
    return page(body, b"Content-Type: text/plain", b"Content-Encoding: gzip")


@pytest.mark.parametrize(
    "robots",
    [
        {b"/robots.txt": coded(b"User-agent: *\nDisallow: /private\n")},
        {b"/robots.txt": coded(gzip.compress(b"User-agent: *\n" + b"Disallow: /private\n" * 99)[:-30])},
        {b"/robots.txt": b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n"},
        {b"/robots.txt": moved("mailto:a@b.example")},
        {b"/robots.txt": b"HTTP/1.1 304 Not Modified\r\n\r\n"},
        {b"/robots.txt": moved("http://10.1.2.3/robots.txt")},
        {b"/robots.txt": moved("/r1"), b"/r1": moved("http://[fd00::1]/robots.txt")},
        {b"/robots.txt": page(ALIKE, b"Content-Type: text/plain")},
    ],
    ids=["plain-as-gzip", "cut-gzip", "no-location", "no-http", "304", "denied", "denied-later", "too-costly"],
)
def test_what_cannot_be_used_makes_the_host_unreachable(
    server: BrokerServer, tmp_path: Path, robots: dict[bytes, bytes]
) -> None:
    """Such an answer allowed everything for a day, on all workers."""

    async def main() -> None:
        async with (
            raw_server(answering(robots)) as site,
            owner_of(server, tmp_path, spec_for(site.url())) as owner,
            worker(server, tmp_path),
        ):
            last = await owner.ended(await owner.send(site.url("/a")))
            assert last.note is not None
            assert last.note.failure.startswith("robots_")
            assert len(last.not_attempted) == 1
            assert b"/a" not in [request.split()[1] for request in site.requests]

    run(main())


@pytest.mark.parametrize("status", [b"404 Not Found", b"301 Moved\r\nLocation: /r1"], ids=["404", "301"])
def test_an_answer_without_a_file_counts_though_its_body_is_cut(
    server: BrokerServer, tmp_path: Path, status: bytes
) -> None:
    async def main() -> None:
        async def script(connection: Connection) -> None:
            while (await connection.request()).split()[1] != b"/robots.txt":
                await connection.send(EMPTY)
            await connection.send(b"HTTP/1.1 " + status + b"\r\nContent-Length: 99\r\n\r\ncut")

        async with (
            raw_server(script) as site,
            owner_of(server, tmp_path, spec_for(site.url())) as owner,
            worker(server, tmp_path),
        ):
            lease = await owner.send(site.url("/a"))
            last = await owner.ended(lease)
            assert last.note is not None
            assert last.note.failure == ""
            assert ends(owner.results(lease)) == [UrlEnd.ANSWERED]

    run(main())


def test_an_absent_file_whose_error_page_cannot_be_decoded_is_absent(server: BrokerServer, tmp_path: Path) -> None:
    async def main() -> None:
        gone = b"HTTP/1.1 404 Not Found\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nno!"
        async with (
            raw_server(answering({b"/robots.txt": gone})) as site,
            owner_of(server, tmp_path, spec_for(site.url())) as owner,
            worker(server, tmp_path),
        ):
            lease = await owner.send(site.url("/a"))
            await owner.ended(lease)
            assert ends(owner.results(lease)) == [UrlEnd.ANSWERED]

    run(main())


def test_a_large_file_is_parsed_outside_the_loop_and_obeyed(
    server: BrokerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed_in: list[bool] = []
    parse = RobotsRules.of

    def of(self: RobotsRules, agent: str) -> AgentRules:
        if not self.parsed(agent):
            parsed_in.append(threading.current_thread() is threading.main_thread())
        return parse(self, agent)

    monkeypatch.setattr(RobotsRules, "of", of)
    large = b"User-agent: *\nDisallow: /private\n" + b"Disallow: /x\n" * (PARSED_ON_LOOP // 12)

    async def main() -> None:
        async with (
            raw_server(answering({b"/robots.txt": page(large, b"Content-Type: text/plain")})) as site,
            owner_of(server, tmp_path, spec_for(site.url())) as owner,
            worker(server, tmp_path),
        ):
            lease = await owner.send(site.url("/private/b"))
            await owner.ended(lease)
            assert ends(owner.results(lease)) == [UrlEnd.DENIED]
            assert parsed_in == [False]

    run(main())
