"""A site that goes away for a while and comes back loses no page."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.support.running import Running, write_spec

PAGES = 30


class _Site(BaseHTTPRequestHandler):
    """An index that links to all pages; connections end with each answer."""

    def do_GET(self) -> None:
        if self.path == "/":
            body = b"".join(b"<a href=/%d>" % number for number in range(PAGES))
        else:
            body = b"<p>page" if self.path != "/robots.txt" else b""
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.server.served.append(self.path)  # type: ignore[attr-defined]  # set by `serving`

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def serving(port: int, served: list[str]) -> Iterator[int]:
    """Serve the site; its port refuses connections before and after."""
    server = ThreadingHTTPServer(("127.0.0.1", port), _Site)
    server.served = served  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def unreachable(out: Path) -> int:
    """Return how often in a row the crawl could not connect to its host."""
    with closing(sqlite3.connect(f"file:{out / 'crawl.db'}?mode=ro", uri=True)) as database:
        return max((row[0] for row in database.execute("SELECT unreachable FROM hosts")), default=0)


def test_an_outage_longer_than_the_attempts_of_a_host_loses_no_page(tmp_path: Path) -> None:
    """With the server away for 40 s, 941 of 2,000 URLs failed for good, and the exit code was 0."""
    served: list[str] = []
    with serving(0, served) as port:
        spec = write_spec(
            tmp_path / "spec.yaml",
            {
                "seeds": [f"http://127.0.0.1:{port}/"],
                "politeness": {"delay_s": 0.2},
                "retry": {"host_attempts": 1, "outage_s": 600},
            },
        )
        run = Running(tmp_path / "crawl", "--spec", spec)
        run.start()
        run.wait_until(lambda: len(served) >= 8, "some pages were fetched")
    try:
        run.wait_until(lambda: unreachable(run.out) >= 2, "the host was found unreachable twice")
        with serving(port, served):
            summary = run.finish(timeout_s=180)
    finally:
        run.kill_all()
    assert (summary["pages"], summary["failed"]) == (PAGES + 1, {})
