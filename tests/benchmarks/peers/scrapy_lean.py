# mypy: ignore-errors
# (runs in the peers' environment, whose packages the project does not have)
"""Scrapy with everything taken off that the task does not need: `scrapy_lean.py URL HOW`.

HOW links are found: `extractor`, Scrapy's LinkExtractor; `selector`, its selectors and response.urljoin, once for each
different link; `lexbor`, beyond what Scrapy offers, the lexbor and ada of the bare loop, which leaves the cost of
Scrapy's engine alone. No middlewares but the one that decompresses, no
extensions, no duplicate filter (the spider's own set is cheaper), no logging; asyncio reactor on uvloop.
"""

import contextlib
import json
import sys
from importlib.metadata import version

import ada_url
import scrapy
from scrapy.crawler import CrawlerProcess
from scrapy.linkextractors import LinkExtractor
from selectolax.lexbor import LexborHTMLParser

SETTINGS = {
    "TWISTED_REACTOR": "twisted.internet.asyncioreactor.AsyncioSelectorReactor",
    "ASYNCIO_EVENT_LOOP": "uvloop.Loop",
    "ROBOTSTXT_OBEY": False,
    "DOWNLOAD_DELAY": 0,
    "CONCURRENT_REQUESTS": 64,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 64,
    "COOKIES_ENABLED": False,
    "RETRY_ENABLED": False,
    "REDIRECT_ENABLED": False,
    "HTTPCACHE_ENABLED": False,
    "TELNETCONSOLE_ENABLED": False,
    "LOG_ENABLED": False,
    "DUPEFILTER_CLASS": "scrapy.dupefilters.BaseDupeFilter",
    "DOWNLOADER_MIDDLEWARES_BASE": {
        "scrapy.downloadermiddlewares.httpcompression.HttpCompressionMiddleware": 590,
    },
    "SPIDER_MIDDLEWARES_BASE": {},
    "EXTENSIONS_BASE": {},
    "HTTPERROR_ALLOW_ALL": True,
}
SKIPPED = ("#", "mailto:", "javascript:", "data:", "news:", "ftp:")


class Lean(scrapy.Spider):
    """Follows a[href] on the start's host."""

    name = "lean"
    custom_settings = SETTINGS
    pages = 0
    how = "extractor"
    extractor = LinkExtractor(unique=True, strip=True)

    async def start(self):
        self.origin = self.start_url[: self.start_url.index("/", len("http://")) + 1]
        self.seen = {self.start_url}
        yield scrapy.Request(self.start_url, dont_filter=True)

    def parse(self, response):
        for url in self.found(response):
            if url not in self.seen and url.startswith(self.origin):
                self.seen.add(url)
                yield scrapy.Request(url, dont_filter=True)

    def found(self, response):
        if response.status in (301, 302):
            return {response.urljoin(response.headers[b"Location"].decode())}
        if response.status != 200:
            return ()
        type(self).pages += 1
        if not response.headers.get(b"Content-Type", b"").startswith(b"text/html"):
            return ()
        return {"extractor": self.by_extractor, "selector": self.by_selector, "lexbor": self.by_lexbor}[self.how](
            response
        )

    def by_extractor(self, response):
        return {link.url.partition("#")[0] for link in self.extractor.extract_links(response)}

    def by_selector(self, response):
        hrefs = {href.partition("#")[0] for href in response.xpath("//a/@href").getall()}
        return {response.urljoin(href) for href in hrefs if href and not href.startswith(SKIPPED)}

    def by_lexbor(self, response):
        raw = {node.attributes["href"] for node in LexborHTMLParser(response.body).css("a[href]")}
        for href in {href.partition("#")[0] for href in raw if href and not href.startswith(SKIPPED)}:
            with contextlib.suppress(ValueError):
                yield ada_url.join_url(response.url, href)


if __name__ == "__main__":
    Lean.how = sys.argv[2]
    process = CrawlerProcess(SETTINGS)
    process.crawl(Lean, start_url=sys.argv[1])
    process.start()
    names = ("scrapy", "twisted", "uvloop", "selectolax", "ada-url")
    print(json.dumps({"pages": Lean.pages, "versions": {name: version(name) for name in names}}))
