"""Real documentation, crawled as three sites by the command a user would run, and judged by other people's tools."""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.support.archive import stored_crawl
from tests.support.processes.orb_command import export, orb
from tests.support.web import log_judge
from tests.support.web.corpora import Corpus
from tests.support.web.reference_walk import ReferenceWalk, reachable
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.long]


def walked(corpora: tuple[Corpus, ...], web: Web) -> dict[str, tuple[ReferenceWalk, Path]]:
    """The independent walk and the folder of each origin."""
    walks = {}
    for corpus, origin in zip(corpora, web.origins, strict=True):
        root = corpus.root()
        assert root is not None
        walks[origin] = reachable(root, corpus.start, robots=corpus.robots), root
    return walks


def test_every_reachable_page_is_fetched_indexed_and_replayable_exactly_once(
    corpora: tuple[Corpus, ...], corpora_web: Web, tmp_path: Path
) -> None:
    out = tmp_path / "crawl"
    starts = [origin + corpus.start for corpus, origin in zip(corpora, corpora_web.origins, strict=True)]
    limits = ("--delay", "0", "--allow-net", "127.0.0.0/8")
    said = json.loads(orb("crawl", *starts, *limits, "--out", out, "--json", "--no-progress", timeout_s=600))
    walks = walked(corpora, corpora_web)
    expected = {origin + path for origin, (walk, _) in walks.items() for path in walk.documents}
    missing = {origin + path for origin, (walk, _) in walks.items() for path in walk.missing}
    assert len(expected) > 2_500

    # What the servers saw.
    log = corpora_web.log()
    assert log_judge.fetched_more_than_once(log) == {}
    robots = {host: corpus.robots for host, corpus in zip(corpora_web.hosts, corpora, strict=True)}
    assert log_judge.disallowed_requested(log, robots) == []
    assert log_judge.asked_before_robots(log) == []
    assert {url for url in log_judge.requested(log) if not url.endswith("/robots.txt")} >= expected | missing

    # What the crawl says it has.
    pages = [row for row in export("pages", out) if row["status"] == 200]
    urls = Counter(row["url"] for row in pages)
    assert set(urls) == expected
    assert max(urls.values()) == 1
    assert said["pages"] >= len(expected)
    for row in pages:
        origin = row["url"][: row["url"].index("/", len("http://"))]
        walk, _ = walks[origin]
        path = row["url"].removeprefix(origin)
        assert (row["mime"] == "text/html") == (path in walk.html), row
        assert row["depth"] >= walk.documents[path], row

    # What other tools find on the disk.
    stored_crawl.check_with_warcio(stored_crawl.segments(out))
    indexed = Counter(line["url"] for line in stored_crawl.index_lines(out) if line["status"] == "200")
    assert indexed == urls
    for row in pages:
        check_record(out, row["url"], row["segment"], row["offset"], row["length"], walks)
    for url in sorted(expected)[:: len(expected) // 12]:
        assert orb("warc", out, url) == served_bytes(url, walks)


def check_record(
    out: Path, url: str, segment: str, offset: int, length: int, walks: dict[str, tuple[ReferenceWalk, Path]]
) -> None:
    """The record that the index names is the file that was served."""
    record = stored_crawl.record_at(out, segment, offset, length)
    body = served_bytes(url, walks)
    assert (record.url, record.status) == (url, 200)
    assert record.digest == stored_crawl.payload_digest(body)
    if record.kind == "response":
        assert record.payload == body


def served_bytes(url: str, walks: dict[str, tuple[ReferenceWalk, Path]]) -> bytes:
    """The file behind a URL of these trees, whose names need no decoding."""
    origin = url[: url.index("/", len("http://"))]
    file = walks[origin][1] / url.removeprefix(origin).lstrip("/").partition("?")[0]
    return (file / "index.html" if file.is_dir() else file).read_bytes()


def test_a_page_that_robots_forbids_is_explained_and_never_asked_for(
    corpora: tuple[Corpus, ...], corpora_web: Web, tmp_path: Path
) -> None:
    out = tmp_path / "crawl"
    chosen = next(index for index, corpus in enumerate(corpora) if corpus.name == "postgresql")
    corpus, host, origin = corpora[chosen], corpora_web.hosts[chosen], corpora_web.origins[chosen]
    limits = ("--delay", "0", "--allow-net", "127.0.0.0/8", "--max-depth", "1")
    orb("crawl", origin + corpus.start, *limits, "--out", out, "--json", "--no-progress", timeout_s=120)
    root = corpus.root()
    assert root is not None
    walk = reachable(root, corpus.start, robots=corpus.robots, max_depth=1)
    assert walk.disallowed, "the corpus no longer links to a page that its robots.txt forbids"
    for path in walk.disallowed:
        assert b"robots" in orb("show", out, "--url", origin + path)
    pages = {row["url"] for row in export("pages", out) if row["status"] == 200}
    assert pages == {origin + path for path in walk.documents}
    assert log_judge.disallowed_requested(corpora_web.log(), {host: corpus.robots}) == []
