# mypy: ignore-errors
# (runs in the peers' environment, whose packages the project does not have)
"""Crawlee for Python: its parsel crawler and default HTTP client, its queue in memory, no limits on its speed."""

import asyncio
import json
import logging
import sys
from importlib.metadata import version

from crawlee import ConcurrencySettings, service_locator
from crawlee.crawlers import ParselCrawler, ParselCrawlingContext
from crawlee.storage_clients import MemoryStorageClient


async def crawl(start: str) -> int:
    """Pages fetched from `start` on."""
    service_locator.set_storage_client(MemoryStorageClient())
    crawler = ParselCrawler(
        concurrency_settings=ConcurrencySettings(min_concurrency=32, max_concurrency=64, desired_concurrency=64),
        max_request_retries=0,
        use_session_pool=False,
        respect_robots_txt_file=False,
        configure_logging=False,
    )
    pages = 0

    @crawler.router.default_handler
    async def page(context: ParselCrawlingContext) -> None:
        nonlocal pages
        pages += 1
        await context.enqueue_links(strategy="same-origin")

    await crawler.run([start])
    return pages


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    fetched = asyncio.run(crawl(sys.argv[1]))
    names = ("crawlee", "parsel", "impit")
    print(json.dumps({"pages": fetched, "versions": {name: version(name) for name in names}}))
