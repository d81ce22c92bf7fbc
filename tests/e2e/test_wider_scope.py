"""A crawl whose scope is widened finds what its stored pages link to, and fetches no page twice."""

import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.processes.crawl_process import Running, kill
from tests.support.web.file_site import FileTree
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PAGES = 500
LIMITS = ("--delay", "0", "--allow-net", "127.0.0.0/8")


@pytest.fixture
def site(web: Callable[..., Web], tmp_path: Path) -> Web:
    """A host with a tree of pages, each of which links to a page of its own on another host, which links deeper."""
    for name in ("near", "far"):
        (tmp_path / name).mkdir()
    served = web(*[FileTree(str(tmp_path / name)) for name in ("near", "far")])
    far = served.origins[1]
    for n in range(PAGES):
        children = "".join(f"<a href={child}.html>c</a>" for child in (2 * n + 1, 2 * n + 2) if child < PAGES)
        (tmp_path / "near" / f"{n}.html").write_text(f"<title>{n}</title>{children}<a href={far}/{n}.html>f</a>")
        (tmp_path / "far" / f"{n}.html").write_text(f"<title>far {n}</title><a href=deep{n}.html>d</a>")
        (tmp_path / "far" / f"deep{n}.html").write_text(f"<title>deep {n}</title>")
    return served


def requested(site: Web) -> Counter[tuple[str, str]]:
    """How often each page was requested, by host and path."""
    return Counter((each.host, each.path) for each in site.log() if each.path != "/robots.txt")


def expected(site: Web, *, far: bool) -> Counter[tuple[str, str]]:
    """Each page of the narrow or the wide scope once."""
    near, beyond = site.hosts
    pages = [(near, f"/{n}.html") for n in range(PAGES)]
    if far:
        pages += [(beyond, f"/{name}{n}.html") for n in range(PAGES) for name in ("", "deep")]
    return Counter(pages)


def rediscovered(folder: Path) -> dict[str, int]:
    """The tallies of what a wider scope found, as the database has them now."""
    with closing(sqlite3.connect(f"file:{folder / 'crawl.db'}?mode=ro", uri=True)) as database:
        rows = database.execute("SELECT key, sum(n) FROM crawl_tallies WHERE kind = 'rediscovered' GROUP BY key")
        return dict(rows.fetchall())


def test_wider_scope_fetches_new_pages_once_although_the_master_dies(site: Web, tmp_path: Path) -> None:
    folder, seed = tmp_path / "site.crawl", f"{site.origins[0]}/0.html"
    with Running(folder, seed, *LIMITS) as narrow:
        narrow.finish()
    assert requested(site) == expected(site, far=False)
    with Running(folder, seed, *LIMITS, "--scope", "any") as wide:
        wide.wait_until(lambda: rediscovered(folder).get("pages", 0) > 0, "a chunk was read")
        for master in wide.of("master"):
            kill(master)
        summary = wide.finish()
    assert requested(site) == expected(site, far=True)
    assert summary["pages"] == 3 * PAGES
    found = rediscovered(folder)
    assert found["pages"] == PAGES
    assert found["links"] >= PAGES
    assert "queued_again" not in found
