"""Two origins of one host, http and https on its port: what a visit reports if one of them does not answer."""

import asyncio
import ssl
from pathlib import Path

import pytest

from shared.domain.frontier.states import UrlEnd
from shared.domain.web.url import fingerprint
from tests.support.api.scripted_owner import owner_of, paths, spec_for, worker
from tests.support.engines.certificates import OPENSSL, authority, signed
from tests.support.engines.nats_server import BrokerServer
from tests.support.engines.nats_server import server as server
from tests.support.web.fetchers import run
from tests.support.web.raw_server import Connection, Script, page, raw_server


def origins(listening: list[bool]) -> Script:
    """Answer http, and end each connection that begins with TLS. While `listening` is [False], end all."""

    async def script(connection: Connection) -> None:
        first = await connection.reader.readexactly(1)
        if first == b"G" and listening[0]:
            connection.requests.append(first + await connection.reader.readuntil(b"\r\n\r\n"))
            await connection.send(page(b"", b"Content-Type: text/plain", b"Connection: close"))

    return script


def both(http: int, https: int) -> Script:
    """Pass each connection on to the server at the port `https` if it begins with TLS, else to the one at `http`."""

    async def script(connection: Connection) -> None:
        first = await connection.reader.readexactly(1)
        reader, writer = await asyncio.open_connection("127.0.0.1", https if first == b"\x16" else http)

        async def answers() -> None:
            while data := await reader.read(65_536):
                await connection.send(data)

        writer.write(first)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(answers())
            while data := await connection.reader.read(65_536):
                writer.write(data)
            writer.close()

    return script


def answering(answer: bytes) -> Script:
    async def script(connection: Connection) -> None:
        while True:
            await connection.request()
            await connection.send(answer)

    return script


@pytest.mark.skipif(OPENSSL is None, reason="needs the openssl command to make a certificate")
@pytest.mark.parametrize("first", ["http", "https"])
def test_robots_txt_that_asks_for_a_pause_ends_the_visit_of_its_host(
    first: str, server: BrokerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its URLs failed within seconds, and its Retry-After was ignored, if another origin of the host answered."""
    busy = b"HTTP/1.1 429 Later\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n"
    trusted = authority(tmp_path)
    made = signed(tmp_path, trusted, "site")
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted.cert))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(made.cert, made.key)

    async def main() -> None:
        async with (
            raw_server(answering(page(b"", b"Content-Type: text/plain"))) as http,
            raw_server(answering(busy), tls) as https,
            raw_server(both(http.port, https.port)) as site,
            owner_of(server, tmp_path, spec_for(site.url())) as owner,
            worker(server, tmp_path),
        ):
            urls = [site.url("/1", "https"), site.url("/2", "https"), site.url("/a"), site.url("/b")]
            urls.sort(reverse=first == "https")
            lease = await owner.send(*urls)
            last = await owner.ended(lease)
            assert last.note is not None
            assert (last.note.failure, last.note.retry_after_ms) == ("robots_http_429", 3_600_000)
            assert paths(owner.results(lease), urls) == (urls[:2] if first == "http" else [])
            assert len(https.requests) == 1
            await owner.slot_free()
            alone = await owner.send(site.url("/1", "https"))
            last = await owner.ended(alone)
            assert last.note is not None
            assert (last.note.failure, owner.results(alone)) == ("robots_http_429", [])

    run(main())


def test_origin_that_fails_alone_fails_its_urls_and_not_the_host(server: BrokerServer, tmp_path: Path) -> None:
    """One link to https of a host without it ended each visit of the host, until the host was given up."""

    async def main() -> None:
        async with (
            raw_server(origins([True])) as site,
            owner_of(server, tmp_path, spec_for(site.url())) as owner,
            worker(server, tmp_path),
        ):
            urls = [site.url("/1", "https"), site.url("/a"), site.url("/2", "https"), site.url("/b")]
            lease = await owner.send(*urls)
            last = await owner.ended(lease)
            assert last.not_attempted == []
            assert last.note is not None
            assert last.note.failure == ""
            failed = {result.reason for result in owner.results(lease) if result.end == UrlEnd.FAILED}
            answered = [result for result in owner.results(lease) if result.end == UrlEnd.ANSWERED]
            assert failed == {"robots_tls"}
            assert paths(answered, urls) == [urls[1], urls[3]]
            alone = await owner.send(urls[0], slot=1)
            last = await owner.ended(alone)
            assert [result.reason for result in owner.results(alone)] == ["robots_tls"]
            assert last.note is not None
            assert last.note.failure == "", "http answers, although no URL of the shard is there"
            asked = [request.split()[1] for request in site.requests]
            assert asked == [b"/robots.txt", b"/a", b"/b", b"/robots.txt"]

    run(main())


def test_origin_fails_with_its_host_if_no_other_origin_answers(server: BrokerServer, tmp_path: Path) -> None:
    async def main() -> None:
        listening = [True]
        async with (
            raw_server(origins(listening)) as site,
            owner_of(server, tmp_path, spec_for(site.url())) as owner,
            worker(server, tmp_path),
        ):
            await owner.ended(await owner.send(site.url("/a")))
            listening[0] = False
            lease = await owner.send(site.url("/1", "https"), slot=1)
            last = await owner.ended(lease)
            assert owner.results(lease) == []
            assert last.not_attempted == [fingerprint(site.url("/1", "https"))]
            assert last.note is not None
            assert last.note.failure == "robots_tls"

    run(main())


def test_failing_origin_is_decided_in_the_next_visit_if_delay_is_long(
    server: BrokerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        listening = [True]
        async with (
            raw_server(origins(listening)) as site,
            owner_of(server, tmp_path, spec_for(site.url())) as owner,
            worker(server, tmp_path),
        ):
            await owner.ended(await owner.send(site.url("/a")))
            await owner.slot_free()
            monkeypatch.setattr("workers.visit.VISIT_S", 0.5)
            ended = []
            for listens in (True, True, True, False):
                listening[0] = listens
                owner.rest_ms = 1_000
                lease = await owner.send(site.url("/1", "https"), delay_ms=1_000)
                last = await owner.ended(lease)
                assert last.note is not None
                ended.append(([result.reason for result in owner.results(lease)], last.note.failure))
                await owner.slot_free()
            assert ended == [([], ""), (["robots_tls"], ""), ([], ""), ([], "robots_tls")]

    run(main())


def test_failing_origin_is_reported_if_its_next_visit_comes_too_late(
    server: BrokerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next visits went to other workers, and each worker left the failure to its own next visit."""

    async def main() -> None:
        async with (
            raw_server(origins([True])) as site,
            owner_of(server, tmp_path, spec_for(site.url())) as owner,
            worker(server, tmp_path),
        ):
            await owner.ended(await owner.send(site.url("/a")))
            await owner.slot_free()
            monkeypatch.setattr("workers.visit.VISIT_S", 0.5)
            monkeypatch.setattr("shared.domain.web.robots.DELAYS_KEPT", 0)
            owner.rest_ms = 1_000
            ended = []
            for kept_s in (0.001, 300.0, 300.0):
                monkeypatch.setattr("shared.domain.web.robots.UNREACHABLE_LIFETIME_S", kept_s)
                lease = await owner.send(site.url("/1", "https"), delay_ms=1_000)
                last = await owner.ended(lease)
                assert last.note is not None
                ended.append(([result.reason for result in owner.results(lease)], last.note.failure))
                await owner.slot_free()
            assert ended == [([], ""), ([], "robots_tls"), (["robots_tls"], "")]

    run(main())
