"""Client certificates as identities, with real masters over TLS: which are admitted, and how others are refused."""

import hashlib
import os
import re
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest

from cli.terminal.exits import Exit
from shared.tls import TlsSettings, client_context
from tests.support.api.cluster_clients import address, admin
from tests.support.engines.certificates import OPENSSL, Certificate, authority, signed
from tests.support.processes.cluster import Cluster
from tests.support.processes.cluster import cluster as opened
from tests.support.processes.orb_command import ROOT, command_line

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(300),
    pytest.mark.skipif(OPENSSL is None, reason="the openssl command makes the certificates"),
]

DEPLOY = "URI:spiffe://prod/deploy,DNS:deploy.example.org"
MASTERS = ("m1", "m2")


@dataclass(frozen=True)
class Estate:
    """Masters that require a certificate of `ca`, and the certificates of clients by name."""

    cluster: Cluster
    ca: Certificate
    clients: dict[str, Certificate]

    def url(self, master: str) -> str:
        return f"https://{address(self.cluster, master).rpartition('/')[2]}"

    def files(self, client: str | None) -> TlsSettings:
        if client is None:
            return TlsSettings(self.ca.cert)
        return TlsSettings(self.ca.cert, self.clients[client].cert, self.clients[client].key)

    def api(self, client: str, headers: dict[str, str]) -> httpx.Client:
        verify = client_context(self.files(client))
        return httpx.Client(base_url=self.url("m1"), verify=verify, headers=headers, timeout=30)

    def ctl(self, *words: str, client: str | None, key: str | None = None, master: str = "m1") -> tuple[int, str]:
        """Run `orb ctl` with the certificate of a client; return its exit code and what it said."""
        files = self.files(client)
        flags: list[str | Path] = ["--server", self.url(master), "--tls-ca", self.ca.cert, "--patience", "1"]
        if files.cert is not None and files.key is not None:
            flags += ["--tls-cert", files.cert, "--tls-key", files.key]
        if key is not None:
            flags += ["--key", key]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ORB_")}
        done = subprocess.run(
            command_line("ctl", *words, *flags),
            cwd=ROOT,
            env=kept | {"XDG_CONFIG_HOME": str(self.cluster.folder)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def estate(tmp_path: Path) -> Iterator[Estate]:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    ca, other = authority(ours), authority(theirs)
    master = signed(ours, ca, "master")
    clients = {
        "boss": signed(ours, ca, "boss", "DNS:boss.example.org"),
        "deploy": signed(ours, ca, "deploy", DEPLOY),
        "reader": signed(ours, ca, "reader", "DNS:reader.example.org"),
        "unnamed": signed(ours, ca, "unnamed", "DNS:unnamed.example.org"),
        "expired": signed(ours, ca, "expired", DEPLOY, days=-1),
        "foreign": signed(theirs, other, "foreign", DEPLOY),
    }
    settings = {
        "ORB_TLS_CERT": str(master.cert), "ORB_TLS_KEY": str(master.key), "ORB_TLS_CLIENT_CA": str(ca.cert),
    }  # fmt: skip
    with opened(tmp_path) as cluster:
        for name in MASTERS:
            cluster.master(name, **settings)
        cluster.wait_until(lambda: cluster.leader() is not None, "there is a leader")
        yield Estate(cluster, ca, clients)


def fingerprint(certificate: Certificate) -> str:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.cert.read_text())).hexdigest()


def one_sentence(said: str, expected: str) -> None:
    assert said.startswith("orb: "), said
    assert len(said.splitlines()) == 1, said
    assert re.search(expected, said), said


def test_certificates_admit_their_role_and_others_are_refused(estate: Estate) -> None:
    print_of_reader = f"sha256:{fingerprint(estate.clients['reader'])}"
    names = {
        "deploy": {"role": "operator", "kind": "certificate", "certificate": "uri:spiffe://prod/deploy"},
        "reader": {"role": "viewer", "kind": "certificate", "certificate": print_of_reader},
        "bound": {"role": "operator", "certificate": "dns:Deploy.example.org"},
    }  # fmt: skip
    with estate.api("boss", admin(estate.cluster)) as api:
        answers = [api.put(f"/v1/api-keys/{name}", json=spec) for name, spec in names.items()]
        assert [each.status_code for each in answers] == [201, 201, 201]
        *none, key = (each.json()["key"] for each in answers)
        assert none == [None, None]

        def create(name: str, *, client: str | None, key: str | None = None, master: str = "m1") -> tuple[int, str]:
            words = ("create", name, "https://example.org/", "--no-start")
            return estate.ctl(*words, client=client, key=key, master=master)

        def refuses(master: str) -> bool:
            return estate.ctl("get", "crawls", client="deploy", master=master)[0] != Exit.OK

        # One of the masters is no leader: it forwards the write with the certificate of the client.
        for master in MASTERS:
            assert create(f"by-certificate-{master}", client="deploy", master=master)[0] == Exit.OK
            assert create(f"by-key-{master}", client="deploy", key=key, master=master)[0] == Exit.OK
        code, said = estate.ctl("get", "crawls", "-o", "name", client="reader")
        assert (code, len(said.splitlines())) == (Exit.OK, 4)

        refused = {
            "a certificate of a lower role": (
                create("no", client="reader"), "this needs the role operator, and the certificate 'reader' has viewer",
            ),
            "an expired certificate": (
                create("no", client="expired"), r"the certificate of --tls-cert, renew an expired one",
            ),
            "a certificate of another authority": (
                create("no", client="foreign"), r"one that the authority of the masters' --tls-client-ca signed",
            ),
            "a certificate of no role": (
                create("no", client="unnamed"),
                "no key has the client certificate as its `certificate`.*has no API key; log in with",
            ),
            "a bound key without a certificate": (
                create("no", client=None, key=key), r"certificate.*set --tls-cert and --tls-key",
            ),
            "a bound key with another certificate": (
                create("no", client="reader", key=key),
                r"the key 'bound' needs its certificate.*the client certificate that is bound to the key",
            ),
            "a wrong key beside a certificate that is an identity": (
                create("no", client="deploy", key="orb_wrong"), "the API key is not known",
            ),
        }  # fmt: skip
        for what, ((code, said), expected) in refused.items():
            assert code != Exit.OK, what
            one_sentence(said, expected)
        assert estate.cluster.query("SELECT name FROM crawls WHERE name = 'no'") == []
        reasons = [line["reason"] for line in estate.cluster.said("m1", "identity.refused")]
        assert reasons == ["certificate"]

        # A revoked identity is refused everywhere within a second; a bound key needs the certificate still.
        assert api.delete("/v1/api-keys/deploy").status_code == 200
        for master in MASTERS:
            estate.cluster.wait_until(partial(refuses, master), f"{master} refuses it")
            assert estate.ctl("get", "crawls", client="deploy", key=key, master=master)[0] == Exit.OK
