"""Represent the progress of a command as one number, and return which hosts or URLs its next chunk covers.

A command is applied host by host, in chunks. The number is stored after each chunk, so that the next chunk does not
process finished hosts again. For most commands it is made of a host id and the last fingerprint processed there. For a
command that lists its seeds it is the number of seeds processed.
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
    """Return the progress number of a command that has finished a host up to and including `fingerprint`.

    All hosts with a smaller id are finished, too.
    """
    return host_id << _BITS | int.from_bytes(fingerprint, "big")


def behind_host(host_id: int) -> int:
    """Return the progress number of a command that has finished all hosts up to and including `host_id`."""
    return behind(host_id + 1, b"")


def place_of(after: int) -> tuple[int, bytes]:
    """Return the host id at which to continue, and the fingerprint there after which to continue.

    The fingerprint is empty if the host has not been begun. `after`: a progress number that `behind` or `behind_host`
    returned, 0 for a command that has not begun.
    """
    host_id, fingerprint = divmod(after, 1 << _BITS)
    return host_id, fingerprint.to_bytes(_BITS // 8, "big") if fingerprint else b""


def deletes_by_host(run: CommandRun) -> bool:
    """Return True if a command that deletes seeds must search all hosts of the crawl for the seeds to delete.

    - True: the command lists the seeds to keep. All others must be found, host by host.
    - False: the command lists the seeds to delete. Only these are looked up.

    `run`: a DELETE_SEEDS or DELETE_SEEDS_BETWEEN.
    """
    return run.kind == CommandKind.DELETE_SEEDS_BETWEEN or bool(run.args.get("all"))


def places_of_chunk(run: CommandRun) -> list[tuple[str, bytes]]:
    """Return the URLs that the next chunk of a command covers, as (host, fingerprint): at most PLACES_A_CHUNK.

    `run` must be a command that lists its URLs: a SEED_SET, or a DELETE_SEEDS whose argument `all` is not set.
    """
    places = run.args["places"]
    assert isinstance(places, list)
    first = run.after - len(places) if passes_again(run) else run.after
    return places[first : first + PLACES_A_CHUNK]


def next_place(run: CommandRun) -> int:
    """Return the progress number of a SEED_SET after its next chunk: the number of URLs covered.

    A SEED_SET goes through its list of URLs twice, and the number counts the URLs of both passes.
    """
    places = run.args["places"]
    assert isinstance(places, list)
    rest = run.after + PLACES_A_CHUNK
    return rest if passes_again(run) else min(rest, len(places))


def passes_again(run: CommandRun) -> bool:
    """Return True if `run` is a SEED_SET in its second pass over its list. False for every other command.

    The first pass withdraws the URLs that are not leased. The second pass waits for the leased ones.
    """
    if run.kind != CommandKind.SEED_SET:
        return False
    places = run.args["places"]
    assert isinstance(places, list)
    return run.after >= len(places)


def hosts_of_chunk(run: CommandRun, hosts: Mapping[HostId, str]) -> set[HostId]:
    """Return the ids of those `hosts` in which the next chunk of a command on seeds must look for URLs.

    If the command lists its URLs, these are the hosts of the chunk's URLs. Otherwise they are the next hosts by id, at
    most HOSTS_A_CHUNK. `hosts`: the names of the hosts to choose from, by id.
    """
    if not deletes_by_host(run):
        named = {host for host, _ in places_of_chunk(run)}
        return {host_id for host_id, host in hosts.items() if host in named}
    first, _ = place_of(run.after)
    return set(sorted(host_id for host_id in hosts if host_id >= first)[:HOSTS_A_CHUNK])
