"""A crawl of many rows, written straight into its tables: what reads them must not care how they came there."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from shared.domain.frontier.states import UrlState
from shared.domain.ids import CrawlId
from shared.domain.web.url import fingerprint
from tests.support.database.store_tables import NOW_MS

_HOSTS: Final = 50
_TITLES: Final = ("Plain", 'With "quotes", commas', "Two\nlines", "Ünïcödé 漢字", "", None, "=1+1", "\ttab\r")
_STATES: Final = (UrlState.DONE, UrlState.QUEUED, UrlState.FAILED, UrlState.EXCLUDED, UrlState.WAITING)


def grown(path: Path, crawl_id: CrawlId, rows: int) -> None:
    """Give the crawl `rows` URLs on fifty hosts; every other was fetched, and half of these are pages; of one in forty
    there is an
    item."""
    first_host = crawl_id * 1_000_000
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(
            "INSERT INTO hosts (host_id, partition, host) VALUES (?, 3, ?)",
            [(first_host + n, f"h{n}.c{crawl_id}.test") for n in range(_HOSTS)],
        )
        connection.executemany(
            "INSERT INTO urls (crawl_id, host_id, fingerprint, url, state, depth, hops, priority, attempts, flags,"
            " rank, reason, via_host, via) VALUES (?, ?, ?, ?, ?, ?, 0, 0, ?, 0, 0, ?, ?, ?)",
            (_url(crawl_id, first_host, n) for n in range(rows)),
        )
        connection.executemany(
            "INSERT INTO fetches (crawl_id, host_id, fingerprint, at_ms, status, latency_ms, size, mime, digest,"
            ' segment, "offset", length, location, title, links, page)'
            " VALUES (?, ?, ?, ?, ?, 10, ?, ?, ?, ?, ?, ?, ?, ?, 3, ?)",
            (_fetch(crawl_id, first_host, n) for n in range(0, rows, 2)),
        )
        connection.executemany(
            "INSERT INTO item_pages (crawl_id, host_id, fingerprint, url, lease_id, grants, at_ms)"
            " VALUES (?, ?, ?, ?, 1, 1, ?)",
            [(*_place(crawl_id, first_host, n), url_of(crawl_id, n), NOW_MS + n) for n in range(0, rows, 40)],
        )
        connection.executemany(
            "INSERT INTO items (crawl_id, item_id, rule, host_id, fingerprint, data)"
            ' SELECT ?, ?, \'product\', ?, ?, \'{"title":"Bolt","tags":["a",1,null]}\'',
            [(crawl_id, fingerprint(f"item {n}"), *_place(crawl_id, first_host, n)[1:]) for n in range(0, rows, 40)],
        )


def _place(crawl_id: CrawlId, first_host: int, n: int) -> tuple[int, int, bytes]:
    return crawl_id, first_host + n % _HOSTS, fingerprint(url_of(crawl_id, n))


def url_of(crawl_id: CrawlId, n: int) -> str:
    """The crawl's n-th URL."""
    return f"https://h{n % _HOSTS}.c{crawl_id}.test/a/path/of/some/length/{n}?of={n * 7}"


def _url(crawl_id: CrawlId, first_host: int, n: int) -> tuple[object, ...]:
    state = _STATES[n % len(_STATES)]
    via = (first_host, fingerprint(url_of(crawl_id, 0))) if n else (None, None)
    reason = "http_500" if state is UrlState.FAILED else None
    url = url_of(crawl_id, n)
    return (crawl_id, first_host + n % _HOSTS, fingerprint(url), url, int(state), n % 9, n % 3, reason, *via)


def _fetch(crawl_id: CrawlId, first_host: int, n: int) -> tuple[object, ...]:
    url, page = url_of(crawl_id, n), n % 4 == 0
    place = (f"{crawl_id}-seg.warc.gz", n * 900, 900) if page else (None, None, None)
    redirect = None if page else f"{url}&again"
    return (
        crawl_id, first_host + n % _HOSTS, fingerprint(url), NOW_MS + n, 200 if page else 301, n * 3,
        "text/html" if page else None, fingerprint(url) + b"1234" if page else None, *place, redirect,
        _TITLES[n // 4 % len(_TITLES)], page,
    )  # fmt: skip
