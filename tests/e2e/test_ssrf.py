"""Every way in which a page, its host or a spec can name an internal address: each is refused and logged.

The site is at an address that the operator opens. A second server, at another one, stands for what is inside: it must
see no connection at all. A last test shows that it would see one, if the rules let it through.
"""

import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest

from tests.support.api.cluster_clients import asking
from tests.support.processes.cluster import cluster
from tests.support.processes.orb_command import export, orb

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SITE: Final = "127.0.0.1"
INSIDE: Final = "127.0.0.2"
METADATA: Final = "http://169.254.169.254/latest/meta-data/"

FORMS: Final = (
    "127.0.0.2", "127.2", "0x7f.0.0.2", "0x7f000002", "2130706434", "017700000002", "0177.0.0.02", "127.0.0.2.",
    "\uff11\uff12\uff17.0.0.2", "127\u30020\u30020\u30022",
    "[::1]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.2]", "[::ffff:7f00:2]",
    "[::127.0.0.2]", "[64:ff9b::7f00:2]", "[2002:7f00:2::1]", "[2001:0:101:101::80ff:fffd]", "[fe80::1]", "[fd00::1]",
    "0.0.0.0", "[::]", "10.0.0.1", "172.16.0.1", "192.168.0.1", "100.64.0.1",
)  # fmt: skip
"""Hosts of URLs that are inside, or carry an address that is."""


class Inside:
    """Counts the connections to a port of the internal addresses."""

    def __init__(self) -> None:
        self.connections: list[str] = []
        self.port = 0
        self._sockets: list[socket.socket] = []
        for family, host in ((socket.AF_INET, INSIDE), (socket.AF_INET6, "::1")):
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.bind((host, self.port))
            listener.listen(64)
            self.port = listener.getsockname()[1]
            self._sockets.append(listener)
            threading.Thread(target=self._accept, args=(listener, host), daemon=True).start()

    def _accept(self, listener: socket.socket, host: str) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # it was closed
                return
            self.connections.append(host)
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nsecret")

    def close(self) -> None:
        for listener in self._sockets:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()


@pytest.fixture
def inside() -> Iterator[Inside]:
    made = Inside()
    yield made
    made.close()


Answers = Mapping[str, tuple[int, Mapping[str, str], str]]


