"""Connections that egress rules deny: each is refused at every attempt, and each host is logged once."""

from structlog.testing import capture_logs

from shared.domain.web.fetch import Answer, FailureKind, FetchFailed, FetchRequest
from tests.support.web.fetchers import fetcher, run
from tests.support.web.raw_server import page, raw_server, saying
from workers.fetch.denials import MAX_HOSTS, Denials
from workers.fetch.egress import EgressRules


def test_a_denied_host_is_logged_once_with_its_reason() -> None:
    async def main() -> None:
        async with fetcher(EgressRules()) as client:
            for path in ("a", "b"):
                await client.fetch(FetchRequest(f"http://169.254.169.254/{path}"))
            await client.fetch(FetchRequest("http://10.0.0.1/", proxy="http://127.0.0.1:9"))

    with capture_logs() as logs:
        run(main())
    denied = [(line["url"], line["reason"]) for line in logs if line["event"] == "egress.denied"]
    assert [url for url, _ in denied] == ["http://169.254.169.254/a", "http://10.0.0.1/"]
    assert "cloud metadata" in denied[0][1]
    assert "private" in denied[1][1]


def test_a_name_that_moves_inside_between_two_fetches_is_denied() -> None:
    """DNS rebinding: the first answer is open, the next one is not. Each connection is judged by its own address."""

    async def main() -> None:
        async with raw_server(saying(page(b"open"))) as server:
            name = f"rebinds.example:{server.port}"
            resolved = {name: "127.0.0.1"}
            async with fetcher(resolve=resolved) as client:
                request = FetchRequest(f"http://{name}/", fresh=True)
                assert isinstance(await client.fetch(request), Answer)
                reached = len(server.connections)
                for inside in ("169.254.169.254", "10.0.0.1", "::1", "::ffff:10.0.0.1"):
                    resolved[name] = inside
                    failure = await client.fetch(request)
                    assert isinstance(failure, FetchFailed)
                    assert (failure.kind, failure.sent) == (FailureKind.EGRESS_DENIED, False), inside
                assert len(server.connections) == reached

    run(main())


def test_the_logged_hosts_are_bounded() -> None:
    denials = Denials()
    with capture_logs() as logs:
        for number in range(MAX_HOSTS + 1):
            denials.log(f"h{number}", f"http://h{number}/", "private")
        denials.log("h1", "http://h1/", "private")
        denials.log("h0", "http://h0/", "private")
    assert repr(denials) == f"<Denials {MAX_HOSTS} hosts>"
    assert [line["url"] for line in logs][MAX_HOSTS:] == [f"http://h{MAX_HOSTS}/", "http://h0/"]
