"""A documentation tree served as a web site, by the rules that a plain web server follows."""

import mimetypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote, unquote

import msgspec

from tests.support.web.http_server import Reply, Request, Respond

_TYPES = mimetypes.MimeTypes()


class FileTree(msgspec.Struct, frozen=True, tag=True):
    """The files below `root` on one host: symbolic links followed, letter case kept, queries ignored.

    A directory answers its index.html, without its closing slash a 301 to it, and 404 when it has no index. HTML goes
    out without a charset, so that the page's own declaration counts (the trees have EUC-KR and ISO-8859-1 pages). A
    gzip file is a document of type application/gzip and not a content coding. `robots` is the text of robots.txt, 404
    when empty.
    """

    root: str
    robots: str = ""
    latency_s: float = 0.0
    hosts: ClassVar[int] = 1

    def file_at(self, path: str) -> Path | None:
        """The file or directory that the URL path `path` names, or None (also for a path that climbs out)."""
        parts = [part for part in unquote(path).split("/") if part not in ("", ".")]
        if ".." in parts or any("\0" in part for part in parts):
            return None
        file = Path(self.root, *parts)
        return file if file.exists() else None

    def open(self, origins: Sequence[str]) -> Respond:
        """The function that answers for this tree."""

        def respond(request: Request) -> Reply:
            path = request.target.partition("?")[0]
            if path == "/robots.txt" and self.robots:
                return Reply(200, (("Content-Type", "text/plain"),), self.robots.encode(), self.latency_s)
            file = self.file_at(path)
            if file is not None and file.is_dir():
                if not path.endswith("/"):
                    return Reply(301, (("Location", quote(unquote(path)) + "/"),), b"", self.latency_s)
                file = file / "index.html"
            elif path.endswith("/"):
                file = None
            if file is None or not file.is_file() or not os.access(file, os.R_OK):
                return Reply(404, (("Content-Type", "text/html"),), b"<title>Not found</title>", self.latency_s)
            return Reply(200, (("Content-Type", mime_of(file)),), file.read_bytes(), self.latency_s)

        return respond


def mime_of(file: Path) -> str:
    """The media type by the file's name, without a charset; application/octet-stream when the name says nothing."""
    kind, coding = _TYPES.guess_type(file.name)
    if coding == "gzip":
        return "application/gzip"
    return kind or "application/octet-stream"
