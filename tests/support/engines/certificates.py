"""Certificates for a test, made by the openssl command."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

OPENSSL = shutil.which("openssl")


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key, as PEM files."""

    cert: Path
    key: Path


def authority(folder: Path) -> Certificate:
    """A certificate that signs others."""
    made = Certificate(folder / "ca.pem", folder / "ca.key")
    _openssl(
        "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-days", "2", "-subj", "/CN=test authority",
        "-keyout", str(made.key), "-out", str(made.cert),
    )  # fmt: skip
    return made


def signed(
    folder: Path, by: Certificate, name: str, names: str = "IP:127.0.0.1,DNS:localhost", *, days: int = 2
) -> Certificate:
    """A certificate whose common name is `name`, for `names`: by default this machine's loopback. It ends in `days`
    days, or ended before now if that is negative."""
    made = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
    request, extensions = folder / f"{name}.csr", folder / f"{name}.ext"
    extensions.write_text(f"subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n")
    _openssl(
        "req", "-nodes", "-newkey", "rsa:2048", "-subj", f"/CN={name}",
        "-keyout", str(made.key), "-out", str(request),
    )  # fmt: skip
    _openssl(
        "x509", "-req", "-days", str(days), "-in", str(request), "-CA", str(by.cert), "-CAkey", str(by.key),
        "-CAcreateserial", "-extfile", str(extensions), "-out", str(made.cert),
    )  # fmt: skip
    return made


def _openssl(*arguments: str) -> None:
    assert OPENSSL is not None
    subprocess.run([OPENSSL, *arguments], check=True, capture_output=True)
