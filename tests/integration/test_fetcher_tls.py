"""TLS is verified unless told otherwise, and HTTP/2 is spoken where the server offers it."""

import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shared.domain.web.fetch import Answer, FailureKind, FetchFailed, FetchLimits, FetchRequest
from tests.support.web.fetchers import fetcher, run
from tests.support.web.raw_server import Connection, page, raw_server, saying

LIMITS = FetchLimits(connect_s=10, first_byte_s=20, total_s=30)
NAME = "secure.example"
pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="needs the openssl command to make a certificate"
)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for NAME, with its key, in one PEM file each."""
    folder = tmp_path_factory.mktemp("tls")
    options = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(["openssl", "req", *options, *names, *files], check=True, capture_output=True)
    return folder


def server_context(folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


def test_a_certificate_nobody_trusts_is_a_tls_failure_and_nothing_is_sent(certificate: Path) -> None:
    async def main() -> None:
        async with raw_server(saying(page()), server_context(certificate)) as server, fetcher() as client:
            failure = await client.fetch(FetchRequest(server.url(scheme="https"), limits=LIMITS))
            assert isinstance(failure, FetchFailed)
            assert (failure.kind, failure.sent) == (FailureKind.TLS, False)
            assert not server.requests

    run(main())


def test_a_certificate_for_another_name_is_a_tls_failure(certificate: Path) -> None:
    async def main() -> None:
        async with (
            raw_server(saying(page()), server_context(certificate)) as server,
            fetcher(ca_bundle=str(certificate / "cert.pem")) as client,
        ):
            failure = await client.fetch(FetchRequest(server.url(scheme="https"), limits=LIMITS))
            assert isinstance(failure, FetchFailed)
            assert failure.kind is FailureKind.TLS

    run(main())


def test_a_trusted_certificate_for_the_name_is_accepted_and_timed(certificate: Path) -> None:
    async def main() -> None:
        async with raw_server(saying(page(b"secret")), server_context(certificate)) as server:
            names = {f"{NAME}:{server.port}": "127.0.0.1"}
            async with fetcher(ca_bundle=str(certificate / "cert.pem"), resolve=names) as client:
                answer = await client.fetch(FetchRequest(f"https://{NAME}:{server.port}/", limits=LIMITS))
                assert isinstance(answer, Answer), answer
                assert (answer.body, answer.http_version) == (b"secret", "1.1")
                assert answer.timings.connect_s is not None
                assert answer.timings.tls_s is not None
                assert answer.timings.connect_s <= answer.timings.tls_s

    run(main())


def test_verification_can_be_switched_off(certificate: Path) -> None:
    async def main() -> None:
        async with (
            raw_server(saying(page(b"ok")), server_context(certificate)) as server,
            fetcher(verify=False) as client,
        ):
            answer = await client.fetch(FetchRequest(server.url(scheme="https"), limits=LIMITS))
            assert isinstance(answer, Answer), answer

    run(main())


def test_speaking_tls_to_a_plain_server_is_a_tls_failure() -> None:
    async def plain(connection: Connection) -> None:
        await connection.send(b"220 mail.example ESMTP\r\n")
        await connection.gone()

    async def main() -> None:
        async with raw_server(plain) as server, fetcher() as client:
            failure = await client.fetch(FetchRequest(server.url(scheme="https"), limits=LIMITS))
            assert isinstance(failure, FetchFailed)
            assert failure.kind is FailureKind.TLS

    run(main())


def test_a_ca_bundle_that_is_not_there_is_said_at_once() -> None:
    async def main() -> None:
        with pytest.raises(FileNotFoundError, match=r"missing\.pem"):
            async with fetcher(ca_bundle="/nowhere/missing.pem"):
                pass

    run(main())


@contextmanager
def nginx_with_http2(certificate: Path, root: Path) -> Iterator[int]:
    """It takes over a socket that listens, as one does that is upgraded: a free port that is only named may be taken by
    others meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        port = listening.getsockname()[1]
        config = root / "nginx.conf"
        temporary = "".join(
            f"{kind}_temp_path {root}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        user = "user root;" if os.geteuid() == 0 else ""
        config.write_text(
            f"daemon off; {user} pid {root}/pid; error_log {root}/error.log; events {{}} "
            f"http {{ access_log off; {temporary}"
            f"ssl_certificate {certificate}/cert.pem; ssl_certificate_key {certificate}/key.pem;"
            f"server {{ listen 127.0.0.1:{port} ssl http2; root {root}; }} }}"
        )
        server = subprocess.Popen(
            ["nginx", "-c", config, "-p", root, "-e", root / "error.log"],
            env={**os.environ, "NGINX": f"{listening.fileno()};"},
            pass_fds=[listening.fileno()],
            stderr=subprocess.DEVNULL,
        )
    try:
        deadline = time.monotonic() + 30
        while not (root / "pid").exists():  # written when it has taken the socket
            assert server.poll() is None, (root / "error.log").read_text()
            assert time.monotonic() < deadline, "nginx does not start"
            time.sleep(0.02)
        yield port
    finally:
        server.terminate()
        server.wait()


@pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx as a server that speaks HTTP/2")
def test_http2_is_spoken_and_written_in_http1_form(certificate: Path, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_bytes(b"<html>" * 9000)

    async def main() -> None:
        with nginx_with_http2(certificate, tmp_path) as port:
            names = {f"{NAME}:{port}": "127.0.0.1"}
            async with fetcher(ca_bundle=str(certificate / "cert.pem"), resolve=names) as client:
                url = f"https://{NAME}:{port}/page.html"
                for http2, version in ((True, "2"), (False, "1.1"), (True, "2")):
                    answer = await client.fetch(FetchRequest(url, (("X-A", "b"),), limits=LIMITS, http2=http2))
                    assert isinstance(answer, Answer), answer
                    assert answer.http_version == version
                    assert answer.response_head.startswith(b"HTTP/1.1 200 OK\r\n")
                    assert answer.request_head.startswith(b"GET /page.html HTTP/1.1\r\nHost: ")
                    assert answer.body == b"<html>" * 9000
                small = FetchLimits(body_bytes=1000)
                cut = await client.fetch(FetchRequest(url, limits=small))
                assert isinstance(cut, Answer)
                assert len(cut.body) == 1000
                assert isinstance(await client.fetch(FetchRequest(url, limits=LIMITS)), Answer)

    run(main())
