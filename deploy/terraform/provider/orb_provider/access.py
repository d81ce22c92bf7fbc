"""The provider's configuration: the addresses of the masters, the API key, TLS and time limits."""

import re
import ssl
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from orb_provider.client import Access
from orb_provider.fields import Field, FieldType, Shape, Values, is_known
from orb_provider.findings import Finding, Rejected
from orb_provider.findings import Path as Place

_VARIABLES: Final = {
    "url": "ORB_SERVER",
    "token": "ORB_API_KEY",
    "tls_ca": "ORB_TLS_CA",
    "tls_cert": "ORB_TLS_CERT",
    "tls_key": "ORB_TLS_KEY",
}
REQUEST_TIMEOUT_S: Final = 15
RETRY_S: Final = 60
_VISIBLE: Final = re.compile(r"[!-~]+")

PROVIDER: Final = Shape(
    "orb",
    "Crawls, schedules, exclusions and the configuration of an Orbweaver cluster, over its REST API.",
    (
        Field(
            "url",
            FieldType.TEXTS,
            "The addresses of the masters, in the order in which they are tried: "
            '`["http://127.0.0.1:8081"]`. Default: ORB_SERVER.',
        ),
        Field("token", FieldType.TEXT, "The API key. Default: ORB_API_KEY.", sensitive=True),
        Field("tls_ca", FieldType.TEXT, "The file of the CA that the masters are verified with. Default: ORB_TLS_CA."),
        Field("tls_cert", FieldType.TEXT, "The file of the client certificate. Default: ORB_TLS_CERT."),
        Field("tls_key", FieldType.TEXT, "The file of the client certificate's key. Default: ORB_TLS_KEY."),
        Field("request_timeout_s", FieldType.WHOLE, f"Seconds that an answer may take. Default: {REQUEST_TIMEOUT_S}."),
        Field(
            "retry_s",
            FieldType.WHOLE,
            f"Seconds during which a request is repeated while no master serves it. Default: {RETRY_S}.",
        ),
    ),
)


def access_of(config: Values, environ: Mapping[str, str]) -> Access | None:
    """Return how to reach the cluster, from the provider's configuration or else from variables of `environ`.

    Return None while a value of the configuration is UNKNOWN (known only after apply). Raise Rejected if a value cannot
    be used. No message contains the token.
    """
    if not all(map(is_known, config.values())):
        return None

    def text(name: str) -> str | None:
        return config.get(name) or environ.get(_VARIABLES[name]) or None

    servers = config.get("url") or [each.strip() for each in environ.get(_VARIABLES["url"], "").split(",")]
    token, cert = text("token"), text("tls_cert")
    if token is not None and not _VISIBLE.fullmatch(token):
        raise _rejected("The token has characters that no API key has.", "Copy the key again.", ("token",))
    return Access(
        _addresses([each for each in servers if each]),
        token,
        _context(text("tls_ca"), cert, text("tls_key")),
        _seconds(config, "request_timeout_s", REQUEST_TIMEOUT_S, 1),
        _seconds(config, "retry_s", RETRY_S, 0),
        None if cert is None else _end(cert),
    )


def _addresses(given: list[str]) -> tuple[str, ...]:
    servers = []
    for text in given:
        url = text if "://" in text else f"http://{text}"
        try:
            parts = urlsplit(url)
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            good = False
        if not good or parts.query or parts.fragment or parts.username is not None:
            raise _rejected("An address in `url` is not that of a master.", "Expected http://host:port.", ("url",))
        servers.append(url.rstrip("/"))
    if not servers:
        raise _rejected("No master is given.", "Set `url` of the provider, or ORB_SERVER.", ("url",))
    return tuple(servers)


def _context(ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext | None:
    """Return the TLS context of the given CA, certificate and key files.

    Return None if neither CA nor certificate is set. Raise Rejected if a file cannot be used, or if only one of `cert`
    and `key` is set.
    """
    if (cert is None) != (key is None):
        missing = "tls_key" if key is None else "tls_cert"
        raise _rejected("`tls_cert` and `tls_key` belong together.", f"Set `{missing}` too.", (missing,))
    if ca is None and cert is None:
        return None
    at = "tls_ca"
    try:
        context = ssl.create_default_context(cafile=ca)
        at = "tls_cert"
        if cert is not None:
            context.load_cert_chain(cert, key, password=lambda: b"")
        return context
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise _rejected(f"The file of `{at}` cannot be used: {why}.", "Give a PEM file.", (at,)) from None


def _end(cert: str) -> datetime:
    """Return the time at which the certificate in the PEM file `cert` expires."""
    from cryptography.x509 import load_pem_x509_certificate  # load the library only for a certificate

    end: datetime = load_pem_x509_certificate(Path(cert).read_bytes()).not_valid_after_utc
    return end


def _seconds(config: Values, name: str, default: int, least: int) -> float:
    value: Any = config.get(name)
    if value is None:
        return default
    if not isinstance(value, int | float) or value < least:
        raise _rejected(f"`{name}` is less than {least}, or no number.", "Give a number of seconds.", (name,))
    return float(value)


def _rejected(summary: str, detail: str, path: Place) -> Rejected:
    return Rejected(Finding(summary, detail, path))
