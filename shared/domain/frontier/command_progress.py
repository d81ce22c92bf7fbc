"""Represent up to where a command is applied as one number, and bound what its next chunk may examine.

A command is applied host by host, in chunks. Each chunk continues where the chunk before it ended. Otherwise it would
walk again over everything that is done.
"""

from collections.abc import Mapping
from typing import Final

from shared.domain.frontier.commands import CommandKind
from shared.domain.frontier.store_model import CommandRun
from shared.domain.ids import HostId

HOSTS_A_CHUNK = 200
PLACES_A_CHUNK = 500
_BITS: Final = 128
"""The length of a fingerprint in bits."""


def behind(host_id: int, fingerprint: bytes) -> int:
    """Return the progress number that means: earlier hosts are done, and this one up to and including `fingerprint`."""
    return host_id << _BITS | int.from_bytes(fingerprint, "big")


def behind_host(host_id: int) -> int:
    """Return the progress number that means: all hosts up to and including `host_id` are done."""
    return behind(host_id + 1, b"")


def place_of(after: int) -> tuple[int, bytes]:
    """Return the host to continue with, and the fingerprint after which to continue there (empty: at the start).

    `after` is the progress number of what is done.
    """
    host_id, fingerprint = divmod(after, 1 << _BITS)
    return host_id, fingerprint.to_bytes(_BITS // 8, "big") if fingerprint else b""


def deletes_by_host(run: CommandRun) -> bool:
    """Return True if a command that deletes seeds searches the crawl's hosts for them, False if it lists them."""
    return run.kind == CommandKind.DELETE_SEEDS_BETWEEN or bool(run.args.get("all"))


def places_of_chunk(run: CommandRun) -> list[tuple[str, bytes]]:
    """Return the URLs, as (host, fingerprint), that the next chunk of a command that names them processes.

    A SEED_SET processes all of them twice.
    """
    places = run.args["places"]
    assert isinstance(places, list)
    first = run.after - len(places) if passes_again(run) else run.after
    return places[first : first + PLACES_A_CHUNK]


def next_place(run: CommandRun) -> int:
    """Return the progress number after the next chunk of a SEED_SET. Its second pass begins where the first ends."""
    places = run.args["places"]
    assert isinstance(places, list)
    rest = run.after + PLACES_A_CHUNK
    return rest if passes_again(run) else min(rest, len(places))


def passes_again(run: CommandRun) -> bool:
    """Return True if a SEED_SET is in its second pass over its URLs: it waits for those that are leased."""
    if run.kind != CommandKind.SEED_SET:
        return False
    places = run.args["places"]
    assert isinstance(places, list)
    return run.after >= len(places)


def hosts_of_chunk(run: CommandRun, hosts: Mapping[HostId, str]) -> set[HostId]:
    """Return which of `hosts` (names by id) the next chunk of a deletion of seeds may examine.

    No other of `hosts` is reached by the chunk. The result has at most HOSTS_A_CHUNK hosts, or as many as the chunk's
    named seeds have.
    """
    if not deletes_by_host(run):
        named = {host for host, _ in places_of_chunk(run)}
        return {host_id for host_id, host in hosts.items() if host in named}
    first, _ = place_of(run.after)
    return set(sorted(host_id for host_id in hosts if host_id >= first)[:HOSTS_A_CHUNK])
