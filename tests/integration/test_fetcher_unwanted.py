"""Bodies that a request does not want: their transfer ends behind the head, and the next request is not affected."""

import pytest

from shared.domain.web.fetch import Answer, FetchRequest
from tests.integration.test_fetcher import LIMITS, serving_pages
from tests.support.web.fetchers import fetcher, run
from tests.support.web.raw_server import Connection, page, raw_server


def declared(kind: bytes, length: bytes = b"", body: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\n%s\r\n" % (kind, length) + body


def unwanted(status: int, content_type: str | None) -> bool:
    return (status, content_type) == (200, "x/y")


@pytest.mark.parametrize(
    ("answer", "connections"),
    [
        pytest.param(declared(b"x/y", b"Content-Length: 5\r\n", b"bytes"), 1, id="short"),
        pytest.param(declared(b"x/y", b"Content-Length: 0\r\n"), 1, id="empty"),
        pytest.param(declared(b"x/y", b"Content-Length: 5\r\nContent-Encoding: gzip\r\n", b"bytes"), 1, id="coded"),
        pytest.param(b"HTTP/1.1 103 Early Hints\r\nContent-Type: x/y\r\n\r\n" + declared(b"x/y"), 2, id="interim"),
        pytest.param(declared(b"x/y", b"Content-Length: 16385\r\n"), 2, id="long"),
        pytest.param(declared(b"x/y", b"Transfer-Encoding: chunked\r\n"), 2, id="chunked"),
        pytest.param(declared(b"x/y"), 2, id="until the connection ends"),
        pytest.param(declared(b"x/y", b"Content-Length: 9999999999999999999999\r\n"), 2, id="huge"),
    ],
)
def test_body_that_is_not_wanted_is_dropped_behind_its_head(answer: bytes, connections: int) -> None:
    async def script(connection: Connection) -> None:
        while b"/unwanted" not in await connection.request():
            await connection.send(page(b"page"))
        await connection.send(answer)
        if connections > 1:
            await connection.gone()  # no byte of the body is ever sent
            return
        await serving_pages(connection)

    async def main() -> None:
        async with raw_server(script) as server, fetcher() as client:
            skipping = FetchRequest(server.url("/unwanted"), limits=LIMITS, skips_body=unwanted)
            first = await client.fetch(skipping)
            assert isinstance(first, Answer), first
            assert (first.status, first.body, first.decoded, first.truncated) == (200, b"", b"", None)
            assert (first.decode_error, first.header("content-type")) == (None, "x/y")
            second = await client.fetch(FetchRequest(server.url("/page"), limits=LIMITS))
            assert isinstance(second, Answer), second
            assert second.body == b"page"
            assert len(server.connections) == connections

    run(main())


def test_body_that_is_wanted_is_whole_whatever_was_fetched_before() -> None:
    async def script(connection: Connection) -> None:
        while True:
            kind = b"x/y" if b"/unwanted" in await connection.request() else b"text/html"
            await connection.send(declared(kind, b"Content-Length: 4\r\n", b"page"))

    async def main() -> None:
        async with raw_server(script) as server, fetcher() as client:
            for path, body in (("/unwanted", b""), ("/", b"page"), ("/unwanted", b""), ("/", b"page")):
                answer = await client.fetch(FetchRequest(server.url(path), limits=LIMITS, skips_body=unwanted))
                assert isinstance(answer, Answer), answer
                assert answer.body == body
            answer = await client.fetch(FetchRequest(server.url("/unwanted"), limits=LIMITS))
            assert isinstance(answer, Answer), answer
            assert answer.body == b"page", "the request wants every type"

    run(main())