@contextmanager
def site(answers: Answers) -> Iterator[str]:
    """Serve these answers by path, and 404 for all others."""

    class Served(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, headers, body = answers.get(self.path, (404, {}, ""))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            encoded = body.encode()
            self.send_header("Content-Length", str(len(encoded)))
            self.end_headers()
            self.wfile.write(encoded)

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing."""

    with ThreadingHTTPServer((SITE, 0), Served) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://{SITE}:{server.server_address[1]}"
        finally:
            server.shutdown()


NO_PAGE: Final = {"redirect", "chain"}
"""The ways that lead inside before any page."""

HTML: Final = {"Content-Type": "text/html; charset=utf-8"}


def crawl(
    folder: Path, origin: str, *, allow: str = f"{SITE}/32", code: int = 0, **sections: Any
) -> dict[str, dict[str, Any]]:
    """Crawl the site, and return what became of each URL. `code`: how the command ends; 1 if there was no page."""
    spec = {
        "name": "ssrf", "seeds": [f"{origin}/"], "egress": {"allow": [allow]},
        "politeness": {"delay_s": 0}, "retry": {"attempts": 1, "base_s": 1, "host_attempts": 1, "outage_s": 1},
        **sections,
    }  # fmt: skip
    path, out = folder / "spec.json", folder / "out.crawl"
    path.write_text(json.dumps(spec))
    orb("crawl", "--spec", path, "--out", out, "--json", "--no-progress", code=code, timeout_s=200)
    return {row["url"]: row for row in export("urls", out)}


def logged(folder: Path) -> set[str]:
    """The URLs whose denial the workers logged."""
    lines = [
        json.loads(line)
        for file in (folder / "out.crawl" / "logs").glob("*")
        for line in file.read_text().splitlines()
        if line.startswith("{")
    ]
    return {line["url"] for line in lines if line.get("event") == "egress.denied"}


def hosts_of(urls: Iterable[str]) -> set[str]:
    return {url.split("/")[2] for url in urls}


def denied(rows: Mapping[str, Mapping[str, Any]]) -> set[str]:
    return {url for url, row in rows.items() if row["reason"] == "egress_denied"}


def test_links_in_every_spelling_of_an_internal_address_are_refused(tmp_path: Path, inside: Inside) -> None:
    links = [f"http://{host}:{inside.port}/{number}" for number, host in enumerate(FORMS)] + [METADATA]
    page = "".join(f'<a href="{link}">x</a>' for link in links)
    with site({"/": (200, HTML, page)}) as origin:
        rows = crawl(tmp_path, origin, scope={"mode": "any", "max_depth": 1})
    assert rows.pop(f"{origin}/")["state"] == "done"
    refused = denied(rows)
    paths = {url.rpartition("/")[2] for url in refused if url != METADATA}
    assert paths == {str(number) for number in range(len(FORMS))}, "a spelling was not refused"
    assert refused == set(rows)
    assert METADATA in refused
    assert inside.connections == []
    assert hosts_of(logged(tmp_path)) == hosts_of(refused)


def ways(port: int) -> dict[str, tuple[Callable[[str], Answers], dict[str, Any]]]:
    """By name: the answers of a site that leads inside, and the sections of a spec that follows it."""
    target = f"http://{INSIDE}:{port}/inside"
    anywhere = {"scope": {"mode": "any", "max_depth": 2}}
    page = (200, HTML, "<p>text</p>")
    return {
        "redirect": (lambda _: {"/": (302, {"Location": target}, "")}, anywhere),
        "refresh": (
            lambda _: {"/": (200, HTML, f'<meta http-equiv="refresh" content="0; url={target}">')}, anywhere,
        ),
        "chain": (
            lambda _: {"/": (301, {"Location": "/b"}, ""), "/b": (307, {"Location": target}, "")}, anywhere,
        ),
        "base": (
            lambda _: {"/": (200, HTML, f'<base href="http://{INSIDE}:{port}/"><a href="inside">x</a>')}, anywhere,
        ),
        "robots names a sitemap": (
            lambda _: {"/": page, "/robots.txt": (200, {}, f"User-agent: *\nAllow: /\nSitemap: {target}\n")},
            {"scope": {"mode": "any", "max_depth": 1}, "discover": {"sitemaps": "well-known"}},
        ),
        "requisite": (
            lambda _: {"/": (200, HTML, f'<img src="{target}"><p>text</p>')},
            {"scope": {"mode": "host", "requisites": "all"}},
        ),
        "sitemap that redirects": (
            lambda _: {"/": page, "/sitemap.xml": (302, {"Location": target}, "")},
            {"scope": {"mode": "any", "max_depth": 1}, "discover": {"sitemaps": "well-known"}},
        ),
        "requisite that redirects": (
            lambda _: {"/": (200, HTML, '<img src="/i"><p>text</p>'), "/i": (302, {"Location": target}, "")},
            {"scope": {"mode": "host", "requisites": "all"}},
        ),
        "feed": (
            lambda _: {"/": (200, HTML, f'<link rel="alternate" type="application/rss+xml" href="{target}">')},
            {"scope": {"mode": "any", "max_depth": 1}, "discover": {"feeds": True}},
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", list(ways(1)))
def test_whatever_leads_inside_is_refused_and_logged(tmp_path: Path, inside: Inside, name: str) -> None:
    answers, sections = ways(inside.port)[name]
    with site(answers("")) as origin:
        rows = crawl(tmp_path, origin, code=int(name in NO_PAGE), **sections)
    place = f"{INSIDE}:{inside.port}"
    assert denied(rows) == {url for url in rows if place in url} != set(), rows
    assert hosts_of(logged(tmp_path)) == {place}
    assert inside.connections == []


def test_a_sitemap_that_lists_an_internal_page_leads_nowhere(tmp_path: Path, inside: Inside) -> None:
    """A sitemap is for its own host alone, so what it lists inside is no URL of the crawl."""
    target = f"http://{INSIDE}:{inside.port}/inside"
    listing = f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"><url><loc>{target}</loc></url></urlset>'
    answers = {"/": (200, HTML, "text"), "/sitemap.xml": (200, {"Content-Type": "application/xml"}, listing)}
    with site(answers) as origin:
        rows = crawl(tmp_path, origin, scope={"mode": "any", "max_depth": 1}, discover={"sitemaps": "well-known"})
    assert set(rows) == {f"{origin}/", f"{origin}/sitemap.xml"}
    assert inside.connections == []


def test_robots_that_redirects_inside_is_refused_and_logged(tmp_path: Path, inside: Inside) -> None:
    """robots.txt counts as unreachable then, so nothing of the site is fetched."""
    target = f"http://{INSIDE}:{inside.port}/robots.txt"
    with site({"/": (200, HTML, "text"), "/robots.txt": (302, {"Location": target}, "")}) as origin:
        rows = crawl(tmp_path, origin, code=1)
    assert logged(tmp_path) == {target}
    assert {row["state"] for row in rows.values()} == {"failed"}
    assert inside.connections == []


@pytest.mark.parametrize("through", ["seed", "proxy"])
def test_a_spec_that_names_an_internal_address_is_refused(tmp_path: Path, inside: Inside, through: str) -> None:
    target = f"http://{INSIDE}:{inside.port}"
    with site({"/": (200, HTML, "text")}) as origin:
        if through == "seed":
            rows = crawl(tmp_path, origin, code=1, seeds=[f"{target}/"])
        else:
            rows = crawl(tmp_path, origin, code=1, fetch={"proxy": target})
    assert denied(rows) == set(rows)
    assert len(logged(tmp_path)) == 1
    assert inside.connections == []


def test_policy_of_an_internal_host_opens_nothing(tmp_path: Path, inside: Inside) -> None:
    """Neither does an override of the spec for that host, nor the verb that ends a host's back-off."""
    hosts = [*(f"{form}:{inside.port}" for form in FORMS), "169.254.169.254", f"localhost:{inside.port}"]
    policy = {"delay_s": 0, "slots": 64}
    override = {"hosts": [INSIDE], "delay_s": 0, "mode": "any"}
    with site({"/": (200, HTML, "text")}) as origin, cluster(tmp_path) as made:
        made.master("m1")
        made.worker("w1", ORB_ALLOW_NET=f"{SITE}/32")
        made.wait_working("w1")
        with asking(made, "m1") as api:
            put = [api.put(f"/v1/host-policies/{quote(host, safe='')}", json=policy) for host in hosts]
            assert {answer.status_code for answer in put} <= {200, 201, 422}
            declared = {each["host"] for each in api.get("/v1/host-policies").json()["items"]}
            assert {f"{INSIDE}:{inside.port}", f"[::1]:{inside.port}", "169.254.169.254"} <= declared
            for host in declared:
                assert api.post(f"/v1/hosts/{quote(host, safe='')}/unblock").status_code == 202
            seeds = [f"{origin}/", *(f"http://{host}/{n}" for n, host in enumerate(hosts))]
            spec = {
                "seeds": seeds, "scope": {"max_depth": 0}, "egress": {"allow": ["0.0.0.0/0", "::/0"]},
                "politeness": {"delay_s": 0, "obey_robots": False}, "overrides": [override],
                "retry": {"attempts": 1, "base_s": 1, "host_attempts": 1, "outage_s": 1},
            }  # fmt: skip
            answer = api.post("/v1/crawls", json={"name": "ssrf", "spec": spec})
            assert answer.status_code == 201, answer.text
            made.wait_until(lambda: api.get("/v1/crawls/ssrf").json()["state"] == "finished", "it is finished", 120)
            rows = api.get("/v1/crawls/ssrf/urls?limit=500").json()["items"]
            states = {row["url"]: row["state"] for row in rows}
            ends = {url: api.get("/v1/crawls/ssrf/urls/lookup", params={"url": url}).json()["reason"] for url in states}
        denials = {each["url"] for each in made.said("w1", "egress.denied")}
    assert states.pop(f"{origin}/") == "done", "the site is open"
    assert set(states.values()) == {"failed"}
    named = {url for url in states if url.startswith("http://localhost")}
    refused = {url for url, reason in ends.items() if reason == "egress_denied"}
    assert refused | named == set(states), ends
    assert hosts_of(refused) <= hosts_of(denials)
    assert inside.connections == []


def test_the_judge_sees_a_crawler_that_goes_inside(tmp_path: Path, inside: Inside) -> None:
    """With the network opened, the same page leads inside, and is seen there."""
    page = f'<a href="http://{INSIDE}:{inside.port}/inside">x</a>'
    with site({"/": (200, HTML, page)}) as origin:
        rows = crawl(tmp_path, origin, allow="127.0.0.0/8", scope={"mode": "any", "max_depth": 1})
    assert denied(rows) == set()
    assert INSIDE in inside.connections
