"""Sites with TLS certificates of every kind: only a valid one is crawled, and the message names what changes that."""

import asyncio
import json
import ssl
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from cli.terminal.exits import Exit
from tests.support.engines.certificates import OPENSSL, Certificate, authority, signed
from tests.support.processes.orb_command import ROOT, command_line, orb
from tests.support.web.raw_server import Connection, RawServer, page, raw_server

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(OPENSSL is None, reason="needs the openssl command")]
HTML = b"Content-Type: text/html"


async def _site(connection: Connection) -> None:
    while True:
        asked = await connection.request()
        await connection.send(page(b'<a href="/ok">x</a>' if asked.startswith(b"GET / ") else b"<p>page", HTML))


def _context(certificate: Certificate) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert, certificate.key)
    return context


def serving(
    certificates: Mapping[str, Certificate], story: Callable[[Mapping[str, RawServer]], Awaitable[None]]
) -> None:
    """Run `story` with a site for each certificate."""

    async def served() -> None:
        async with AsyncExitStack() as stack:
            sites = {
                name: await stack.enter_async_context(raw_server(_site, _context(certificate)))
                for name, certificate in certificates.items()
            }
            await story(sites)

    asyncio.run(served())


def crawl(out: Path, *arguments: str | Path) -> tuple[int, dict[str, Any], str]:
    """Return the exit code, the summary and the messages of `orb crawl`."""
    limits = ("--allow-net", "127.0.0.0/8", "--delay", "0.1", "--workers", "1", "--no-progress")
    ended = subprocess.run(
        command_line("crawl", *arguments, "--out", out, "--json", *limits),
        cwd=ROOT,
        capture_output=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return ended.returncode, json.loads(ended.stdout), ended.stderr.decode()


def paths(site: RawServer) -> Sequence[str]:
    return [request.split()[1].decode() for request in site.requests]


@pytest.fixture
def own(tmp_path: Path) -> Certificate:
    """An authority that no system trusts."""
    (tmp_path / "own").mkdir()
    return authority(tmp_path / "own")


def test_site_of_an_own_authority_is_crawled_with_ca_and_named_without(tmp_path: Path, own: Certificate) -> None:
    async def story(sites: Mapping[str, RawServer]) -> None:
        (site,), out, spec = sites.values(), tmp_path / "a.crawl", tmp_path / "spec.json"
        seed = site.url(scheme="https")
        spec.write_text(json.dumps({"seeds": [seed], "retry": {"host_attempts": 1}}))
        code, summary, said = await asyncio.to_thread(crawl, out, "--spec", spec)
        assert (code, summary["pages"], site.requests) == (Exit.NOTHING_FETCHED, 0, [])
        assert "certificate" in said
        assert "--ca FILE --retry-failed" in said
        assert "--ca FILE" in summary["message"]
        shown = await asyncio.to_thread(orb, "show", out, "--url", seed)
        assert b"certificate" in shown
        code, summary, said = await asyncio.to_thread(crawl, out, "--ca", own.cert, "--retry-failed")
        assert (code, summary["pages"], summary["state"]) == (0, 2, "finished"), said
        assert paths(site) == ["/robots.txt", "/", "/ok"]
        # The folder keeps the authority for later commands, until it is taken away.
        code, summary, _ = await asyncio.to_thread(crawl, tmp_path / "b.crawl", "--spec", spec, "--ca", own.cert)
        assert (code, summary["pages"]) == (0, 2)
        code, summary, _ = await asyncio.to_thread(
            crawl, tmp_path / "b.crawl", "--spec", spec, "--ca", "none", "--fresh"
        )
        assert (code, summary["pages"]) == (Exit.NOTHING_FETCHED, 0)

    serving({"own": signed(tmp_path, own, "site")}, story)


def test_invalid_certificates_fail_and_a_valid_one_does_not(tmp_path: Path, own: Certificate) -> None:
    (tmp_path / "self").mkdir()
    certificates = {
        "valid": signed(tmp_path, own, "valid"),
        "expired": signed(tmp_path, own, "expired", days=-1),
        "foreign": signed(tmp_path, own, "foreign", "DNS:elsewhere.test"),
        "self": authority(tmp_path / "self"),
    }

    async def story(sites: Mapping[str, RawServer]) -> None:
        spec, out = tmp_path / "spec.json", tmp_path / "all.crawl"
        seeds = [site.url(scheme="https") for site in sites.values()]
        spec.write_text(json.dumps({"seeds": seeds, "retry": {"host_attempts": 1}}))
        code, summary, said = await asyncio.to_thread(crawl, out, "--spec", spec, "--ca", own.cert)
        assert (code, summary["pages"], summary["state"]) == (0, 2, "finished"), said
        assert summary["failed"] == {"host_unreachable": 3}
        assert {name: len(site.requests) for name, site in sites.items()} == {
            "valid": 3, "expired": 0, "foreign": 0, "self": 0,
        }  # fmt: skip
        hosts = {f"127.0.0.1:{site.port}": name for name, site in sites.items()}
        given_up = {hosts[host]: failure for host, failure in summary["hosts_given_up"].items()}
        assert {name: failure.partition(" ")[0] for name, failure in given_up.items()} == dict.fromkeys(
            ("expired", "foreign", "self"), "robots_tls"
        )
        assert "3 hosts were given up with 3 URLs" in said
        assert "--retry-failed" in said
        assert "--ca FILE" in said

    serving(certificates, story)
