"""Requests per client CPU-second of HTTP clients over keep-alive connections to a local nginx.

    python -m venv /path/to/venv && /path/to/venv/bin/pip install pycurl uvloop aiohttp pyreqwest
    /path/to/venv/bin/python tests/benchmarks/http_clients.py [--urls 5000] [--in-flight 64] [--rounds 3] [client...]

Each round of each client runs in its own process on uvloop; the CPU counted is that process's user and system time of
all threads from the first request to the last answer, the best of nothing: the median of the rounds is printed. Bodies
are read whole and the bytes compared with the files' sizes. The peers are not dependencies of the project and are
imported by their own function only. Needs nginx and a tree of HTML files (default: Debian's documentation packages).
"""

import argparse
import asyncio
import contextlib
import itertools
import resource
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

Get = Callable[[str], Awaitable[int]]
"""Fetches a URL and returns the length of its body."""

TREES = ("/usr/share/doc/python3.11/html", "/usr/share/doc/apache2-doc/manual")


@contextlib.asynccontextmanager
async def pycurl_epoll(in_flight: int) -> Any:
    """CurlMulti.socket_action; curl's sockets in one epoll set that the loop watches as one descriptor."""
    import pycurl

    loop = asyncio.get_running_loop()
    multi, ready, timers = pycurl.CurlMulti(), select.epoll(), [loop.call_soon(int)]
    wanted = {pycurl.POLL_IN: select.EPOLLIN, pycurl.POLL_OUT: select.EPOLLOUT}
    wanted[pycurl.POLL_INOUT] = select.EPOLLIN | select.EPOLLOUT
    futures: dict[Any, asyncio.Future[int]] = {}

    def on_socket(what: int, fd: int, _multi: Any, known: object) -> None:
        if what == pycurl.POLL_REMOVE:
            ready.unregister(fd)
        elif known is None:
            ready.register(fd, wanted[what])
            multi.assign(fd, True)
        else:
            ready.modify(fd, wanted[what])

    def on_timer(ms: int) -> None:
        timers[0].cancel()
        if ms >= 0:
            timers[0] = loop.call_later(ms / 1000, act, pycurl.SOCKET_TIMEOUT, 0)

    def act(fd: int, mask: int) -> None:
        multi.socket_action(fd, mask)
        settle()

    def on_ready() -> None:
        for fd, mask in ready.poll(0):
            # EPOLLIN and EPOLLOUT are 1 and 4, curl's masks 1 and 2; anything else is an error that a read will show.
            multi.socket_action(fd, (mask & 1) | (mask & 4) >> 1 or 1)
        settle()

    def settle() -> None:
        _, done, failed = multi.info_read()
        for curl in done:
            futures.pop(curl).set_result(0)
        for curl, code, text in failed:
            futures.pop(curl).set_exception(OSError(code, text))

    multi.setopt(pycurl.M_SOCKETFUNCTION, on_socket)
    multi.setopt(pycurl.M_TIMERFUNCTION, on_timer)
    multi.setopt(pycurl.M_MAXCONNECTS, in_flight)
    loop.add_reader(ready.fileno(), on_ready)
    idle = [pycurl.Curl() for _ in range(in_flight)]

    async def get(url: str) -> int:
        curl = idle.pop()
        parts: list[bytes] = []
        curl.setopt(pycurl.URL, url)
        curl.setopt(pycurl.WRITEFUNCTION, parts.append)
        futures[curl] = future = loop.create_future()
        multi.add_handle(curl)
        await future
        multi.remove_handle(curl)
        idle.append(curl)
        return len(b"".join(parts))

    yield get
    loop.remove_reader(ready.fileno())
    timers[0].cancel()
    multi.close()


@contextlib.asynccontextmanager
async def pycurl_async_multi(in_flight: int) -> Any:
    """pycurl's own AsyncCurlMulti."""
    import pycurl

    async with pycurl.AsyncCurlMulti() as multi:
        multi.setopt(pycurl.M_MAXCONNECTS, in_flight)
        idle = [pycurl.Curl() for _ in range(in_flight)]

        async def get(url: str) -> int:
            curl = idle.pop()
            parts: list[bytes] = []
            curl.setopt(pycurl.URL, url)
            curl.setopt(pycurl.WRITEFUNCTION, parts.append)
            await multi.perform(curl)
            idle.append(curl)
            return len(b"".join(parts))

        yield get


@contextlib.asynccontextmanager
async def pyreqwest(in_flight: int) -> Any:
    """reqwest (Rust) through pyreqwest's native API, single-threaded runtime."""
    from pyreqwest.client import ClientBuilder

    async with ClientBuilder().pool_max_idle_per_host(in_flight).gzip(False).build() as client:

        async def get(url: str) -> int:
            response = await client.get(url).build().send()
            return len(await response.bytes())

        yield get


