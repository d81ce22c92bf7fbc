"""Where one chunk of a command ends and the next begins: a URL of a host, as one number.

A chunk that began each time at the beginning of its host would walk over all that the chunks before it have done.
"""

from typing import Final

from sqlalchemy import TextClause, text

BEHIND: Final = "fingerprint > :after"
_BITS: Final = 128
"""Of a fingerprint."""


def behind(host_id: int, fingerprint: bytes) -> int:
    """Everything of earlier hosts is done, and of this one all up to `fingerprint`."""
    return host_id << _BITS | int.from_bytes(fingerprint, "big")


def behind_host(host_id: int) -> int:
    """This host is done, too."""
    return behind(host_id + 1, b"")


def place_of(after: int) -> tuple[int, bytes]:
    """The host to go on with, and behind which of its fingerprints; none is before the empty one."""
    host_id, fingerprint = divmod(after, 1 << _BITS)
    return host_id, fingerprint.to_bytes(_BITS // 8, "big") if fingerprint else b""


def last_of(which: str) -> TextClause:
    """Finds the last URL of a chunk that has `others` before it, of those for which `which` holds."""
    return text(f"SELECT fingerprint FROM urls WHERE {which} AND {BEHIND} ORDER BY fingerprint LIMIT 1 OFFSET :others")
