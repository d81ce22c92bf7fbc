"""TLS between our own processes and their engines: PEM files, and the contexts that are made of them.

Certificates are short-lived where they are issued well: `following` reads the files again when they have changed, and
connections from then on are made with what they hold. Those that are open go on.
"""

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

import structlog

from shared.domain.errors import Unusable

log = structlog.get_logger(__name__)

LOOK_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """PEM files. `ca` signs the other side's certificates, by default the system's authorities do; with `cert` and
    `key` we show one of our own."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


def told(ca: Path | None, cert: Path | None, key: Path | None) -> TlsSettings | None:
    """The files, or None where none is named."""
    return TlsSettings(ca, cert, key) if ca or cert or key else None


def client_context(files: TlsSettings) -> ssl.SSLContext:
    """For connections we open: the server's certificate and name are verified. Unusable when a file is no good."""
    return _loaded(ssl.Purpose.SERVER_AUTH, files)


def server_context(files: TlsSettings) -> ssl.SSLContext:
    """For connections we take, showing our certificate; with a CA, only those whose certificate it has signed. Unusable
    when a file is no good."""
    if files.cert is None:
        raise Unusable("tls_cert is not told, and without a certificate nobody can be answered over TLS")
    context = _loaded(ssl.Purpose.CLIENT_AUTH, files)
    if files.ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class ServerTls:
    """A listener's side: `context` is for the listener, whose connections are made under the files last read. `stamp`:
    as they were before they were read first."""

    def __init__(self, files: TlsSettings) -> None:
        self.files = files
        self.stamp: Final = _stamp(files)
        self._newest = server_context(files)
        self.context = server_context(files)
        self.context.sni_callback = self._choose  # called at the first word of every client, also without a name

    def __repr__(self) -> str:
        return f"<ServerTls {self.files.cert}>"

    def renew(self) -> None:
        """Read the files again; when they are no good, Unusable, and all stays as it was."""
        self._newest = server_context(self.files)

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._newest


class ClientTls:
    """The side that asks. An authority that is taken out of the files is believed until the process ends. `stamp`: as
    they were before they were read first."""

    def __init__(self, files: TlsSettings) -> None:
        self.files = files
        self.stamp: Final = _stamp(files)
        self.context = client_context(files)

    def __repr__(self) -> str:
        return f"<ClientTls {self.files.cert}>"

    def renew(self) -> None:
        """Read the files again; when they are no good, Unusable, and all stays as it was."""
        client_context(self.files)
        if self.files.ca is not None:
            self.context.load_verify_locations(self.files.ca)
        if self.files.cert is not None:
            self.context.load_cert_chain(self.files.cert, self.files.key, password=_no_password)


def server_tls(cert: Path | None, key: Path | None, client_ca: Path | None) -> ServerTls | None:
    """A listener's side, or None where no file is named. Unusable when they are no good."""
    files = told(client_ca, cert, key)
    return None if files is None else ServerTls(files)


async def following(*sides: ServerTls | ClientTls, look_s: float = LOOK_S) -> NoReturn:
    """Keep them as the files are, also where they changed since the sides were made. Files that are no good are logged
    and tried again at the next look."""
    seen = {side: side.stamp for side in sides}
    while True:
        await asyncio.sleep(look_s)
        for side in sides:
            stamp = _stamp(side.files)
            if stamp == seen[side]:
                continue
            try:
                side.renew()
            except (Unusable, OSError) as error:
                log.warning("tls.not_renewed", cert=str(side.files.cert), error=str(error))
            else:
                seen[side] = stamp
                log.info("tls.renewed", cert=str(side.files.cert))


def _stamp(files: TlsSettings) -> tuple[object, ...]:
    """What differs after a file was written or replaced, also by way of a link; None for one that is not there."""
    found: list[object] = []
    for path in (files.ca, files.cert, files.key):
        try:
            about = path.stat() if path is not None else None
        except OSError:
            about = None
        found.append(about and (about.st_ino, about.st_size, about.st_mtime_ns))
    return tuple(found)


def _loaded(purpose: ssl.Purpose, files: TlsSettings) -> ssl.SSLContext:
    if (files.cert is None) != (files.key is None):
        raise Unusable("a certificate of our own needs both its file and its key's")
    try:
        context = ssl.create_default_context(purpose, cafile=files.ca)
    except OSError as error:
        raise Unusable(f"cannot read the CA {files.ca}: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.cert is not None:
        try:
            context.load_cert_chain(files.cert, files.key, password=_no_password)
        except (OSError, ValueError) as error:
            raise Unusable(f"cannot use the certificate {files.cert} with the key {files.key}: {error}") from error
    return context


def _no_password() -> str:
    """Asked for by a key that has one: without this, the terminal would be asked."""
    raise ValueError("the key is encrypted; keys are protected by their file's mode here")
