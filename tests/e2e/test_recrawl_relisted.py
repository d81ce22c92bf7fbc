"""Pages whose bytes stay the same while lists of pages must show them, or show them no more."""

import json
import os
import subprocess
import time
from email.utils import formatdate
from pathlib import Path

import pytest

from tests.e2e.test_recrawl import INTERVAL_S, changes, orb, rows
from tests.support.processes.orb_command import ROOT, command_line, export
from tests.support.web.changing_site import Site, page, serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

FEED = "<?xml version='1.0'?><rss version='2.0'><channel><title>t</title><item><link>{}/i</link></item></channel></rss>"
NOINDEX = {"X-Robots-Tag": "noindex"}


def body_of(folder: Path, url: str) -> str:
    """What `orb warc` prints for a URL."""
    command = command_line("warc", folder, url)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


def spec_of(site: Site, folder: Path, **sections: object) -> Path:
    spec = {
        "seeds": [f"{site.url}/"],
        "recrawl": {"policy": "fixed", "min_s": 1},
        "politeness": {"delay_s": 0},
        "egress": {"allow": ["127.0.0.0/8"]},
        **sections,
    }
    path = folder.with_suffix(".yaml")
    path.write_text(json.dumps(spec))
    return path


def listed(folder: Path, kind: str = "pages") -> list[str]:
    """The paths of all pages in the export."""
    return sorted("/" + each["url"].split("/", 3)[3] for each in export(kind, folder))


@pytest.mark.parametrize("by", ["spec", "type"])
def test_feed_that_becomes_a_page_with_the_same_bytes_has_a_body(by: str, tmp_path: Path) -> None:
    """Its record was a revisit, so the listed page had no body."""
    folder = tmp_path / "site.crawl"
    with serving() as site:
        site.pages = {"/": page("start", "/f.xml"), "/f.xml": FEED.format(site.url), "/i": page("item")}
        site.headers["/f.xml"] = {"Content-Type": "application/rss+xml"}
        start = spec_of(site, folder, discover={"feeds": True})
        orb("crawl", "--spec", start, "--refresh", "--out", folder, "--json")
        assert listed(folder) == ["/", "/i"]
        time.sleep(INTERVAL_S)
        if by == "spec":
            start = spec_of(site, folder, discover={"feeds": False})
        else:
            site.headers["/f.xml"] = {"Content-Type": "text/plain"}
        orb("crawl", "--spec", start, "--refresh", "--out", folder, "--json")
        assert listed(folder) == ["/", "/f.xml", "/i"]
        assert site.pages["/f.xml"] in body_of(folder, f"{site.url}/f.xml")


def test_directives_that_come_and_go_with_equal_bytes_change_the_lists(tmp_path: Path) -> None:
    """Pages with equal payloads kept their place in the lists, and their items."""
    folder, end_s = tmp_path / "site.crawl", time.time() + 15
    with serving() as site:
        paths = ["/added", "/ends", "/removed", "/tagged", "/tagged-ends", "/tagged-removed"]
        site.pages = {"/": page("start", *paths), **{path: page(path) for path in paths}}
        site.tagged = {path for path in paths if path.startswith("/tagged")}
        dated = f'<meta name="robots" content="unavailable_after: {formatdate(end_s, usegmt=True)}">'
        for path in ("/ends", "/tagged-ends"):
            site.pages[path] = dated + site.pages[path]
        site.headers = dict.fromkeys(("/removed", "/tagged-removed"), NOINDEX)
        start = spec_of(site, folder, extract={"items": [{"name": "text", "fields": {"text": {"css": "p"}}}]})
        orb("crawl", "--spec", start, "--refresh", "--out", folder, "--json")
        assert listed(folder) == listed(folder, "items") == ["/", "/added", "/ends", "/tagged", "/tagged-ends"]
        time.sleep(max(end_s - time.time(), 0) + INTERVAL_S)
        site.headers = dict.fromkeys(("/added", "/tagged"), NOINDEX)
        site.seen = []
        orb("crawl", "--out", folder, "--refresh", "--json")
        seen = {(path, status) for path, _, status in site.seen}
        assert seen >= {("/tagged", 304), ("/tagged", 200)}, "a 304 with a directive makes the page due at once"
        assert listed(folder) == listed(folder, "items") == ["/", "/removed", "/tagged-removed"]
        counted = dict(rows(folder, "SELECT key, n FROM crawl_tallies WHERE kind = 'not_indexed' AND n <> 0"))
        assert counted == {"noindex": 2, "unavailable_after": 2}
        assert rows(folder, "SELECT sum(pages) FROM crawl_counters") == [(7,)]
        assert {each[0] for each in changes(folder)} == {"new"}, "no page has another version"
        assert site.pages["/removed"] in body_of(folder, f"{site.url}/removed")
