"""Microseconds of CPU a page for each stage between a body and its outlinks, on real documentation.

Run from the clone's root, on a quiet machine (Debian's python3.11-doc, postgresql-doc-15, apache2-doc installed):

    .venv/bin/python -m tests.benchmarks.parse_pages [--pages N] [--rounds N]

The tree parser's row is what the tag scanner replaces; both figures come from the same run. `ORB_TAG_SCANNER=python`
gives the other rows without the compiled scanner. Best of the rounds; caches
are as in a crawl (cold at the start of the first round, then warm; `--rounds 1` gives the cold figures).
"""

import argparse
import random
import time
from collections.abc import Callable

from selectolax.lexbor import LexborHTMLParser

from shared.domain.crawl.scope import CompiledScope
from shared.domain.crawl.spec import CrawlSpec, Extract, Seed
from shared.domain.ids import CrawlId, Revision
from shared.domain.web.url import Location, locate
from tests.support.web.corpora import CORPORA
from workers.known_links import KnownLinks
from workers.outlinks import OutlinkResolver
from workers.parse.charset import sniff
from workers.parse.html import ParsedPage, parse_html
from workers.parse.mime import classify
from workers.parse.scanner import CHOICE, scan_tags
from workers.parse.tags import scan_tags as python_scan_tags


def _timed(stage: Callable[[int], object], count: int) -> float:
    started = time.process_time()
    for index in range(count):
        stage(index)
    return (time.process_time() - started) / count * 1e6


def _tree_links(body: bytes) -> list[str | None]:
    return [node.attributes.get("href") for node in LexborHTMLParser(body).css("a[href]")]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--pages", type=int, default=1000)
    arguments.add_argument("--rounds", type=int, default=3)
    options = arguments.parse_args()

    paths = sorted(
        path for corpus in CORPORA if (root := corpus.root()) for path in root.rglob("*.htm*") if path.is_file()
    )
    random.Random(7).shuffle(paths)
    paths = paths[: options.pages]
    bodies = [path.read_bytes() for path in paths]
    located: list[Location] = []
    for path in paths:
        location = locate(f"http://docs.example{path}")
        assert location is not None
        located.append(location)

    extract = Extract()
    charsets = [sniff(body, "text/html") for body in bodies]
    parsed: list[ParsedPage] = [
        parse_html(b, charset=c, options=extract) for b, c in zip(bodies, charsets, strict=True)
    ]
    scope = CompiledScope(CrawlSpec(seeds=(Seed(url="http://docs.example/"),)))
    resolver = OutlinkResolver(CrawlId(1), Revision(1), scope, extract, KnownLinks())

    def report(index: int) -> None:
        resolver.acknowledged(resolver.outlinks(located[index], parsed[index], depth=1))

    def everything(index: int) -> None:
        body = bodies[index]
        classify(body, "text/html")
        page = parse_html(body, charset=sniff(body, "text/html"), options=extract)
        resolver.acknowledged(resolver.outlinks(located[index], page, depth=1))

    stages: dict[str, Callable[[int], object]] = {
        "tree parser, a[href] (not used)": lambda i: _tree_links(bodies[i]),
        "media type": lambda i: classify(bodies[i], "text/html"),
        "charset": lambda i: sniff(bodies[i], "text/html"),
        "tag scan by tags.py": lambda i: python_scan_tags(bodies[i]),
        "tag scan as chosen": lambda i: scan_tags(bodies[i]),
        "parse (tag scan included)": lambda i: parse_html(bodies[i], charset=charsets[i], options=extract),
        "outlinks: resolve, known, scope": report,
        "all of it": everything,
    }
    best = dict.fromkeys(stages, float("inf"))
    for _ in range(options.rounds):
        for name, stage in stages.items():
            best[name] = min(best[name], _timed(stage, len(bodies)))
    links = sum(len(page.links) for page in parsed) / len(parsed)
    size = sum(map(len, bodies)) / len(bodies) / 1000
    print(f"{len(bodies)} pages of {size:.1f} kB, {links:.0f} distinct link tags each; tag scanner: {CHOICE}")
    for name, microseconds in best.items():
        print(f"{name:36s}{microseconds:8.0f} us a page")


if __name__ == "__main__":
    main()
