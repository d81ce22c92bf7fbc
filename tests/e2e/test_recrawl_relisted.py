"""Pages whose bytes stay the same while lists of pages must show them, or show them no more."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.test_recrawl import INTERVAL_S, orb
from tests.support.processes.orb_command import ROOT, command_line, export
from tests.support.web.changing_site import Site, page, serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

FEED = "<?xml version='1.0'?><rss version='2.0'><channel><title>t</title><item><link>{}/i</link></item></channel></rss>"


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


def listed(folder: Path) -> list[str]:
    """The paths of all pages in the export."""
    return sorted("/" + each["url"].split("/", 3)[3] for each in export("pages", folder))


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
