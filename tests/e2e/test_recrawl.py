"""A site that changes between passes: `orb crawl --refresh` finds exactly what was added, edited and removed."""

import json
import os
import sqlite3
import subprocess
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from warcio.archiveiterator import ArchiveIterator

from shared.domain.archive.model import labelled_sha1, payload_digest
from shared.domain.frontier.page_history import decoded, unpacked
from shared.runtime.supervise import dying_with
from tests.support.archive.stored_crawl import index_lines
from tests.support.processes.orb_command import ROOT, command_line, export
from tests.support.web.changing_site import MODIFIED, page, serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

INTERVAL_S = 1.0
"""The least time between two fetches of a page. A test sleeps so long where pages must be due: no event tells it."""


def orb(*arguments: str | Path, code: int = 0) -> dict[str, Any]:
    """The JSON object that a command printed."""
    ended = subprocess.run(
        command_line(*arguments), cwd=ROOT, capture_output=True, text=True, timeout=90, check=False,
        stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert ended.returncode == code, f"{ended.returncode}: {ended.stdout}{ended.stderr}"
    return json.loads(ended.stdout) if ended.stdout else {"error": ended.stderr}


def rows(folder: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{folder / 'crawl.db'}?mode=ro", uri=True)) as connection:
        return connection.execute(query).fetchall()


def changes(folder: Path) -> list[tuple[str, str, int]]:
    """Kind, path and version of each entry of the log of changes."""
    found = []
    paths = {bytes(key)[:8]: url.lstrip(":") for key, url in rows(folder, "SELECT fingerprint, url FROM urls")}
    for (entries,) in rows(folder, "SELECT entries FROM page_changes ORDER BY at_ms, partition, number"):
        found += [(each.kind.name.lower(), paths[each.prefix], each.version) for each in unpacked(entries)]
    return found


def records(folder: Path, kind: str) -> list[tuple[str, str, str | None]]:
    """Path, payload digest and profile of every stored record of a kind."""
    found = []
    for path in sorted((folder / "archive").glob("*.warc.gz")):
        with path.open("rb") as file:
            for record in ArchiveIterator(file):
                if record.rec_type == kind:
                    header = record.rec_headers
                    target = "/" + header["WARC-Target-URI"].split("/", 3)[3]
                    profile = header.get_header("WARC-Profile")
                    found.append((target, header["WARC-Payload-Digest"], profile and profile.rsplit("/", 1)[1]))
    return sorted(each for each in found if each[0] != "/robots.txt")


def test_refresh_finds_exactly_what_changed_between_passes(tmp_path: Path) -> None:
    folder = tmp_path / "site.crawl"
    with serving() as site:
        site.pages = {"/": page("start", "/a", "/b", "/c", "/d"), **{f"/{name}": page(name) for name in "abcd"}}
        site.tagged, site.dated = {"/a", "/b"}, {"/c"}
        start = (site.url, "--recrawl", "1s", "--refresh", "--allow-net", "127.0.0.0/8", "--delay", "0", "--json")
        first = orb("crawl", *start, "--out", folder)
        assert (first["end"], first["pages"]) == ("finished", 5)
        assert changes(folder) == [("new", path, 1) for _, path, _ in changes(folder)]
        assert sorted(path for _, path, _ in changes(folder)) == ["/", "/a", "/b", "/c", "/d"]
        assert {condition for _, condition, _ in site.taken()} == {None}

        time.sleep(INTERVAL_S)
        tag = f'"{payload_digest(site.pages["/b"].encode()).hex()}"'
        site.pages["/b"] = page("b, edited")
        site.pages["/"] = page("start", "/a", "/b", "/c", "/d", "/e")
        site.pages["/e"] = page("e")
        del site.pages["/d"]
        before = len(changes(folder))
        second = orb("crawl", "--out", folder, "--refresh", "--json")
        assert (second["end"], second["pages"]) == ("finished", 6)
        assert sorted(changes(folder)[before:]) == [("changed", "/", 2), ("changed", "/b", 2), ("new", "/e", 1)]
        seen = {path: (condition, status) for path, condition, status in site.taken()}
        assert seen["/b"] == (tag, 200)
        assert seen["/a"][1] == 304
        assert seen["/c"] == (MODIFIED, 304)
        assert seen["/d"] == (None, 404)
        assert [(path, profile) for path, _, profile in records(folder, "revisit")] == [
            ("/a", "server-not-modified"), ("/c", "server-not-modified"),
        ]  # fmt: skip
        assert [digest for _, digest, _ in records(folder, "revisit")] == [
            labelled_sha1(payload_digest(site.pages[path].encode())) for path in ("/a", "/c")
        ]

        time.sleep(INTERVAL_S)
        site.taken()
        before = len(changes(folder))
        orb("crawl", "--out", folder, "--refresh", "--json")
        assert changes(folder)[before:] == [("gone", "/d", 1)]
        assert len(site.taken()) == 6, "each page is requested once"
        assert ("/", "identical-payload-digest") in {(path, how) for path, _, how in records(folder, "revisit")}
        assert rows(folder, "SELECT state, reason FROM urls WHERE url = ':/d'") == [(3, "gone")]
        gone = [page["url"] for page in export("pages", folder) if page["gone"]]
        assert gone == [site.url.rstrip("/") + "/d"]
        exported = [(row["kind"], row["url"], row["version"]) for row in export("changes", folder)]
        assert exported == [(kind, f"{site.url}{path}", version) for kind, path, version in changes(folder)]
        assert rows(folder, "SELECT version FROM page_versions ORDER BY host_id, fingerprint") == [(1,), (1,)]
        indexed = Counter(line["url"].removeprefix(site.url) for line in index_lines(folder))
        assert indexed == {"/": 2, "/a": 1, "/b": 2, "/c": 1, "/d": 1, "/e": 1}, "each version that is listed"
        identity = "SELECT discovered - queued - leased - done - failed - excluded, queued, revisits"
        assert rows(folder, f"{identity} FROM crawl_counters") == [(0, 5, 5)]

        time.sleep(INTERVAL_S)
        site.taken()
        orb("crawl", "--out", folder, "--refresh", "--json")
        assert "/d" not in {path for path, _, _ in site.taken()}, "a gone page is requested no more"


def test_spent_page_budget_stops_new_pages_and_no_refresh(tmp_path: Path) -> None:
    folder = tmp_path / "site.crawl"
    with serving() as site:
        site.pages = {"/": page("start", *(f"/{n}" for n in range(9))), **{f"/{n}": page(str(n)) for n in range(9)}}
        start = (site.url, "--recrawl", "1s", "--refresh", "--allow-net", "127.0.0.0/8", "--delay", "0", "--json")
        first = orb("crawl", *start, "--max-pages", "4", "--out", folder)
        stored = {path for path, _, _ in site.taken()}
        assert (first["pages"], len(stored)) == (4, 4)
        time.sleep(INTERVAL_S)
        orb("crawl", "--out", folder, "--refresh", "--json")
        assert {path for path, _, _ in site.taken()} == stored
        assert rows(folder, "SELECT sum(pages) FROM crawl_counters") == [(4,)]


def test_stored_page_is_fetched_again_once_robots_permits_it_again(tmp_path: Path) -> None:
    """It was excluded for good. The spec forbids and permits it here, since robots.txt is kept for a day."""
    folder, file = tmp_path / "site.crawl", tmp_path / "spec.json"
    start = ("--spec", file, "--refresh", "--allow-net", "127.0.0.0/8", "--json", "--out", folder)
    with serving() as site:
        site.pages = {"/": page("start", "/a"), "/a": page("a"), "/robots.txt": "User-agent: *\nDisallow: /"}
        spec = {"seeds": [site.url], "recrawl": {"policy": "fixed", "min_s": INTERVAL_S}}
        for obey, asked, reasons in (
            (False, ["/", "/a"], [(1, "new"), (1, "new")]),
            (True, [], [(1, "robots"), (1, "robots")]),
            (False, ["/", "/a"], [(1, "changed"), (1, "unchanged")]),
        ):
            file.write_text(json.dumps({**spec, "politeness": {"delay_s": 0, "obey_robots": obey}}))
            summary = orb("crawl", *start)
            assert (summary["end"], summary["finished_reason"], summary["pages"]) == ("finished", "refreshed", 2)
            assert summary["identities"] == {"urls": 0, "links": 0}
            assert [path for path, _, _ in site.taken()] == asked
            assert rows(folder, "SELECT state, reason FROM urls ORDER BY reason") == reasons
            site.pages["/a"] = page("a, edited")
            time.sleep(INTERVAL_S)


def test_odd_validators_and_304_without_a_page_are_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "site.crawl"
    with serving() as site:
        site.pages = {
            "/": page("start", "/long", "/date", "/tag"),
            **{f"/{n}": page(n) for n in ("long", "date", "tag")},
        }
        site.odd = {
            "/long": '"' + "e" * (64 << 10) + '"',
            "/date": "the day before yesterday",
            "/tag": '"r\xe9sum\xe9"',
        }
        start = (site.url, "--recrawl", "1s", "--refresh", "--allow-net", "127.0.0.0/8", "--delay", "0", "--json")
        orb("crawl", *start, "--out", folder)
        site.taken()
        time.sleep(INTERVAL_S)
        summary = orb("crawl", "--out", folder, "--refresh", "--json")
        asked = [("/", None, 200), ("/date", None, 200), ("/long", None, 200), ("/tag", site.odd["/tag"], 304)]
        assert site.taken() == asked
        assert summary["revisited"] == {"unchanged": 4}


def test_refresh_of_a_crawl_that_fetches_each_page_once_is_refused(tmp_path: Path) -> None:
    refused = orb("crawl", "http://127.0.0.1:9/", "--refresh", "--out", tmp_path / "site.crawl", code=2)
    assert "--recrawl" in refused["error"]


def test_killed_refresh_goes_on_and_loses_no_change_and_no_due_time(tmp_path: Path) -> None:
    folder, pages = tmp_path / "site.crawl", 40
    with serving() as site:
        names = [f"/{n}" for n in range(pages)]
        site.pages = {"/": page("start", *names), **{name: page(name) for name in names}}
        site.tagged = set(names)
        start = (site.url, "--recrawl", "2s", "--refresh", "--allow-net", "127.0.0.0/8", "--delay", "0", "--json")
        orb("crawl", *start, "--out", folder)
        before = len(changes(folder))
        for name in names[::4]:
            site.pages[name] = page(f"{name}, edited")
        time.sleep(2 * INTERVAL_S)
        site.taken()
        site.slow_s = 0.1
        again = command_line("crawl", "--out", folder, "--refresh", "--json")
        process = subprocess.Popen(
            [*dying_with(os.getpid()), *again], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        with suppress(psutil.NoSuchProcess):
            family = psutil.Process(process.pid)
            site.wait_for(pages // 4)
            for each in [*family.children(recursive=True), family]:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
        process.wait(30)
        site.slow_s = 0.0
        orb("crawl", "--out", folder, "--refresh", "--json")
        found = changes(folder)[before:]
        edited = {("changed", name, 2) for name in names[::4]}
        assert set(found) == edited
        assert len(found) == len(edited), "no change is recorded twice"
        waiting = rows(folder, "SELECT count(*), min(rank), max(attempts) FROM urls WHERE state = 1 AND flags & 8 <> 0")
        assert (waiting[0][0], waiting[0][2]) == (pages + 1, 0)
        assert rows(folder, "SELECT count(*) FROM leases") == [(0,)]


def test_adaptive_policy_counts_every_page_by_its_rate_over_runs(tmp_path: Path) -> None:
    folder, spec = tmp_path / "site.crawl", tmp_path / "news.yaml"
    with serving() as site:
        site.pages = {"/": page("start", "/a", "/b"), "/a": page("a"), "/b": page("b")}
        site.tagged = {"/a"}
        recrawl = "{policy: adaptive, min_s: 1, max_s: 600, requests_per_day: 8640000}"
        spec.write_text(
            f"seeds: [{site.url}/]\nrecrawl: {recrawl}\npoliteness: {{delay_s: 0}}\negress: {{allow: [127.0.0.0/8]}}\n"
        )
        orb("crawl", "--spec", spec, "--refresh", "--out", folder, "--json")
        for n in range(2):
            time.sleep(2 * INTERVAL_S)
            site.pages["/b"] = page(f"b {n}")
            orb("crawl", "--out", folder, "--refresh", "--json")
        counted = rows(folder, "SELECT sum(n) FROM crawl_tallies WHERE kind = 'rates'")
        assert counted == [(3,)]
        assert [each for each in changes(folder) if each[0] == "changed"] == [
            ("changed", "/b", 2),
            ("changed", "/b", 3),
        ]
        kept = dict(rows(folder, "SELECT u.url, f.recrawl FROM urls u JOIN fetches f ON f.fingerprint = u.fingerprint"))
        busy, quiet = (decoded(kept[f":{path}"], 0).rate for path in ("/b", "/a"))
        assert busy > quiet > 0


def test_section_added_later_fetches_earlier_pages_until_it_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "site.crawl"
    with serving() as site:
        site.pages = {"/": page("start", "/a", "/b"), "/a": page("a"), "/b": page("b")}
        orb("crawl", site.url, "--allow-net", "127.0.0.0/8", "--delay", "0", "--json", "--out", folder)
        states = "SELECT state, count(*) FROM urls GROUP BY state"
        assert rows(folder, states) == [(3, 3)]
        assert rows(folder, "SELECT count(*) FROM fetches WHERE recrawl IS NOT NULL") == [(0,)]
        site.taken()
        time.sleep(INTERVAL_S)
        site.pages["/a"] = page("a, edited")
        orb("crawl", "--out", folder, "--recrawl", "1s", "--refresh", "--json")
        assert [path for path, _, _ in site.taken()] == ["/", "/a", "/b"]
        assert changes(folder) == [("changed", "/a", 2)]
        assert rows(folder, states) == [(1, 3)]
        ended = orb("crawl", "--out", folder, "--recrawl", "none", "--json")
        assert ended["end"] == "finished"
        assert rows(folder, states) == [(3, 3)]
        assert rows(folder, "SELECT finished_reason FROM crawls") == [("complete",)]
