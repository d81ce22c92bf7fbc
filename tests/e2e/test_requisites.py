"""A page that was crawled with its requisites replays in pywb and Chromium, and lacks nothing."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.support.api.cluster_clients import asking
from tests.support.engines.ports import free_ports
from tests.support.processes.cluster import cluster
from tests.support.processes.orb_command import command_line, orb
from tests.support.web.chromium import browser, chromium_program
from tests.support.web.file_site import FileTree
from tests.support.web.pywb import pywb, pywb_folder
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SVG: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="8" height="8"><symbol id="s"><path d="M0 0h8v8z"/></symbol></svg>'
)
PAGE: Final = """<!doctype html><html><head><title>home</title>
<link rel="stylesheet" href="css/main.css"><link rel="icon" href="icon.svg">
<style>body {{ background: url("body.svg") }}</style></head>
<body style="list-style-image: url(bullet.svg)"><a href="other.html">other</a><a href="shared.svg">a picture</a>
<img src="plain.svg"><img src="shared.svg"><img src="small.svg" srcset="small.svg 1x, large.svg 2x">
<picture><source srcset="wide.svg" media="(min-width: 1px)"><img src="narrow.svg"></picture>
<img class="lazy" data-src="lazy.svg"><img src="{other}/elsewhere.svg"><video poster="poster.svg"></video>
<svg><use href="sprite.svg#s"/></svg><p class="lettered">text</p><div class="tiled"></div><ul><li>one</ul>
<script src="late.js"></script></body></html>"""
MAIN_CSS: Final = """@charset "utf-8"; @import "more.css";
@font-face {{ font-family: shown; src: url({other}/font.woff2) format("woff2") }}
.lettered {{ font-family: shown }} .tiled {{ width: 9px; height: 9px; background: url("../ti\\6c e.svg") }}"""
MORE_CSS: Final = '@import url(main.css); ul { list-style: url("../list.svg") }'
LATE_JS: Final = "for (const each of document.querySelectorAll('.lazy')) each.src = each.dataset.src;"
IMAGES: Final = (
    *("icon", "body", "bullet", "plain", "shared", "small", "large", "wide", "narrow", "lazy", "poster", "sprite"),
    *("tile", "list"),
)
SHOWN: Final = """(() => {
    const page = document.querySelector('iframe')?.contentDocument;
    return page?.title === 'home' && page.readyState === 'complete'
        && [...page.images].every(each => each.complete && each.naturalWidth > 0);
})()"""
"""Of the frame in which pywb shows a page; its own document has no images and is complete before."""


@pytest.fixture(scope="module")
def programs() -> Path:
    return pywb_folder()


@pytest.fixture(scope="module")
def program() -> str:
    found = chromium_program()
    if found is None:
        reason = "Chromium is not installed: apt-get install chromium"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.fixture
def site(web: Callable[..., Web], tmp_path: Path) -> Web:
    """A page on one host with requisites there and on another."""
    for name in ("one/css", "two"):
        (tmp_path / name).mkdir(parents=True)
    served = web(FileTree(str(tmp_path / "one")), FileTree(str(tmp_path / "two")))
    other, font = served.origins[1], "d09GMgABAAAAAAAA"
    for image in IMAGES:
        (tmp_path / "one" / f"{image}.svg").write_text(SVG)
    (tmp_path / "one/index.html").write_text(PAGE.format(other=other))
    (tmp_path / "one/other.html").write_text('<title>other</title><img src="never.svg">')
    (tmp_path / "one/css/main.css").write_text(MAIN_CSS.format(other=other))
    (tmp_path / "one/css/more.css").write_text(MORE_CSS)
    (tmp_path / "one/late.js").write_text(LATE_JS)
    (tmp_path / "two/elsewhere.svg").write_text(SVG)
    (tmp_path / "two/font.woff2").write_text(font)
    return served


def requested(served: Web) -> list[str]:
    return sorted(each.path for each in served.log() if each.path != "/robots.txt")


def crawl(seed: str, folder: Path, *flags: str) -> None:
    limits = ("--delay", "0.01", "--allow-net", "127.0.0.0/8", "--no-progress")
    orb("crawl", seed, "--out", folder, *limits, *flags)


def test_page_with_requisites_replays_in_a_browser(programs: Path, program: str, site: Web, tmp_path: Path) -> None:
    seed, folder = f"{site.origins[0]}/", tmp_path / "site.crawl"
    crawl(seed, folder, "--requisites", "all", "--max-pages", "1")
    own = [f"/{image}.svg" for image in IMAGES] + ["/", "/css/main.css", "/css/more.css", "/late.js"]
    assert requested(site) == sorted([*own, "/elsewhere.svg", "/font.woff2"]), "each once, and no other page"
    summary = json.loads(orb("show", folder, "--json"))
    assert summary["counters"]["pages"] == 1
    assert summary["discover"] == {"requisites": len(own) + 1}
    [port] = free_ports(1)
    printed = subprocess.run(
        command_line("replay", folder, "--port", str(port)),
        env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    configure, start = printed.stdout.splitlines()
    subprocess.run(configure, shell=True, cwd=tmp_path, check=True)
    with (
        pywb(tmp_path, ["sh", "-c", f"exec env {start}"], {}, port) as replay,
        browser(program, tmp_path) as shown,
    ):
        [collection] = json.loads(next(tmp_path.glob("*.pywb.yaml")).read_text())["collections"]
        for url in [seed[:-1] + path for path in own] + [f"{site.origins[1]}/font.woff2"]:
            assert replay.replayed(collection, url).content == httpx.get(url).content, url
        assert replay.replayed(collection, f"{seed}other.html").status_code == 404
        shown.go(f"{replay.address}/{collection}/mp_/{seed}")
        shown.until(SHOWN)
        for path in ("css/more.css", "lazy.svg", "tile.svg", "list.svg", "wide.svg", "sprite.svg", "font.woff2"):
            shown.until_asked(path)
        missing = [
            error for error in shown.errors if not error.endswith("/favicon.ico")
        ]  # the frame of pywb asks for it
        assert missing == []
        loaded = [url for url in shown.asked if not url.startswith(("data:", "blob:", "about:"))]
        assert all(url.startswith(replay.address) for url in loaded), loaded


def test_requisites_stay_on_the_host_and_within_their_budget(site: Web, tmp_path: Path) -> None:
    seed, folder = f"{site.origins[0]}/", tmp_path / "site.crawl"
    limits = ("--max-requisites", "3", "--max-depth", "0")
    crawl(seed, folder, "--requisites", "same-host", *limits)
    assert len(requested(site)) == 1 + 3
    summary = json.loads(orb("show", folder, "--json"))
    assert summary["state"] == "finished"
    assert summary["excluded"]["max_requisites"] > 0
    assert summary["left_out"]["requisite_host"] > 0


def test_cluster_fetches_requisites_beyond_the_pages_of_a_host(site: Web, tmp_path: Path) -> None:
    spec = {
        "seeds": [f"{site.origins[0]}/"],
        "scope": {"requisites": "all"},
        "budget": {"max_pages": 10, "max_pages_per_host": 1},
        "politeness": {"delay_s": 0.01},
        "egress": {"allow": ["127.0.0.0/8"]},
    }
    with cluster(tmp_path) as members:
        members.master("m1")
        members.worker("w1")
        members.wait_working("w1")
        with asking(members, "m1") as api:
            assert api.post("/v1/crawls", json={"name": "docs", "spec": spec}).status_code == 201
            members.wait_until(
                lambda: api.get("/v1/crawls/docs").json()["state"] == "finished", "the crawl is finished"
            )
            stats = api.get("/v1/crawls/docs/stats").json()
            explained = api.get("/v1/crawls/docs/urls/explain", params={"url": f"{site.origins[0]}/tile.svg"}).json()
    assert stats["counters"]["pages"] == 1
    assert stats["tallies"]["excluded"] == {"max_pages_per_host": 1}
    assert len(requested(site)) == 1 + stats["tallies"]["discover"]["requisites"] == len(IMAGES) + 6
    assert f"a requisite of {site.origins[0]}/css/main.css" in json.dumps(explained)


def test_crawl_without_the_field_requests_no_requisite(site: Web, tmp_path: Path) -> None:
    crawl(f"{site.origins[0]}/", tmp_path / "site.crawl")
    assert requested(site) == ["/", "/other.html", "/shared.svg"]
