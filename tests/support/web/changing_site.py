"""A site whose pages a test changes, and that answers conditional requests for some of them."""

import http.server
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.utils import formatdate
from typing import Any

from shared.domain.archive.model import payload_digest

MODIFIED = formatdate(1_700_000_000, usegmt=True)


class Site(http.server.ThreadingHTTPServer):
    """Serves `pages` (path -> text). Those in `dated` and `tagged` answer conditional requests.

    `headers`: further headers of the responses 200 and 304, by path.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.pages: dict[str, str] = {}
        self.tagged: set[str] = set()
        self.dated: set[str] = set()
        self.odd: dict[str, str] = {}
        self.headers: dict[str, dict[str, str]] = {}
        self.seen: list[tuple[str, str | None, int]] = []
        self.slow_s = 0.0
        self._more = threading.Condition()

    def note(self, path: str, condition: str | None, status: int) -> None:
        """Note a request that is about to be answered."""
        with self._more:
            self.seen.append((path, condition, status))
            self._more.notify_all()
        time.sleep(self.slow_s)

    def wait_for(self, count: int) -> None:
        """Wait until so many requests came since the last call of `taken`."""
        with self._more:
            assert self._more.wait_for(lambda: len(self.seen) >= count, 60)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def taken(self) -> list[tuple[str, str | None, int]]:
        """Return path, condition and status of the requests since the last call, without robots.txt."""
        seen, self.seen = self.seen, []
        return sorted(each for each in seen if each[0] != "/robots.txt")


class _Answers(http.server.BaseHTTPRequestHandler):
    server: Site
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        site, text = self.server, self.server.pages.get(self.path)
        condition = self.headers["If-None-Match"] or self.headers["If-Modified-Since"]
        headers = {"Content-Type": "text/html; charset=utf-8"}
        body = (text or "missing").encode()
        status = 404 if text is None else 200
        if status != 404:
            headers |= site.headers.get(self.path, {})
        if self.path in site.tagged:
            headers["ETag"] = f'"{payload_digest(body).hex()}"'
        if self.path in site.dated:
            headers["Last-Modified"] = MODIFIED
        if self.path in site.odd:
            headers["ETag"] = headers["Last-Modified"] = site.odd[self.path]
        if text is not None and condition is not None and condition in (headers.get("ETag"), MODIFIED):
            status, body = 304, b""
        site.note(self.path, condition, status)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 304:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(body)


@contextmanager
def serving() -> Iterator[Site]:
    with Site() as site:
        thread = threading.Thread(target=site.serve_forever, daemon=True)
        thread.start()
        try:
            yield site
        finally:
            site.shutdown()
            thread.join()


def page(text: str, *links: str) -> str:
    return f"<html><body><p>{text}</p>{''.join(f'<a href={link}>{link}</a>' for link in links)}</body></html>"
