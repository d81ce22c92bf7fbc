"""How many requests a key may send, and how many wrong keys an address.

Permits are counted by key and class of route, at each master by itself. Writes are counted where they are carried out:
at the leader. Wrong keys are counted by address and never by key: a key's id is public, so counting by it would let any
client shut out its user.
"""

from collections.abc import Mapping
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Final

import structlog

from api.security.rights import RouteClass
from shared.domain.ops.identities import address_of
from shared.domain.ops.permits import BURST_S, Buckets, Permit

log = structlog.get_logger("orb.api")

READS: Final = 1000
WRITES: Final = 500
BULK: Final = 100
WRONG_KEYS: Final = 60
MAX_ADDRESSES: Final = 4096
"""Addresses whose wrong keys are counted. Of a further one the least recent is dropped."""

_NETWORK_BITS: Final = 64


class Permits:
    """The permits of keys: `reads`, `writes` and `bulk` a second, ten seconds of them at once. 0: no limit."""

    def __init__(self, reads: int = READS, writes: int = WRITES, bulk: int = BULK) -> None:
        per_s = {RouteClass.READ: reads, RouteClass.WRITE: writes, RouteClass.BULK: bulk}
        self._buckets = {each: Buckets(count, count * BURST_S) for each, count in per_s.items()}

    def __repr__(self) -> str:
        return f"<Permits {self._buckets}>"

    def take(self, key_id: str, route_class: RouteClass, now: float) -> Permit | None:
        """Take a permit of the key, if one is left. Return what was decided and how many are left.

        Return None if this class of route has no limit.
        """
        return self._buckets[route_class].take(key_id, now)


def rate_headers(permit: Permit, route_class: RouteClass) -> Mapping[str, str]:
    """Return the headers that show a permit (draft-ietf-httpapi-ratelimit-headers-10)."""
    return {
        "RateLimit-Policy": f'"{route_class}";q={permit.quota};w={BURST_S}',
        "RateLimit": f'"{route_class}";r={permit.left};t={permit.full_s}',
    }


class WrongKeys:
    """Counts the wrong keys of each address: `per_minute`, all at once if need be. 0: no limit.

    An IPv6 address counts as its /64, since one client may have all addresses of it.
    """

    def __init__(self, per_minute: int = WRONG_KEYS, max_count: int = MAX_ADDRESSES) -> None:
        self._buckets = Buckets(per_minute / 60, per_minute, max_count)
        self.counted = 0
        """Wrong keys that were looked up."""
        self.limited = 0
        """Keys that were refused since too many wrong ones came from their address."""

    def __len__(self) -> int:
        """Return the number of addresses in memory."""
        return len(self._buckets)

    def __repr__(self) -> str:
        return f"<WrongKeys of {len(self)} addresses>"

    def wait_s(self, address: str | None, now: float) -> int:
        """Return 0 if this address may try another key, else the seconds until then."""
        permit = self._buckets.look(_client(address), now)
        return 0 if permit is None else permit.wait_s

    def count(self, address: str | None, now: float) -> None:
        """Count a wrong key of this address."""
        self.counted += 1
        permit = self._buckets.take(_client(address), now)
        if permit is not None and permit.allowed and permit.left == 0:
            log.warning("wrong_keys.limited", address=address)


@lru_cache(MAX_ADDRESSES)
def _client(text: str | None) -> str:
    address = address_of(text)
    if isinstance(address, IPv6Address):
        return f"{int(address) >> _NETWORK_BITS:x}"
    return "" if address is None else str(address)
