"""A crawl that stores pages of some media types only, and reads links of some only."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.crawl_process import Running, write_spec
from tests.support.processes.orb_command import orb
from tests.support.web.file_site import FileTree
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture
def site(web: Callable[..., Web], tmp_path: Path) -> Web:
    """Two pages of HTML, each with a document."""
    root = tmp_path / "site"
    root.mkdir()
    (root / "index.html").write_text("<title>start</title><a href=one.pdf>1</a><a href=inner.html>inner</a>")
    (root / "inner.html").write_text("<title>inner</title><a href=two.pdf>2</a>")
    for name in ("one.pdf", "two.pdf"):
        (root / name).write_bytes(b"%PDF-1.7 " + name.encode())
    return web(FileTree(str(root)))


def crawled(site: Web, folder: Path, media: dict[str, Any]) -> tuple[Path, list[str], dict[str, Any]]:
    """Crawl the site. Return the folder, the requested paths, and the summary."""
    spec = {"seeds": [f"{site.origins[0]}/"], "politeness": {"delay_s": 0.01}, "media": media}
    with Running(folder / "crawl", "--spec", write_spec(folder / "spec.json", spec)) as run:
        summary = run.finish()
    requested = sorted(each.path for each in site.log() if each.path != "/robots.txt")
    return Path(run.out), requested, summary


def stored(folder: Path) -> list[str]:
    """Return the paths of the exported pages."""
    orb("export", "pages", folder, "-o", folder / "pages.jsonl")
    lines = [json.loads(line) for line in (folder / "pages.jsonl").read_text().splitlines()]
    return sorted("/" + line["url"].split("/", 3)[3] for line in lines)


def test_only_stored_types_are_in_archive_exports_and_budget(site: Web, tmp_path: Path) -> None:
    folder, requested, summary = crawled(site, tmp_path, {"stored": ["application/pdf"]})
    assert requested == ["/", "/inner.html", "/one.pdf", "/two.pdf"], "links of pages that are not stored are followed"
    assert summary["pages"] == 2
    assert stored(folder) == ["/one.pdf", "/two.pdf"]
    assert summary["not_indexed"] == {"media_type": 2}
    archived = [path.read_bytes() for path in (folder / "archive").rglob("*.cdxj")]
    text = b"".join(archived).decode()
    assert "one.pdf" in text
    assert "inner.html" not in text
    shown = orb("show", folder, "--url", f"{site.origins[0]}/inner.html").decode()
    assert "media.stored of the spec leaves out its media type" in shown


def test_links_of_types_that_are_not_parsed_are_not_followed(site: Web, tmp_path: Path) -> None:
    folder, requested, summary = crawled(site, tmp_path, {"parsed": ["application/xhtml+xml"]})
    assert requested == ["/"]
    assert (summary["pages"], summary["left_out"]) == (1, {"not_parsed": 1})
    assert stored(folder) == ["/"]
