# mypy: ignore-errors
# (runs in the peers' environment, whose packages the project does not have)
"""The yardstick: the leanest crawl that Python's fast parts allow, in one process, with no guarantees at all.

aiohttp, lexbor, ada and uvloop; a set of seen URLs in memory; no robots, no delay, no retry, nothing stored.
"""

import asyncio
import json
import sys
from importlib.metadata import version

import ada_url
import aiohttp
import uvloop
from selectolax.lexbor import LexborHTMLParser

IN_FLIGHT = 64
SKIPPED = ("#", "mailto:", "javascript:", "data:", "news:", "ftp:")


def links(body: bytes, base: str, origin: str) -> set[str]:
    """The URLs of `origin` that the page at `base` links to, without fragments."""
    parser = LexborHTMLParser(body)
    raw = {node.attributes["href"] for node in parser.css("a[href]")}
    found = set()
    # Most links of a page differ in their fragment only: cut it before the dear part, the URL parser.
    for href in {href.partition("#")[0] for href in raw if href and not href.startswith(SKIPPED)}:
        try:
            url = ada_url.join_url(base, href)
        except ValueError:
            continue
        if url.startswith(origin):
            found.add(url)
    return found


async def crawl(start: str) -> int:
    """Pages fetched with status 200 from `start` on."""
    origin = start[: start.index("/", len("http://")) + 1]
    waiting: asyncio.Queue[str] = asyncio.Queue()
    seen = {start}
    pages = 0
    waiting.put_nowait(start)
    connector = aiohttp.TCPConnector(limit=IN_FLIGHT, keepalive_timeout=60)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:

        async def work() -> None:
            nonlocal pages
            while True:
                url = await waiting.get()
                try:
                    async with session.get(url, allow_redirects=False) as response:
                        if location := response.headers.get("Location"):
                            found = {ada_url.join_url(url, location)}
                            found = {target for target in found if target.startswith(origin)}
                        elif response.status == 200:
                            body = await response.read()
                            pages += 1
                            html = response.content_type == "text/html"
                            found = links(body, url, origin) if html else set()
                        else:
                            await response.read()
                            found = set()
                    for target in found - seen:
                        seen.add(target)
                        waiting.put_nowait(target)
                finally:
                    waiting.task_done()

        workers = [asyncio.create_task(work()) for _ in range(IN_FLIGHT)]
        await waiting.join()
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return pages


if __name__ == "__main__":
    fetched = uvloop.run(crawl(sys.argv[1]))
    names = ("aiohttp", "selectolax", "ada-url", "uvloop")
    print(json.dumps({"pages": fetched, "versions": {name: version(name) for name in names}}))
