"""A crawl that fetches or stores pages of some media types only, and reads links of some only."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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


LONG = 64 << 20


class CountingServer(ThreadingHTTPServer):
    """A page that links to a long archive, a short one, and a file without a type. It counts the bytes of bodies that
    the kernel took.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.sent: dict[str, int] = {}
        self.answered = threading.Condition()


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: CountingServer

    def setup(self) -> None:
        super().setup()
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)

    def do_GET(self) -> None:
        links = b"<title>start</title><a href=long.zip>1</a><a href=short.zip>2</a><a href=untyped>3</a>"
        kind, size, body = {
            "/": ("text/html", len(links), links),
            "/long.zip": ("application/zip", LONG, b"x" * 65536),
            "/short.zip": ("application/zip", 2000, b"x" * 2000),
            "/untyped": ("", 9, b"some text"),
        }.get(self.path, ("text/plain", 0, b""))
        self.send_response(200 if size else 404)
        self.send_header("Content-Length", str(size))
        if kind:
            self.send_header("Content-Type", kind)
        self.end_headers()
        sent = 0
        try:
            while sent < size:
                sent += self.request.send(body[: size - sent])
        except OSError:
            self.close_connection = True
        with self.server.answered:
            self.server.sent[self.path] = sent
            self.server.answered.notify_all()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def counting() -> Iterator[CountingServer]:
    with CountingServer() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_transfer_of_a_type_that_is_not_fetched_ends_behind_its_head(counting: CountingServer, tmp_path: Path) -> None:
    origin = f"http://127.0.0.1:{counting.server_address[1]}"
    spec = {
        "seeds": [f"{origin}/"],
        "politeness": {"delay_s": 0.01},
        "media": {"fetched": ["text/html"]},
        "fetch": {"max_body_bytes": LONG},
    }
    folder = tmp_path / "crawl"
    with Running(folder, "--spec", write_spec(tmp_path / "spec.json", spec)) as run:
        summary = run.finish()
    with counting.answered:
        assert counting.answered.wait_for(lambda: len(counting.sent) == 5, timeout=60), counting.sent
    assert counting.sent["/long.zip"] < 1 << 20, "the connection was closed"
    assert counting.sent["/short.zip"] == 2000
    assert (summary["pages"], summary["not_indexed"]) == (2, {"not_fetched": 2})
    assert summary["identities"] == {"urls": 0, "links": 0}
    assert summary["counters"]["done"] == 4
    assert stored(folder) == ["/", "/untyped"], "an answer without a type is fetched"
    archived = b"".join(path.read_bytes() for path in (folder / "archive").rglob("*.cdxj"))
    assert b".zip" not in archived
    shown = orb("show", folder, "--url", f"{origin}/long.zip").decode()
    assert "media.fetched of the spec leaves out its media type" in shown
