# mypy: ignore-errors
# (runs in the peers' environment, whose packages the project does not have)
"""Scrapy as its documentation recommends for broad crawls (docs: "Broad Crawls"), with its own link extractor.

From that page: the downloader-aware queue, raised concurrency, 20 resolver threads, log level INFO, no cookies, no
retries, a short download timeout, no redirects, breadth-first order. The limit per host is raised as well, because this
task has one host.
"""

import json
import sys
from importlib.metadata import version

import scrapy
from scrapy.crawler import CrawlerProcess
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule

SETTINGS = {
    "ROBOTSTXT_OBEY": False,
    "DOWNLOAD_DELAY": 0,
    "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.DownloaderAwarePriorityQueue",
    "CONCURRENT_REQUESTS": 100,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 100,
    "REACTOR_THREADPOOL_MAXSIZE": 20,
    "LOG_LEVEL": "INFO",
    "COOKIES_ENABLED": False,
    "RETRY_ENABLED": False,
    "DOWNLOAD_TIMEOUT": 15,
    "REDIRECT_ENABLED": False,
    "DEPTH_PRIORITY": 1,
    "SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue",
    "SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue",
}


class Broad(CrawlSpider):
    """Follows links on the start's host."""

    name = "broad"
    custom_settings = SETTINGS
    pages = 0
    rules = (Rule(LinkExtractor(), callback="count", follow=True),)

    def __init__(self, start_url, **kwargs):
        super().__init__(**kwargs)
        self.start_urls = [start_url]
        self.allowed_domains = [start_url.split("/")[2].split(":")[0]]

    def parse_start_url(self, response, **kwargs):
        return self.count(response)

    def count(self, response):
        type(self).pages += 1
        return ()


if __name__ == "__main__":
    process = CrawlerProcess()
    process.crawl(Broad, start_url=sys.argv[1])
    process.start()
    assert scrapy.__version__ == version("scrapy")
    names = ("scrapy", "twisted", "lxml")
    print(json.dumps({"pages": Broad.pages, "versions": {name: version(name) for name in names}}))
