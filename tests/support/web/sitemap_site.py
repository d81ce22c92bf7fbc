"""A site whose pages only sitemaps and a feed know."""

import gzip
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from tests.support.web.http_server import Reply, Request, Respond
from tests.support.web.sitemap_files import urlset


class SitemapSite(msgspec.Struct, frozen=True, tag=True):
    """`/` has no links and names a feed. robots.txt names an index, which lists itself and two sitemaps in a folder.

    The sitemaps list `pages` pages each, one by gzip, and one lists another host. The feed lists two pages. With
    `named` false robots.txt names nothing, and the index is at `/sitemap.xml`. With `cut` the first sitemap ends within
    its last entry.
    """

    pages: int
    named: bool = True
    cut: bool = False
    hosts: ClassVar[int] = 1

    @property
    def index(self) -> str:
        """The path of the index."""
        return "/index.xml" if self.named else "/sitemap.xml"

    def open(self, origins: Sequence[str]) -> Respond:
        """The function that answers for this site."""
        origin = origins[0]
        html, xml = (("Content-Type", "text/html; charset=utf-8"),), (("Content-Type", "application/xml"),)
        listed = [f"/{part}/{page}" for part in "ab" for page in range(self.pages)]
        entries = "".join(
            f"<sitemap><loc>{origin}{path}</loc></sitemap>" for path in (self.index, "/maps/a.xml", "/maps/b.xml.gz")
        )
        feed = "".join(f"<item><link>{origin}/news/{n}</link></item>" for n in (1, 2))
        half = self.pages
        first = urlset(*(origin + path for path in listed[:half]), "http://other.example/")
        files = {
            "/": (html, b'<title>home</title><link rel="alternate" type="application/rss+xml" href="feed">'),
            self.index: (xml, f"<sitemapindex>{entries}</sitemapindex>".encode()),
            "/maps/a.xml": (xml, first[: first.index(b"http://other.example/")] if self.cut else first),
            "/maps/b.xml.gz": (
                (("Content-Type", "application/gzip"),),
                gzip.compress(urlset(*(origin + path for path in listed[half:]))),
            ),
            "/feed": (xml, f"<rss><channel>{feed}</channel></rss>".encode()),
            **{path: (html, f"<title>{path}</title>".encode()) for path in (*listed, "/news/1", "/news/2")},
        }
        if self.named:
            files["/robots.txt"] = (("Content-Type", "text/plain"),), f"Sitemap: {origin}{self.index}\n".encode()

        def respond(request: Request) -> Reply:
            known = files.get(request.target)
            return Reply(404, html, b"no such page") if known is None else Reply(200, *known)

        return respond
