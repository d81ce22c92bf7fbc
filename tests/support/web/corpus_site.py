"""Sites served by an nginx of the benchmark's own: the corpus of the comparison on one host, or small hosts."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support.web.corpora import CORPORA, missing_packages

_CONFIG: Final = """\
{user}
daemon off;
pid {home}/nginx.pid;
error_log {home}/error.log;
worker_processes {workers};
worker_rlimit_nofile 65536;
events {{ worker_connections 32768; }}
http {{
    types {{
        text/html html; text/css css; application/javascript js; image/png png; image/gif gif; image/svg+xml svg;
        text/plain txt; application/gzip gz;
    }}
    default_type application/octet-stream;
    access_log off;
    sendfile on;
    tcp_nopush on;
    absolute_redirect off;
    keepalive_timeout 300s;
    keepalive_requests 1000000;
    open_file_cache max=4000 inactive=300s;
    open_file_cache_valid 300s;
    client_body_temp_path {home}/body;
    proxy_temp_path {home}/proxy;
    fastcgi_temp_path {home}/fastcgi;
    uwsgi_temp_path {home}/uwsgi;
    scgi_temp_path {home}/scgi;
    server {{
        {listen}
        root {home}/site;
        index index.html;
    }}
}}
"""


class CannotServe(RuntimeError):
    """The corpus cannot be served here; the message says what to install."""


@contextmanager
def nginx(home: Path, workers: int = 1, copies: int = 1) -> Iterator[str]:
    """Serves the three documentation trees below one host until the block ends; the URL of the start page.

    With `copies` > 1 the trees stand side by side that many times, each page under as many URLs: a longer crawl, in
    which the start of processes weighs less.

    nginx is used so that the server is never the bottleneck and is the same for all; its CPU time is not counted.
    """
    if missing := missing_packages():
        raise CannotServe(f"the corpus is not installed: apt-get install {' '.join(missing)}")
    site = home / "site"
    site.mkdir(parents=True)
    links = []
    for copy in range(copies):
        for corpus in CORPORA:
            name = corpus.name if copies == 1 else f"{corpus.name}-{copy}"
            (site / name).symlink_to(str(corpus.root()))
            links.append(f'<p><a href="/{name}{corpus.start}">{name}</a></p>')
    (site / "start.html").write_text("<!doctype html><title>Start</title>" + "".join(links))
    with _nginx(home, ["127.0.0.1"], workers) as port:
        yield f"http://127.0.0.1:{port}/start.html"


@contextmanager
def small_hosts(home: Path, hosts: int, pages: int, page_bytes: int = 4096) -> Iterator[list[str]]:
    """Serve so many hosts, addresses of 127.0.0.0/8, each with `pages` pages; the URLs of their start pages."""
    site = home / "site"
    site.mkdir(parents=True)
    names = ["index.html", *(f"{n}.html" for n in range(1, pages))]
    links = "".join(f'<p><a href="/{name}">{name}</a></p>' for name in names[1:])
    for name in names:
        (site / name).write_text(f"<!doctype html><title>{name}</title>{links}".ljust(page_bytes, "x"))
    addresses = [f"127.{1 + n // 62_500}.{n // 250 % 250}.{n % 250 + 1}" for n in range(hosts)]
    with _nginx(home, addresses) as port:
        yield [f"http://{address}:{port}/" for address in addresses]


@contextmanager
def _nginx(home: Path, addresses: Sequence[str], workers: int = 1) -> Iterator[int]:
    """Serve `home`/site at a free port of these addresses until the block ends."""
    binary = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if binary is None:
        raise CannotServe("nginx is not installed: apt-get install nginx-light")
    with socket.socket() as probe:
        probe.bind((addresses[0], 0))
        port = probe.getsockname()[1]
    config = home / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""
    listen = " ".join(f"listen {address}:{port} backlog=4096;" for address in addresses)
    config.write_text(_CONFIG.format(user=user, home=home, workers=workers, listen=listen))
    process = subprocess.Popen([binary, "-p", str(home), "-e", str(home / "error.log"), "-c", str(config)])
    try:
        _wait_for(addresses[-1], port, process, home / "error.log")
        yield port
    finally:
        process.terminate()
        process.wait()


def _wait_for(address: str, port: int, process: subprocess.Popen[bytes], errors: Path) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise CannotServe(f"nginx ended with {process.returncode}: {errors.read_text()[-500:]}")
        try:
            socket.create_connection((address, port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise CannotServe("nginx did not listen within 10 s")
