"""A worker and patterns that would keep a backtracking engine busy for hours, at a site that sends text to match."""

from pathlib import Path

from shared.domain.crawl.spec import CrawlSpec, Scope, decode_spec, encode_spec
from shared.domain.frontier.states import UrlEnd
from shared.domain.web.url import fingerprint
from tests.support.api.scripted_owner import owner_of, spec_for, worker
from tests.support.engines.nats_server import BrokerServer
from tests.support.engines.nats_server import server as server
from tests.support.web.fetchers import run
from tests.support.web.raw_server import Connection, page, raw_server

PATTERNS = [r"^https?://.*/.*/.*/.*\.php$", r"(a|aa)+$", r"(a+)+$", r"(?:[ab]*a){20}$"]
LINKS = ["/x" + "/" * 1900, "/" + "a" * 1900 + "!", "/ab" * 600 + "x", "/a.php" * 300 + "-", "/" + "a/" * 900]
LOOKAHEAD = CrawlSpec(seeds=spec_for("http://127.0.0.1/").seeds, scope=Scope(exclude=("(?!a)",)))


async def hostile(connection: Connection) -> None:
    """Answer every request with a page of 2 KB links and 2 KB of text."""
    links = "".join(f'<a href="{link}{number}">x</a>' for number, link in enumerate(LINKS))
    while True:
        await connection.request()
        body = f"<title>t</title><h1>{'a' * 2000}!</h1>{links}".encode()
        await connection.send(page(body, b"Content-Type: text/html"))


def test_page_made_for_costly_patterns_is_judged_and_yields_items(server: BrokerServer, tmp_path: Path) -> None:
    """A backtracking engine would hold the interpreter's lock until an operator kills the worker."""
    fields = {f"f{number}": {"css": "h1", "match": pattern} for number, pattern in enumerate(PATTERNS)}
    rules = [
        {"name": "one", "fields": {"text": {"css": "h1"}, **fields}},
        {"name": "two", "fields": {"text": {"css": "h1"}}, "when": r"(?:.*/)*.*/.*/.*/.*\.php$"},
    ]
    spec = spec_for(
        "http://127.0.0.1/",
        scope={"exclude": PATTERNS, "traps": {"max_segment_repeats": None, "cycles": False}},
        politeness={"obey_robots": False},
        extract={"items": rules},
    )

    async def main() -> None:
        async with raw_server(hostile) as site, owner_of(server, tmp_path, spec) as owner, worker(server, tmp_path):
            url = site.url("/" + "/a" * 900 + "x")
            lease = await owner.send(url)
            await owner.ended(lease)
            assert [result.end for result in owner.results(lease)] == [UrlEnd.ANSWERED]
            await owner.until(lambda: len(owner.links()) == len(LINKS))

    run(main())


def test_refused_stored_pattern_hands_urls_back_and_stops_no_worker(server: BrokerServer, tmp_path: Path) -> None:
    """A master of another version may send such a crawl out."""
    stored = decode_spec(encode_spec(LOOKAHEAD))

    async def main() -> None:
        async with raw_server(hostile) as site, owner_of(server, tmp_path, stored) as owner, worker(server, tmp_path):
            lease = await owner.send(site.url("/"))
            assert (await owner.ended(lease)).not_attempted == [fingerprint(site.url("/"))]
            await owner.slot_free()
            assert site.requests == []
            await owner.publish_spec(
                spec_for(site.url("/"), politeness={"obey_robots": False, "delay_s": 0}), revision=2
            )
            while not owner.results(lease):  # until the worker sees the new revision
                await owner.slot_free()
                lease = await owner.send(site.url("/"))
                await owner.ended(lease)

    run(main())
