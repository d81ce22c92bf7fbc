"""A web for tests: sites on loopback addresses, served by a process of their own.

The process outlives whatever the test does to its crawlers, and ends with the test: it stops when its standard input
closes, so that even a killed test run leaves nothing behind. Run as `python -m tests.support.web.web_server LOG`, it
reads the sites as JSON from the first line of its input and answers one line with the port. Every further line says
how many more pages are to be answered, null for all, or nothing. It is answered by a line when that holds, and when
all that clients have read is in the log.
"""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from tests.support.behaviours.site import BehaviourSite
from tests.support.web.exchange_log import Exchange, LogTail
from tests.support.web.file_site import FileTree
from tests.support.web.hostile_site import HostileSite
from tests.support.web.hostile_sitemaps import HostileSitemaps
from tests.support.web.http_server import Connection, ExchangeLog, Gate, Respond, listen_on
from tests.support.web.sitemap_site import SitemapSite
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.throttled_site import ThrottledSite

ROOT: Final = Path(__file__).resolve().parents[3]
Site = BehaviourSite | FileTree | HostileSite | HostileSitemaps | SitemapSite | SyntheticSite | ThrottledSite


def address(index: int) -> str:
    """The loopback address of the host with number `index`, from 127.0.0.1 on."""
    if not 0 <= index < 60_000:
        raise ValueError(f"host {index} is outside of what 127.0.0.0/16 holds")
    return f"127.0.{index // 250}.{index % 250 + 1}"


class Web:
    """Sites that are being served. Hosts are numbered over all sites, in the order in which the sites were given."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, sites: Sequence[Site], log: Path) -> None:
        self.process = process
        self.port = port
        self.sites = tuple(sites)
        self.hosts = tuple(f"{address(index)}:{port}" for index in range(sum(site.hosts for site in sites)))
        self.origins = tuple(f"http://{host}" for host in self.hosts)
        self._tail = LogTail(log)
        self._seen: list[Exchange] = []
        self._speaking = threading.Lock()

    def __repr__(self) -> str:
        return f"<Web {len(self.hosts)} hosts on port {self.port}, {len(self._seen)} exchanges read>"

    def answer(self, pages: int | None) -> None:
        """From now on answer so many more pages, or all; requests beyond that wait. So a crawl ends no sooner than a
        test is ready for that, however long the test stood still; it must not let fetches wait until they give up."""
        assert self._heard(msgspec.json.encode(pages)), "the web's process ended"

    def origins_of(self, site: int) -> tuple[str, ...]:
        """The origins of the hosts of site number `site`."""
        first = sum(earlier.hosts for earlier in self.sites[:site])
        return self.origins[first : first + self.sites[site].hosts]

    def expected_pages(self, site: int = 0) -> dict[str, int]:
        """The pages of a synthetic site, as `SyntheticSite.expected_pages` has them."""
        made = self.sites[site]
        assert isinstance(made, SyntheticSite)
        return made.expected_pages(self.origins_of(site))

    def log(self) -> list[Exchange]:
        """Every exchange that has ended so far, in the order of their ends."""
        self._seen += self.new()
        return list(self._seen)

    def new(self) -> list[Exchange]:
        """The exchanges that ended since the last call of `new` or `log`; keeps none, for very long logs."""
        self._heard(b"")  # else what a crawler has read and reported may still have to be logged
        return self._tail.read()

    def wait_until(self, true: Callable[[list[Exchange]], bool], timeout_s: float = 60.0) -> list[Exchange]:
        """The log as soon as `true(log)`; looks every 10 ms. AssertionError after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not true(log := self.log()):
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {timeout_s} s; the web has seen {len(log)} exchanges")
            if self.process.poll() is not None:
                raise AssertionError(f"the web's process ended with {self.process.returncode}")
            time.sleep(0.01)
        return log

    def wait_served(self, count: int, timeout_s: float = 60.0) -> list[Exchange]:
        """The log as soon as it holds `count` complete exchanges other than robots.txt."""
        return self.wait_until(
            lambda log: sum(exchange.complete and exchange.path != "/robots.txt" for exchange in log) >= count,
            timeout_s,
        )

    def _heard(self, line: bytes) -> bool:
        """Tell the process something, and wait until it holds; False when it has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with self._speaking:
            try:
                self.process.stdin.write(line + b"\n")
                self.process.stdin.flush()
            except (BrokenPipeError, ValueError):
                return False
            return bool(self.process.stdout.readline())


@contextmanager
def serve(log: Path, *sites: Site) -> Iterator[Web]:
    """Serves `sites` until the block ends; the log of exchanges is kept at `log`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.web.web_server", str(log)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        # Out of the test's process group: a Ctrl-C or a group kill meant for a crawler must not reach the web.
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(msgspec.json.encode(sites) + b"\n")
        process.stdin.flush()
        ready = process.stdout.readline()
        if not ready:
            raise RuntimeError(f"the web did not start: its process ended with {process.wait(30)}")
        yield Web(process, int(ready), sites, log)
    finally:
        process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


async def _serve(sites: list[Site], log: ExchangeLog) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    gate = Gate()
    loop.add_reader(0, _heed, gate, stop)
    addresses = [address(index) for index in range(sum(site.hosts for site in sites))]
    port, sockets = listen_on(addresses)
    names = iter([f"{name}:{port}" for name in addresses])
    sources = iter(sockets)
    servers = []
    for site in sites:
        own = list(itertools.islice(names, site.hosts))
        respond = site.open([f"http://{name}" for name in own])
        for index, name in enumerate(own):
            servers.append(
                await loop.create_server(
                    _connections(name, index, respond, log, gate), sock=next(sources), backlog=1024
                )
            )
    print(port, flush=True)
    await stop.wait()
    for server in servers:
        server.close()


def _connections(name: str, index: int, respond: Respond, log: ExchangeLog, gate: Gate) -> Callable[[], Connection]:
    return lambda: Connection(name, index, respond, log, gate)


def _heed(gate: Gate, stop: asyncio.Event) -> None:
    """Reads a line from standard input, which its writer sends whole, and one at a time."""
    line = os.read(0, 4096)
    if not line:
        stop.set()
        return
    if line.strip():
        gate.open(msgspec.json.decode(line, type=int | None))
    # A connection that waited for the last bytes of a long answer logs it in the loop's next turn.
    loop = asyncio.get_running_loop()
    loop.call_soon(loop.call_soon, partial(print, flush=True))


def main(log_path: str) -> None:
    """Serves the sites given on standard input until it closes."""
    sites = msgspec.json.decode(_first_line(), type=list[Site])
    log = ExchangeLog(log_path)
    try:
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(log.selector)) as runner:
            runner.run(_serve(sites, log))
    finally:
        log.close()


def _first_line() -> bytes:
    """The first line of standard input, read unbuffered so that the loop sees all of the rest."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            raise SystemExit("no sites were given on standard input")
        line += byte
    return bytes(line)


if __name__ == "__main__":
    main(sys.argv[1])
