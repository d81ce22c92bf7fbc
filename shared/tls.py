"""TLS of connections between members and to servers such as NATS and etcd: PEM files, and SSL contexts made from them.

Certificates may be short-lived. `following` reads the PEM files again when they change. New connections then use them,
and open connections continue.
"""

import asyncio
import ssl
from pathlib import Path
from typing import Final, NoReturn

import structlog
from msgspec import Struct

from shared.domain.errors import Unusable

log = structlog.get_logger(__name__)

LOOK_S: Final = 10.0


class TlsSettings(Struct, frozen=True):
    """The PEM files that this process uses for a TLS connection.

    `ca`: the authority that must have signed the peer's certificate (None: the system's authorities). `cert`, `key`:
    this process's certificate and private key, if it has one.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


def tls_files(ca: Path | None, cert: Path | None, key: Path | None) -> TlsSettings | None:
    """Return these files as TlsSettings. Return None if all three are None, which means no TLS."""
    return TlsSettings(ca, cert, key) if ca or cert or key else None


def client_context(files: TlsSettings) -> ssl.SSLContext:
    """Return an SSL context for connections that this process opens.

    It verifies the server's certificate and host name. Raise Unusable if a file cannot be read or is invalid.
    """
    return _loaded(ssl.Purpose.SERVER_AUTH, files)


def server_context(files: TlsSettings) -> ssl.SSLContext:
    """Return an SSL context for connections that this process accepts.

    If `ca` is set, each client must present a certificate signed by it. Raise Unusable if `cert` is None or a file is
    invalid.
    """
    if files.cert is None:
        raise Unusable("no tls_cert given: TLS needs a certificate")
    context = _loaded(ssl.Purpose.CLIENT_AUTH, files)
    if files.ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class ServerTls:
    """The TLS of a listening port.

    Pass `context` to the server. `renew` reads the PEM files again for new connections. `stamp` identifies the version
    of the files (inode, size, modification time) when this object was created.
    """

    def __init__(self, files: TlsSettings) -> None:
        self.files = files
        self.stamp: Final = _stamp(files)
        self._newest = server_context(files)
        self.context = server_context(files)
        self.context.sni_callback = self._choose  # called for every client hello, also without a server name

    def __repr__(self) -> str:
        return f"<ServerTls {self.files.cert}>"

    def renew(self) -> None:
        """Read the PEM files again, for new connections. If they are invalid, change nothing and raise Unusable."""
        self._newest = server_context(self.files)

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._newest


class ClientTls:
    """The TLS of connections that this process opens.

    Pass `context` to the client. `renew` reads the PEM files again for new connections. A CA that was removed from its
    file stays trusted until the process ends. `stamp` identifies the version of the files (inode, size, modification
    time) when this object was created.
    """

    def __init__(self, files: TlsSettings) -> None:
        self.files = files
        self.stamp: Final = _stamp(files)
        self.context = client_context(files)

    def __repr__(self) -> str:
        return f"<ClientTls {self.files.cert}>"

    def renew(self) -> None:
        """Read the PEM files again, for new connections. If they are invalid, change nothing and raise Unusable."""
        client_context(self.files)
        if self.files.ca is not None:
            self.context.load_verify_locations(self.files.ca)
        if self.files.cert is not None:
            self.context.load_cert_chain(self.files.cert, self.files.key, password=_no_password)


def server_tls(cert: Path | None, key: Path | None, client_ca: Path | None) -> ServerTls | None:
    """Return the TLS of a listening port, or None if no file is given.

    Raise Unusable if a file is invalid or `cert` is missing.
    """
    files = tls_files(client_ca, cert, key)
    return None if files is None else ServerTls(files)


async def following(*sides: ServerTls | ClientTls, look_s: float = LOOK_S) -> NoReturn:
    """Check the PEM files (certificate, key, CA) of `sides` every `look_s` seconds, and reload those that changed.

    Run until cancelled. If new files are invalid, log that, continue with the old ones, and try again at the next
    check.
    """
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
                log.warning("certificate.rejected", certificate=str(side.files.cert), error=str(error))
            else:
                seen[side] = stamp
                log.info("certificate.reloaded", certificate=str(side.files.cert))


def _stamp(files: TlsSettings) -> tuple[object, ...]:
    """Return a value that changes when one of the files is written or replaced, even behind a symbolic link.

    A file that does not exist has None in its place.
    """
    states: list[object] = []
    for path in (files.ca, files.cert, files.key):
        try:
            stat = path.stat() if path is not None else None
        except OSError:
            stat = None
        states.append(stat and (stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(states)


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
    """Raise ValueError. OpenSSL calls this for an encrypted key; without it OpenSSL would prompt on the terminal."""
    raise ValueError("the key is encrypted; keys are protected by their file's mode here")