@contextlib.asynccontextmanager
async def aiohttp(in_flight: int) -> Any:
    """aiohttp with its C parser."""
    import aiohttp

    connector = aiohttp.TCPConnector(limit=in_flight)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:

        async def get(url: str) -> int:
            async with session.get(url, allow_redirects=False) as response:
                return len(await response.read())

        yield get


@contextlib.asynccontextmanager
async def curl_fetcher(in_flight: int) -> Any:
    """Orbweaver's own CurlFetcher, the whole Answer built; needs the project's dependencies."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from ipaddress import ip_network

    from shared.domain.web.fetch import Answer, FetchRequest
    from workers.fetch.curl import CurlFetcher
    from workers.fetch.egress import EgressRules

    fetcher = CurlFetcher(EgressRules(allow=(ip_network("127.0.0.0/8"),)), max_connections=in_flight)
    headers = (("User-Agent", "bench/1"), ("Accept", "text/html"), ("Accept-Encoding", "identity"))

    async def get(url: str) -> int:
        answer = await fetcher.fetch(FetchRequest(url, headers))
        assert isinstance(answer, Answer), answer
        return len(answer.body)

    yield get
    await fetcher.close()


CLIENTS = (pycurl_epoll, pycurl_async_multi, pyreqwest, aiohttp, curl_fetcher)


async def crawl(name: str, urls: list[str], in_flight: int) -> tuple[float, float, int]:
    """CPU seconds, wall seconds and body bytes of fetching all `urls`, after one unmeasured pass of a tenth of them."""
    async with globals()[name](in_flight) as get:

        async def drain(todo: Iterator[str]) -> int:
            return sum([await get(url) for url in todo])

        async def run(todo: list[str]) -> int:
            shared = iter(todo)
            return sum(await asyncio.gather(*(drain(shared) for _ in range(in_flight))))

        await run(urls[: len(urls) // 10])
        cpu, wall = cpu_seconds(), time.monotonic()
        size = await run(urls)
        return cpu_seconds() - cpu, time.monotonic() - wall, size


def cpu_seconds() -> float:
    """User and system time of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@contextlib.contextmanager
def nginx(root: Path, folder: Path) -> Iterator[str]:
    """A private nginx with one worker serving `root`; yields its base URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "nginx.conf").write_text(
        f"daemon off; worker_processes 1; pid {folder}/pid; error_log stderr crit;"
        "events { worker_connections 1024; } http { access_log off; sendfile on; keepalive_requests 1000000;"
        + "".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        + f"server {{ listen 127.0.0.1:{port}; root {root}; }} }}"
    )
    server = subprocess.Popen(["nginx", "-c", folder / "nginx.conf", "-p", folder])
    try:
        while True:
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clients", nargs="*", default=[client.__name__ for client in CLIENTS])
    parser.add_argument("--urls", type=int, default=5000)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", metavar="BASE", help=argparse.SUPPRESS)
    args = parser.parse_args()
    files = sorted(path for tree in TREES for path in Path(tree).resolve().rglob("*.html*") if path.is_file())
    chosen = list(itertools.islice(itertools.cycle(files), args.urls))
    if args.one:
        import uvloop

        urls = [args.one + str(path) for path in chosen]
        cpu, wall, size = uvloop.run(crawl(args.clients[0], urls, args.in_flight))
        if size != (expected := sum(path.stat().st_size for path in chosen)):
            sys.exit(f"{args.clients[0]} read {size} bytes of {expected}")
        print(cpu, wall)
        return
    with tempfile.TemporaryDirectory() as folder, nginx(Path("/"), Path(folder)) as base:
        print(f"{'client':20} {'requests per CPU-second':>24} {'requests per second':>20}")
        results: dict[str, list[tuple[float, float]]] = {name: [] for name in args.clients}
        for _ in range(args.rounds):
            for name in args.clients:
                options = [f"--urls={args.urls}", f"--in-flight={args.in_flight}", f"--one={base}"]
                output = subprocess.run([sys.executable, __file__, name, *options], check=True, stdout=subprocess.PIPE)
                cpu, wall = map(float, output.stdout.split())
                results[name].append((args.urls / cpu, args.urls / wall))
        for name, rates in results.items():
            per_cpu_second, per_second = (statistics.median(column) for column in zip(*rates, strict=True))
            print(f"{name:20} {per_cpu_second:24,.0f} {per_second:20,.0f}")


if __name__ == "__main__":
    main()
