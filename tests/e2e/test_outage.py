"""A site that goes away for a while and comes back loses no page."""

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import threading
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from shared.runtime.supervise import dying_with
from tests.support.processes.crawl_process import Running, write_spec
from tests.support.processes.orb_command import ROOT, command_line, orb

pytestmark = pytest.mark.e2e

PAGES = 30
HTTPS_LINKS = 60


class _Site(BaseHTTPRequestHandler):
    """An index that links to all pages; connections end with each answer, and before the TLS of https."""

    def handle(self) -> None:
        if self.connection.recv(1, socket.MSG_PEEK) != b"\x16":
            super().handle()

    def do_GET(self) -> None:
        if self.path == "/https":
            links = [f"https://{self.headers['Host']}/{number}" for number in range(HTTPS_LINKS)]
            body = "".join(f"<a href={link}>" for link in [*links, "/"]).encode()
        elif self.path == "/":
            body = b"".join(b"<a href=/%d>" % number for number in range(PAGES))
        else:
            body = b"<p>page" if self.path != "/robots.txt" else b""
        limited = self.path in self.server.limited  # type: ignore[attr-defined]
        self.send_response(429 if limited else 200)
        if limited:
            self.send_header("Retry-After", "86400")
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.server.served.append(self.path)  # type: ignore[attr-defined]  # set by `serving`

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def serving(port: int, served: list[str], limited: Collection[str] = ()) -> Iterator[int]:
    """Serve the site; its port refuses connections before and after. Each path `limited` gets a 429 for a day."""
    server = ThreadingHTTPServer(("127.0.0.1", port), _Site)
    server.served = served  # type: ignore[attr-defined]
    server.limited = limited  # type: ignore[attr-defined]
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


def test_blocked_crawl_prints_reason_first_and_unblocks_on_request(tmp_path: Path) -> None:
    """A site's `Retry-After: 86400` left "0 in flight, about 6688563 d left" and no way to go on."""
    out, served, limited = tmp_path / "crawl", list[str](), {"/7"}
    with serving(0, served, limited) as port:
        seed, flags = f"http://127.0.0.1:{port}/", ("--allow-net", "127.0.0.0/8", "--delay", "0.1", "--out", out)
        with subprocess.Popen(
            [*dying_with(os.getpid()), *command_line("crawl", seed, *flags, "--workers", "1")],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stderr is not None
            line = next(line for line in process.stderr if " waits " in line)
            shown = orb("show", out).decode()
            process.send_signal(signal.SIGINT)
            summary, _ = process.communicate(timeout=120)
        assert process.returncode == 3
        assert "to ask at once: stop the command that is at work (Ctrl-C), then " in shown
        assert "--unblock" in shown.partition("(Ctrl-C), then ")[2].splitlines()[0]
        reason = f"for 127.0.0.1:{port}: it answered 429 (too many requests) and asked for this pause"
        assert re.match(
            rf"orb: [\d:]+ waits (23:59:\d\d|1 d 00:00) {re.escape(reason)} \| to ask at once: Ctrl-C", line
        )
        assert re.match(rf"waits +(23:5\d:\d\d|1 d 00:00) {re.escape(reason)}\n", summary)
        assert "--unblock" in line.partition("Ctrl-C")[2]
        limited.clear()
        ended = json.loads(orb("crawl", "--out", out, "--unblock", "--json", timeout_s=180))
    assert (ended["pages"], ended["waits"], served.count("/7")) == (PAGES + 1, [], 2)


@pytest.mark.parametrize("delay_s", [0, 0.2])
def test_links_to_https_of_a_site_without_it_lose_no_page(tmp_path: Path, delay_s: float) -> None:
    """One such link ended each visit of the host. It was given up with all URLs that were found later."""
    with serving(0, []) as port:
        spec = write_spec(
            tmp_path / "spec.yaml",
            {
                "seeds": [f"http://127.0.0.1:{port}/https"],
                "politeness": {"delay_s": delay_s},
                "retry": {"outage_s": 1, "base_s": 1},
            },
        )
        summary = json.loads(orb("crawl", "--spec", spec, "--out", tmp_path / "crawl", "--json", timeout_s=180))
    assert (summary["pages"], summary["failed"]) == (PAGES + 2, {"robots_tls": HTTPS_LINKS})
