"""A host that says 429 once, with a Retry-After, in the middle of a crawl."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from tests.support.web.http_server import Reply, Request, Respond


class ThrottledSite(msgspec.Struct, frozen=True, tag=True):
    """`/` links to `pages` pages; the `after`-th request for a page is answered 429 with `retry_after`, once."""

    pages: int
    after: int
    retry_after: str
    hosts: ClassVar[int] = 1

    def open(self, origins: Sequence[str]) -> Respond:
        """The function that answers for this site."""
        html = (("Content-Type", "text/html; charset=utf-8"),)
        index = "".join(f'<a href="/{page}">{page}</a>\n' for page in range(self.pages)).encode()
        asked = 0

        def respond(request: Request) -> Reply:
            nonlocal asked
            path = request.target.removeprefix("/")
            if path == "":
                return Reply(200, html, index)
            if not path.isdigit() or int(path) >= self.pages:
                return Reply(404, html, b"no such page")
            asked += 1
            if asked == self.after:
                return Reply(429, (("Retry-After", self.retry_after),), b"slow down")
            return Reply(200, html, f"<title>{path}</title>".encode())

        return respond
