"""Read the client's certificate from a TLS connection."""

import asyncio
import hashlib
import ssl

from shared.domain.ops.identities import PeerCertificate


def peer_certificate(transport: asyncio.BaseTransport) -> PeerCertificate | None:
    """Return the verified certificate of the client of a connection. Return None if there is none.

    If TLS does not require client certificates, return None, because they are not verified.
    """
    connection = transport.get_extra_info("ssl_object")
    if connection is None or connection.context.verify_mode is not ssl.CERT_REQUIRED:
        return None
    encoded, parsed = connection.getpeercert(binary_form=True), connection.getpeercert()
    if not encoded or not parsed:
        return None
    names = [(kind, name) for kind, name in parsed.get("subjectAltName", ()) if isinstance(name, str)]
    return PeerCertificate.of(hashlib.sha256(encoded).digest(), names)
