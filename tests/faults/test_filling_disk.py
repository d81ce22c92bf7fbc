"""A disk that fills fast holds the crawl with a reason and ends no process; with room the crawl goes on."""

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from cli.local.folder_lock import ROOM_BYTES
from tests.support.faults.disks import small
from tests.support.processes.up_process import UpProcess, upped

pytestmark = pytest.mark.e2e

MIB: Final = 1 << 20
DISK_MIB: Final = 448
BALLAST_MIB: Final = 96
PAGES: Final = 600
LARGE: Final = os.urandom(MIB)


class _Large(BaseHTTPRequestHandler):
    """A list of pages, each of a MiB that does not shrink."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/":
            kind, body = "text/html", "".join(f'<a href="/{n}">{n}</a>' for n in range(PAGES)).encode()
        elif self.path == "/robots.txt":
            kind, body = "text/plain", b""
        else:
            kind, body = "application/octet-stream", LARGE
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def large_pages() -> Iterator[str]:
    """The origin of the site, served by a thread."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Large) as site:
        site.daemon_threads = True
        thread = threading.Thread(target=site.serve_forever, name="large pages")
        thread.start()
        try:
            yield f"http://127.0.0.1:{site.server_address[1]}"
        finally:
            site.shutdown()
            thread.join()


def crawl(up: UpProcess) -> dict[str, Any]:
    found: dict[str, Any] = up.ask("GET", "/v1/crawls/large").json()
    return found


def pages(up: UpProcess) -> int:
    return int(up.ask("GET", "/v1/crawls/large/stats").json()["counters"]["pages"])


def under_way(up: UpProcess) -> int:
    """URLs that are leased."""
    return int(up.ask("GET", "/v1/crawls/large/stats").json()["counters"]["leased"])


@pytest.mark.timeout(400)
def test_a_disk_that_fills_fast_holds_the_crawl_and_ends_no_process(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with ExitStack() as stack:
        small(stack, disk, DISK_MIB)
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(BALLAST_MIB * MIB))
        origin = stack.enter_context(large_pages())
        up = stack.enter_context(
            upped(disk / "cluster", "--masters", "1", "--workers", "2", settings={"ORB_MAX_VISITS": "16"})
        )
        spec = {
            "seeds": [f"{origin}/"],
            "politeness": {"delay_s": 0},
            "egress": {"allow": ["127.0.0.0/8"]},
        }
        made = up.ask("POST", "/v1/crawls", {"name": "large", "spec": spec})
        assert made.status_code == 201, made.text
        processes = {child.pid for child in up.family()}
        least = shutil.disk_usage(disk).free

        def held() -> bool:
            nonlocal least
            least = min(least, shutil.disk_usage(disk).free)
            return crawl(up)["blocking_reason"] is not None

        up.until(held, "the crawl is held")
        reason = str(crawl(up)["blocking_reason"])
        assert "free of" in reason, reason
        up.until(lambda: held() and not under_way(up), "nothing is under way")
        before = pages(up)
        assert 0 < before < PAGES
        assert least > ROOM_BYTES, f"{least >> 20} MiB were left"
        ballast.unlink()
        up.until(lambda: pages(up) > before + 10, "it goes on")
        assert up.process.poll() is None
        assert processes <= {child.pid for child in up.family()}, "no process ended"
        assert up.interrupted() == 0
