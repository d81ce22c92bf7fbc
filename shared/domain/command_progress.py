"""How far a command in progress is, as one number, and how much its next chunk may look at.

A chunk that began each time at the beginning of its host would walk over all that the chunks before it have done.
"""

from collections.abc import Mapping
from typing import Final

from shared.domain.command import CommandKind
from shared.domain.ids import HostId
from shared.domain.ledger import CommandRun

HOSTS_A_CHUNK = 200
PLACES_A_CHUNK = 500
_BITS: Final = 128
"""Of a fingerprint."""


def behind(host_id: int, fingerprint: bytes) -> int:
    """Return the place where all of earlier hosts is done, and of this one all up to `fingerprint`."""
    return host_id << _BITS | int.from_bytes(fingerprint, "big")


def behind_host(host_id: int) -> int:
    """Return the place where this host is done, too."""
    return behind(host_id + 1, b"")


def place_of(after: int) -> tuple[int, bytes]:
    """Return the host to go on with, and behind which of its fingerprints; none is before the empty one."""
    host_id, fingerprint = divmod(after, 1 << _BITS)
    return host_id, fingerprint.to_bytes(_BITS // 8, "big") if fingerprint else b""


def deletes_by_host(run: CommandRun) -> bool:
    """Return True if a deletion of seeds goes over the hosts, False if it goes over the seeds that it names."""
    return run.kind == CommandKind.DELETE_SEEDS_BETWEEN or bool(run.args["all"])


def places_of_chunk(run: CommandRun) -> list[tuple[str, bytes]]:
    """Return the seeds that the next chunk takes of those that a deletion names."""
    places = run.args["places"]
    assert isinstance(places, list)
    return places[run.after : run.after + PLACES_A_CHUNK]


def hosts_of_chunk(run: CommandRun, hosts: Mapping[HostId, str]) -> set[HostId]:
    """Return those of the hosts, each with its name, at which the next chunk of a deletion of seeds may look.

    They hold every host of `hosts` that the chunk reaches, and are at most HOSTS_A_CHUNK or as many as it names.
    """
    if not deletes_by_host(run):
        named = {host for host, _ in places_of_chunk(run)}
        return {host_id for host_id, host in hosts.items() if host in named}
    first, _ = place_of(run.after)
    return set(sorted(host_id for host_id in hosts if host_id >= first)[:HOSTS_A_CHUNK])
