"""Limits on the requests that a key may send, and on the wrong keys that an address may send.

Requests are counted by key and by class of route: read, write, or bulk (a stream, an export or an upload). Each master
counts separately. A write is counted by the leader, which executes it.

Wrong keys are counted by address and not by key id. So no client can lock out the user of a key at another address.
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
"""Maximum addresses whose wrong keys are counted. To add another, forget the one whose last wrong key is the oldest."""

_NETWORK_BITS: Final = 64


class Permits:
    """Limits the requests that each key may send, separately for each class of route (RouteClass).

    - `reads`, `writes`, `bulk`: the limit of each class in requests a second; 0 means no limit.

    After a pause, a key may send more at once: at most the limit times `BURST_S`.
    """

    def __init__(self, reads: int = READS, writes: int = WRITES, bulk: int = BULK) -> None:
        per_s = {RouteClass.READ: reads, RouteClass.WRITE: writes, RouteClass.BULK: bulk}
        self._buckets = {each: Buckets(count, count * BURST_S) for each, count in per_s.items()}

    def __repr__(self) -> str:
        return f"<Permits {self._buckets}>"

    def take(self, key_id: str, route_class: RouteClass, now: float) -> Permit | None:
        """Count a request of the key, if its limit allows one now. Return the decision and how many requests are left.

        Return None if this class of route has no limit. `now`: the present time (Clock.elapsed).
        """
        return self._buckets[route_class].take(key_id, now)


def rate_headers(permit: Permit, route_class: RouteClass) -> Mapping[str, str]:
    """Return the headers that show the client its limit and what is left (draft-ietf-httpapi-ratelimit-headers-10)."""
    return {
        "RateLimit-Policy": f'"{route_class}";q={permit.quota};w={BURST_S}',
        "RateLimit": f'"{route_class}";r={permit.left};t={permit.full_s}',
    }


class WrongKeys:
    """Limits the wrong API keys that each address may send, by a token bucket of `per_minute` keys; 0 means no limit.

    The addresses of an IPv6 /64 network count as one address, because one client may have all of them. All clients
    without a known address count as one address. At most `max_count` addresses are kept.
    """

    def __init__(self, per_minute: int = WRONG_KEYS, max_count: int = MAX_ADDRESSES) -> None:
        self._buckets = Buckets(per_minute / 60, per_minute, max_count)
        self.counted = 0
        """How many keys and client certificates were checked and found to be wrong or unknown."""
        self.limited = 0
        """Requests that were refused without a lookup, because too many wrong keys came from their address."""

    def __len__(self) -> int:
        """Return the number of addresses in memory."""
        return len(self._buckets)

    def __repr__(self) -> str:
        return f"<WrongKeys of {len(self)} addresses>"

    def wait_s(self, address: str | None, now: float) -> int:
        """Return the seconds until this address may try another key; 0 if it may now.

        `now`: the present time (Clock.elapsed).
        """
        permit = self._buckets.look(_client(address), now)
        return 0 if permit is None else permit.wait_s

    def count(self, address: str | None, now: float) -> None:
        """Count a wrong key that this address sent. Log when the address reaches its limit."""
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
