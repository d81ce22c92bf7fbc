"""A crawl's folder as a run leaves it, made by hand: rows by the store, segments by the worker's archive."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from shared.adapters.objects.local import LocalSegments
from shared.domain.archive.model import Archived, ArchivedCrawl, Exchange
from shared.domain.crawl.spec import CrawlSpec, encode_spec
from shared.domain.crawl.spec_parse import parse_spec
from shared.domain.explain.excluded_links import ExcludedLink
from shared.domain.frontier.states import COUNTED_AS_PAGE, CrawlState, UrlState
from shared.domain.frontier.store_model import Changes, DeadLetterRow, FetchRow, HostChange, LeaseRow, UrlChange
from shared.domain.ids import CrawlId, Fingerprint
from shared.domain.web.url import fingerprint
from tests.support.archive.exchanges import AT_MS, answer
from tests.support.database.store_tables import Tables, link, sqlite_tables
from workers.archive import WarcArchive

SEED = "http://a.example/"
TITLE = "A page, with a comma"
BODY = b"<html><title>A page</title>\xff\x00 body</html>"
SPEC = parse_spec({"name": "docs", "seeds": [SEED], "scope": {"max_depth": 3, "exclude": ["/private/"]}})


@dataclass(frozen=True, slots=True)
class StoredCrawl:
    """The folder, and the pages in it in the order in which they were stored."""

    path: Path
    pages: tuple[str, ...]


def made(path: Path, *, pages: int = 3, finished: bool = True, spec: CrawlSpec = SPEC) -> StoredCrawl:
    """A crawl of a.example: the seed and pages below it stored with two links each, one URL excluded by robots, one
    failed, one waiting for a retry, one queued; c.example was never reached."""
    path.mkdir(parents=True, exist_ok=True)
    return asyncio.run(_made(path, pages, finished, spec))


async def _made(path: Path, pages: int, finished: bool, spec: CrawlSpec) -> StoredCrawl:
    (path / "spec.json").write_bytes(encode_spec(spec))
    (path / "lock").touch()
    async with sqlite_tables(path) as tables:
        await tables.store.put_crawl("docs", encode_spec(spec).decode(), AT_MS)
        urls = [SEED, *(f"{SEED}{number}" for number in range(1, pages))]
        found = await tables.found(link(SEED))
        via = (next(iter(found.queues))[1], fingerprint(SEED))
        extra = [link(f"{SEED}{name}", 1, via=via) for name in ("robots", "gone", "later")]
        await tables.found(*(link(url, 1, via=via) for url in urls[1:]), *extra)
        row = await tables.lease("a.example")
        assert row is not None
        archived = await _archived(path / "archive", tables.crawl_id, urls)
        await tables.apply(_settled(row, urls, archived))
        await tables.found(link(f"{SEED}queued", 2, via=(row.host_id, fingerprint(urls[-1]))))
        await tables.found(link("http://c.example/", 1, via=via))
        await tables.bury(DeadLetterRow(tables.crawl_id, "url", AT_MS, "killed 5 workers", url=f"{SEED}gone"))
        await _dated(tables, finished)
    return StoredCrawl(path, tuple(urls))


async def _dated(tables: Tables, finished: bool) -> None:
    state = CrawlState.FINISHED if finished else CrawlState.RUNNING
    await tables.store.set_state(tables.crawl_id, state, "max_pages" if finished else None, AT_MS + 9_000)
    await tables.store.add_active_time(tables.crawl_id, 8_000)


async def _archived(folder: Path, crawl_id: CrawlId, urls: list[str]) -> list[Archived]:
    archive = WarcArchive(LocalSegments(folder), worker_id="w", software="orb/test", wall_ms=lambda: AT_MS)
    writer = archive.writer(ArchivedCrawl(crawl_id, "docs"))
    stored = []
    for number, url in enumerate(urls):
        body = BODY + str(number).encode()
        outlinks = {"L a/@href": [f"{url}x"], "R Location:": [f"{url}y"]}
        page = answer(body, b"Content-Type: text/html", url=url)
        stored.append(await writer.append(Exchange(page, AT_MS + number, int(number > 0), outlinks=outlinks)))
    await archive.close()
    return stored


def _settled(row: LeaseRow, urls: list[str], archived: list[Archived]) -> Changes:
    changes = Changes(freed=[row.lease_id])
    crawl_id, host_id = row.crawl_id, row.host_id
    counters, queue = changes.counters[crawl_id], changes.queue(crawl_id, host_id)
    ends: dict[str, tuple[UrlState, str | None]] = dict.fromkeys(urls, (UrlState.DONE, None))
    ends |= {
        f"{SEED}robots": (UrlState.EXCLUDED, "robots"),
        f"{SEED}gone": (UrlState.FAILED, "poison"),
        f"{SEED}later": (UrlState.WAITING, "http_500"),
    }
    for url, (state, reason) in ends.items():
        mark, leased = fingerprint(url), row.urls[fingerprint(url)]
        rank = AT_MS + 3_600_000 if state is UrlState.WAITING else leased.rank
        flags = COUNTED_AS_PAGE if state is UrlState.DONE else 0
        changes.urls.append(UrlChange(crawl_id, host_id, mark, state, rank, 1, flags, reason))
        counters["queued" if state is UrlState.WAITING else state.name.lower()] += 1
        queue.waiting += state is UrlState.WAITING
    queue.next_due_ms = AT_MS + 3_600_000
    queue.leased -= len(ends)
    counters["leased"] -= len(ends)
    counters["fetches"] += len(urls) + 1
    for number, (url, stored) in enumerate(zip(urls, archived, strict=True)):
        place = stored.location
        counters["pages"] += 1
        counters["bytes"] += len(BODY) + 1
        queue.pages += 1
        changes.fetches.append(
            FetchRow(
                crawl_id, host_id, fingerprint(url), AT_MS + number, 200, True,
                latency_ms=12, size=len(BODY) + 1, mime="text/html", digest=stored.digest, segment=place.segment,
                offset=place.offset, length=place.length, title=TITLE if number == 0 else None, links=2,
                truncated="length" if number == 0 else None, links_found=55 if number == 0 else 2,
                left_out="other_host 48;max_links_per_page 5" if number == 0 else None,
            )
        )  # fmt: skip
    changes.left_out.append(
        ExcludedLink(crawl_id, "other_host", "http://www.a.example/1", host_id, Fingerprint(fingerprint(SEED)))
    )
    failed = FetchRow(
        crawl_id, host_id, Fingerprint(fingerprint(f"{SEED}later")), AT_MS, 500, False, "http_500", "try again"
    )
    changes.fetches.append(failed)
    changes.tallies |= {
        (crawl_id, "status", "200"): len(urls),
        (crawl_id, "status", "500"): 1,
        (crawl_id, "excluded", "robots"): 1,
        (crawl_id, "failed", "poison"): 1,
        (crawl_id, "left_out", "other_host"): 48,
        (crawl_id, "left_out", "max_links_per_page"): 5,
        (crawl_id, "truncated", "length"): 1,
        (crawl_id, "retried", "http_500"): 1,
    }
    changes.hosts[host_id] = HostChange(
        host_id=host_id, crawl_delay_ms=2_000, latency_ms=12, failures=1, unreachable=0, last_failure_ms=AT_MS,
        last_failure="http_500 try again", blocked_until_ms=AT_MS + 1_000, visited_at_ms=AT_MS, ip="192.0.2.7",
    )  # fmt: skip
    return changes


def in_csv(value: object) -> str:
    """A value of a JSON line, as a CSV export has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
