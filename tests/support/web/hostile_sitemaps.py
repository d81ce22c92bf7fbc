"""A site whose robots.txt names sitemaps that no crawler should trust."""

import gzip
from collections.abc import Sequence
from functools import cache
from typing import ClassVar

import msgspec

from tests.support.web.http_server import Reply, Request, Respond
from tests.support.web.sitemap_files import urlset

ENTRIES: int = 1_000_000
"""Entries of the feed, and of the sitemap that is a text file."""

READABLE: tuple[str, ...] = ("/self.xml", "/hosts.xml", "/lastmod.xml", "/include.xml")
"""Files that are read to their end. What they ask for besides is left out."""

CUT: tuple[str, ...] = ("/million.rss.gz", "/lines.txt.gz", "/after-bomb.xml")
"""Files that are read up to a limit, so that some of their entries count."""

REFUSED: tuple[str, ...] = ("/bomb.xml", "/external.xml", "/parameter.xml", "/deep.xml", "/gzip-bomb.xml.gz")
"""Files of which no entry is read."""

MARK: str = "/page/"


class HostileSitemaps(msgspec.Struct, frozen=True, tag=True):
    """robots.txt names a file for each way to harm the reader of a sitemap. `/page/NAME` is what NAME lists rightly."""

    hosts: ClassVar[int] = 1

    def open(self, origins: Sequence[str]) -> Respond:
        """The function that answers for this site."""
        origin = origins[0]
        files = _files(origin)
        robots = "".join(f"Sitemap: {origin}{path}\n" for path in files).encode()

        def respond(request: Request) -> Reply:
            if request.target == "/robots.txt":
                return Reply(200, (("Content-Type", "text/plain"),), robots)
            if request.target in files:
                return Reply(200, (("Content-Type", _media_type(request.target)),), files[request.target])
            page = request.target == "/" or request.target.startswith(MARK)
            return Reply(200 if page else 404, (("Content-Type", "text/html"),), b"<title>page</title>")

        return respond


def _media_type(path: str) -> str:
    return "application/gzip" if path.endswith(".gz") else "application/xml"


@cache
def _files(origin: str) -> dict[str, bytes]:
    """Return the files by their path."""

    def page(name: str) -> str:
        return f"{origin}{MARK}{name}"

    entity = b'<!DOCTYPE u [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">'
    include = '<xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="file:///etc/hostname" parse="text"/>'
    lastmods = ("9999-99-99", "2999-01-01", "-5", "now", "2024-01-02T25:61:61Z", "x" * 70_000, "")
    dated = "".join(
        f"<url><loc>{page(f'lastmod{n}')}</loc><lastmod>{text}</lastmod></url>" for n, text in enumerate(lastmods)
    )
    item = f"<item><link>{page('million')}</link></item>"
    others = (
        "http://other.example/1",
        "https://127.0.0.1/2",
        "http://user:secret@third.example/3",
        "file:///etc/passwd",
    )
    return {
        "/self.xml": (
            f"<sitemapindex><sitemap><loc>{origin}/self.xml</loc></sitemap>"
            f"<sitemap><loc>{origin}/self.xml#again</loc></sitemap></sitemapindex>"
        ).encode(),
        "/hosts.xml": urlset(*others, page("hosts")),
        "/lastmod.xml": f"<urlset>{dated}</urlset>".encode(),
        "/include.xml": (
            f"<urlset><url><loc>{include}</loc></url><url><loc>{page('include')}</loc></url></urlset>".encode()
        ),
        "/million.rss.gz": gzip.compress(f"<rss><channel>{item * ENTRIES}</channel></rss>".encode(), 1),
        "/lines.txt.gz": gzip.compress(f"{page('lines')}\n".encode() * ENTRIES, 1),
        "/after-bomb.xml": f"<urlset><url><loc>{page('after')}</loc></url>{'<a>' * 10_000}</urlset>".encode(),
        "/bomb.xml": entity + b"]><urlset><url><loc>http://a.example/&b;</loc></url></urlset>",
        "/external.xml": (
            b'<!DOCTYPE u [<!ENTITY x SYSTEM "file:///etc/passwd">]><urlset><url><loc>&x;</loc></url></urlset>'
        ),
        "/parameter.xml": b'<!DOCTYPE u [<!ENTITY % p SYSTEM "http://127.0.0.1:9/"> %p;]><urlset/>',
        "/deep.xml": b"<urlset>" + b"<a>" * 100_000,
        "/gzip-bomb.xml.gz": gzip.compress(b"<urlset>" + b" " * (256 << 20) + b"</urlset>", 1),
    }
