"""What archiving costs: CPU a page for compressing, for everything up to durable, for repair, reading and the index.

    python -m tests.benchmarks.archive_pages [--docs /usr/share/doc/python3.11/html] [--pages 400]

Pages are real HTML of 10 to 80 KB from --docs, each with 100 outlinks. Figures are medians of 3, process CPU time.
zlib-ng is compared where it is installed.
"""

import argparse
import asyncio
import importlib
import shutil
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

from isal import isal_zlib

from shared.adapters.objects.cdxj import write_index
from shared.adapters.objects.local import LocalSegments
from shared.adapters.objects.repair import scan_records
from shared.domain.archive.cdxj import IndexRow
from shared.domain.archive.model import ArchivedCrawl, Exchange, RecordLocation, payload_digest
from shared.domain.ids import CrawlId
from shared.domain.web.fetch import Answer, Timings
from tests.support.whole_records import read_response
from workers.archive import WarcArchive

_LINKS = {"L a/@href": [f"http://127.0.0.1:8000/library/module{number}.html" for number in range(100)]}
_REQUEST = (
    b"GET /page HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nUser-Agent: Orbweaver (+http://example.org/)\r\nAccept: */*\r\n\r\n"
)


def exchange_of(body: bytes, number: int) -> Exchange:
    head = (
        b'HTTP/1.1 200 OK\r\nServer: nginx\r\nDate: Mon, 01 Jan 2024 00:00:00 GMT\r\nETag: "abcdef-1234"\r\n'
        b"Content-Type: text/html; charset=utf-8\r\nContent-Length: %d\r\n\r\n" % len(body)
    )
    url = f"http://127.0.0.1:8000/page{number}.html"
    found = Answer(url, 200, (), _REQUEST, head, body, body, "127.0.0.1", Timings(total_s=0.01))
    return Exchange(found, 1_700_000_000_000 + number, 2, "http://127.0.0.1:8000/", _LINKS)


def cpu(work: Callable[[], object]) -> float:
    """Median CPU seconds of three runs."""
    times = []
    for _ in range(3):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return statistics.median(times)


def compare_codecs(bodies: list[bytes]) -> None:
    codecs: list[tuple[str, Callable[[bytes, int, int], bytes], tuple[int, ...]]] = [
        ("isal", isal_zlib.compress, (0, 1, 2, 3)),
        ("zlib", zlib.compress, (1, 6)),
    ]
    try:
        codecs.append(("zlib-ng", importlib.import_module("zlib_ng.zlib_ng").compress, (1, 2, 3)))
    except ModuleNotFoundError:
        print("zlib-ng is not installed and not compared")
    whole = sum(map(len, bodies))
    for name, compress, levels in codecs:
        for level in levels:
            seconds = cpu(lambda compress=compress, level=level: [compress(body, level, 31) for body in bodies])  # type: ignore[misc]  # bound now
            ratio = whole / sum(len(compress(body, level, 31)) for body in bodies)
            print(f"{name:8} {level}  {seconds / len(bodies) * 1e6:7.1f} us a page  ratio {ratio:.2f}")


def store_pages(folder: Path, exchanges: list[Exchange], together: int) -> list[RecordLocation]:
    async def store() -> list[RecordLocation]:
        clock = time.time_ns
        archive = WarcArchive(LocalSegments(folder), worker_id="w", software="bench", wall_ms=lambda: clock() // 10**6)
        writer = archive.writer(ArchivedCrawl(CrawlId(1), "bench"))
        locations = []
        for number, one in enumerate(exchanges, 1):
            locations.append((await writer.append(one)).location)
            if number % together == 0:
                await writer.sync()
        await archive.close()
        return locations

    return asyncio.run(store())


def index_rows(exchanges: list[Exchange], locations: list[RecordLocation], times: int) -> list[IndexRow]:
    rows = [
        IndexRow(f"1)/{number}", 1_700_000_000_000, one.answer.url, "text/html", 200, payload_digest(b""), place)
        for number, (one, place) in enumerate(zip(exchanges, locations, strict=True))
    ]
    return rows * times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, default=Path("/usr/share/doc/python3.11/html"))
    parser.add_argument("--pages", type=int, default=400)
    args = parser.parse_args()
    bodies = [path.read_bytes() for path in sorted(args.docs.rglob("*.html"))]
    bodies = [body for body in bodies if 10_000 < len(body) < 80_000][: args.pages]
    if not bodies:
        parser.error(f"no HTML page of 10 to 80 KB below {args.docs}")
    exchanges = [exchange_of(body, number) for number, body in enumerate(bodies)]
    print(f"{len(bodies)} pages of {statistics.mean(map(len, bodies)) / 1000:.1f} KB")
    compare_codecs(bodies)

    folder = Path(tempfile.mkdtemp())
    try:
        per_page = 1e6 / len(bodies)
        for together in (1, 50):
            seconds = cpu(lambda together=together: store_pages(folder, exchanges, together))  # type: ignore[misc]  # bound now
            print(f"three records, durable in groups of {together}: {seconds * per_page:.0f} us a page")
        locations = store_pages(folder, exchanges, 50)
        segment = folder / locations[0].segment
        data = segment.read_bytes()
        print(f"stored: {len(data) / len(bodies) / 1000:.2f} KB a page, all records")
        seconds = cpu(lambda: scan_records(data))
        print(f"repair walks {len(data) / seconds / 1e6:.0f} MB/s of segment, {len(bodies) / seconds:.0f} pages/s")
        store = LocalSegments(folder)
        seconds = cpu(lambda: [read_response(store, location) for location in locations])
        print(f"reading by location: {seconds * per_page:.0f} us a page")
        rows = index_rows(exchanges, locations, 200_000 // len(bodies))
        seconds = cpu(lambda: write_index(rows, folder / "index.cdxj", run_lines=50_000))
        print(f"index: {seconds / len(rows) * 1e6:.1f} us a line ({len(rows)} lines)")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
