"""Explains in a sentence why a TLS connection failed. The cause may be the master's certificate or the client's."""

import re
from datetime import UTC, datetime
from typing import Final

from urllib3.exceptions import HTTPError, ProtocolError, SSLError

from orb_provider.findings import Finding

NO_CERTIFICATE: Final = "If a master requires a client certificate, set `tls_cert` and `tls_key`."
OTHER_CERTIFICATE: Final = (
    "If a master refuses the certificate of `tls_cert`, use one that the authority of its `--tls-client-ca` signed."
)
_RENEW: Final = "Renew the certificate of `tls_cert`."
_CLOSED: Final = (SSLError, ProtocolError)
"""The errors that are raised if a server closes the connection before it answers."""

_ALERT: Final = re.compile(r"\] \S+ alert ([a-z ]+)")
_UNVERIFIED: Final = re.compile(r"certificate verify failed: ([^(]+)")
_OF_CLIENT: Final = ("certificate", "unknown ca")
"""Words in the alerts by which a server refuses a client that has no certificate, or a wrong one."""


def refused_tls(server: str, error: HTTPError, certificate_ends: datetime | None, *, reached: bool) -> Finding | None:
    """Return the reason why a TLS connection to `server` failed. Return None if `error` has no known reason in TLS.

    - `certificate_ends`: when the client certificate expires, None without one. A master may refuse an expired
      certificate by closing the connection without an alert. So a closed connection counts as a refusal after this
      time.
    - `reached`: a master has answered before, so a closed connection does not count as a refusal.
    """
    why = str(error)
    if isinstance(error, SSLError) and (found := _UNVERIFIED.search(why)):
        remedy = "Set `tls_ca` to the CA of the masters' certificates, and `url` to a name in them."
        return Finding(f"The certificate of {server} is not accepted: {found[1].strip()}.", remedy, ("tls_ca",))
    ended = certificate_ends is not None and certificate_ends <= datetime.now(UTC)
    remedy = _RENEW if ended else NO_CERTIFICATE if certificate_ends is None else OTHER_CERTIFICATE
    if isinstance(error, SSLError) and (found := _ALERT.search(why)):
        alert = found[1].strip()
        if any(word in alert for word in _OF_CLIENT):
            return Finding(f"{server} refuses the client certificate: {alert}.", remedy, ("tls_cert",))
        return Finding(f"{server} refuses the TLS connection: {alert}.", remedy, ("url",))
    closed = server.startswith("https:") and isinstance(error, _CLOSED)
    if certificate_ends is not None and ended and closed and not reached:
        at = certificate_ends.isoformat(timespec="seconds")
        what = f"{server} closed the connection: the client certificate ended at {at}."
        return Finding(what, remedy, ("tls_cert",))
    return None
