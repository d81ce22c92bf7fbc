"""CPU of exports over the REST API, on SQLite: the application in this process, and a caller who keeps nothing.

    .venv/bin/python -m tests.benchmarks.export_rows [--rows N] [--rounds N]

The rows are those of tests/support/database/large_crawl.py: a quarter of the URLs are pages. Best of the rounds.
"""

import argparse
import asyncio
import logging
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog

from tests.support.api.discarding_client import sent
from tests.support.api.rest_api import Api, api
from tests.support.database.large_crawl import grown
from tests.support.database.store_tables import sqlite_tables

FORMATS = ("jsonl", "csv", "parquet")


async def _timed(us: Api, what: str, form: str) -> tuple[float, int]:
    started = time.process_time()
    size, _ = await sent(us, f"/v1/crawls/docs/export/{what}?format={form}")
    return time.process_time() - started, size


async def _run(folder: Path, rows: int, rounds: int) -> None:
    async with sqlite_tables(folder) as tables:
        grown(tables.path, tables.crawl_id, rows)
    async with api(folder / "crawl.db") as us:
        for what, count in (("urls", rows), ("pages", rows // 4)):
            for form in FORMATS:
                spent, size = min([await _timed(us, what, form) for _ in range(rounds)])
                rate = f"{count / spent:,.0f} rows a CPU-second"
                print(f"{count:>9,} {what:5s} as {form:7s} {spent:6.2f} s of CPU  {size / 1e6:6.1f} MB  {rate}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rows", type=int, default=200_000)
    arguments.add_argument("--rounds", type=int, default=3)
    options = arguments.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with TemporaryDirectory() as folder:
        asyncio.run(_run(Path(folder), options.rows, options.rounds))


if __name__ == "__main__":
    main()
