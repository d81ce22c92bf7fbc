"""A crawl that follows links out of its scope for some hops, and no further."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes.orb_command import orb
from tests.support.web.file_site import FileTree
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture
def site(web: Callable[..., Web], tmp_path: Path) -> Web:
    """Three hosts: pages of the first link to the second, and those to the third and back."""
    names = ("one", "two", "three")
    for name in names:
        (tmp_path / name).mkdir()
    served = web(*[FileTree(str(tmp_path / name)) for name in names])
    one, two, three = served.origins
    pages = {
        "one/index.html": f"<a href=inner.html>i</a><a href={two}/reached.html>r</a><a href={two}/secret.html>s</a>",
        "one/inner.html": "inner",
        "one/back.html": "back",
        "two/reached.html": f"<a href=own.html>o</a><a href={three}/far.html>f</a><a href={one}/back.html>b</a>",
        "two/secret.html": "secret",
        "two/own.html": f"<a href={three}/further.html>f</a>",
        "three/far.html": "far",
        "three/further.html": "further",
    }
    for path, text in pages.items():
        (tmp_path / path).write_text(f"<title>{path}</title>{text}")
    return served


@pytest.mark.parametrize(
    ("hops", "beyond"),
    [(0, []), (1, ["/reached.html"]), (2, ["/far.html", "/own.html", "/reached.html"])],
)
def test_crawl_follows_links_out_of_scope_for_so_many_hops(
    site: Web, tmp_path: Path, hops: int, beyond: list[str]
) -> None:
    folder, back = tmp_path / "site.crawl", ["/back.html"] if hops else []
    limits = ("--delay", "0.01", "--allow-net", "127.0.0.0/8", "--no-progress", "--exclude", "secret")
    orb("crawl", f"{site.origins[0]}/", "--out", folder, "--extra-hops", str(hops), *limits)
    requested = sorted(each.path for each in site.log() if each.path != "/robots.txt")
    assert requested == sorted(["/", "/inner.html", *back, *beyond]), "each once"
    summary = json.loads(orb("show", folder, "--json"))
    assert summary["left_out"].get("other_host", 0) == {0: 2, 1: 2, 2: 1}[hops]
    if hops:
        shown = orb("show", folder, "--url", f"{site.origins[1]}/reached.html").decode()
        assert "1, 1 hop beyond the scope" in shown
        back_in = json.loads(orb("show", folder, "--url", f"{site.origins[0]}/back.html", "--json"))
        assert (back_in["extra_hops"], back_in["depth"]) == (0, 2)
        path, distance = {1: ("far", "2 hops beyond"), 2: ("further", "3 hops beyond")}[hops]
        assert distance in orb("show", folder, "--url", f"{site.origins[2]}/{path}.html").decode()
