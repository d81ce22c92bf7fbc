"""Requests through a proxy: what it gets, and what its refusals and addresses mean."""

import pytest
from msgspec.structs import replace

from shared.domain.web.fetch import Answer, FailureKind, FetchFailed, FetchLimits, FetchRequest
from tests.support.web.fetchers import LOOPBACK, fetcher, run
from tests.support.web.raw_server import page, raw_server, saying
from workers.fetch.egress import EgressRules

LIMITS = FetchLimits(connect_s=5, first_byte_s=10, total_s=20)


@pytest.mark.parametrize("no_proxy", ["", "*"])
def test_a_request_goes_through_its_proxy(monkeypatch: pytest.MonkeyPatch, no_proxy: str) -> None:
    monkeypatch.setenv("no_proxy", no_proxy)

    async def main() -> None:
        async with raw_server(saying(page(b"page"))) as proxy, fetcher() as client:
            request = FetchRequest(
                "http://public.example/x", proxy=f"http://user:secret@127.0.0.1:{proxy.port}", limits=LIMITS
            )
            answer = await client.fetch(request)
            assert isinstance(answer, Answer), answer
            assert proxy.requests[0].startswith(b"GET http://public.example/x HTTP/1.1\r\nHost: public.example\r\n")
            assert answer.request_head.startswith(b"GET /x HTTP/1.1\r\nHost: public.example\r\n")
            assert b"secret" not in answer.request_head
            plain = await client.fetch(replace(request, url=proxy.url("/direct"), proxy=None))
            assert isinstance(plain, Answer)
            assert proxy.requests[1].startswith(b"GET /direct ")

    run(main())


def test_a_proxy_and_a_literal_target_behind_it_are_under_the_egress_rules() -> None:
    async def main() -> None:
        async with raw_server(saying(page(b"page"))) as proxy:
            through = f"http://127.0.0.1:{proxy.port}"
            async with fetcher(EgressRules()) as client:
                failure = await client.fetch(FetchRequest("http://public.example/", proxy=through, limits=LIMITS))
                assert isinstance(failure, FetchFailed)
                assert failure.kind is FailureKind.EGRESS_DENIED
            async with fetcher() as client:
                for host in ("10.0.0.1", "0xa.1", "[fd00::1]", "[::ffff:10.0.0.1]"):
                    failure = await client.fetch(FetchRequest(f"http://{host}/", proxy=through, limits=LIMITS))
                    assert isinstance(failure, FetchFailed)
                    assert failure.kind is FailureKind.EGRESS_DENIED
            denied_loopback = EgressRules(allow=LOOPBACK.allow, deny=LOOPBACK.deny)
            assert denied_loopback == LOOPBACK
            assert not proxy.connections

    run(main())


@pytest.mark.parametrize(
    "proxy", ["ftp://127.0.0.1:1", "socks5h://localhost/run/proxy.sock", "127.0.0.1:1", "file:///x"]
)
def test_what_is_not_a_proxy_is_a_failure(proxy: str) -> None:
    async def main() -> None:
        async with fetcher() as client:
            failure = await client.fetch(FetchRequest("http://public.example/", proxy=proxy, limits=LIMITS))
            assert isinstance(failure, FetchFailed)
            assert (failure.kind, failure.sent) == (FailureKind.PROXY, False)

    run(main())


def test_a_proxy_that_refuses_the_tunnel_is_a_proxy_failure() -> None:
    async def main() -> None:
        refusal = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"
        async with raw_server(saying(refusal)) as proxy, fetcher() as client:
            through = f"http://127.0.0.1:{proxy.port}"
            failure = await client.fetch(FetchRequest("https://public.example/", proxy=through, limits=LIMITS))
            assert isinstance(failure, FetchFailed)
            assert failure.kind is FailureKind.PROXY
            assert proxy.requests[0].startswith(b"CONNECT public.example:443 ")

    run(main())


@pytest.mark.parametrize("head", [b"Content-Length: 0\r\n\r\n", b"Content-Length: 9\r\n\r\ncut"])
def test_a_proxy_that_wants_a_login_is_a_proxy_failure(head: bytes) -> None:
    """It counted as the response of the site: of robots.txt, it allowed every page."""

    async def main() -> None:
        refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\n" + head
        async with raw_server(saying(refusal)) as server, fetcher() as client:
            request = FetchRequest("http://public.example/", proxy=f"HTTP://127.0.0.1:{server.port}", limits=LIMITS)
            failure = await client.fetch(request)
            assert isinstance(failure, FetchFailed)
            assert (failure.kind, failure.sent, "407" in failure.detail) == (FailureKind.PROXY, False, True)
            of_site = await client.fetch(replace(request, url=server.url(), proxy=None))
            assert isinstance(of_site, Answer)
            assert of_site.status == 407

    run(main())
