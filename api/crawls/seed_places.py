"""Split lists of seeds that are to be deleted or kept, so that each list fits in one command.

A place is a seed's host and fingerprint.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from shared.domain.frontier.commands import GREATEST

MESSAGE_BYTES: Final = 512 * 1024
"""Maximum bytes of places in a command: half of the smallest limit that a broker is likely to have."""

_PLACE_BYTES: Final = 24
Place = tuple[str, bytes]


def fits(places: Sequence[Place]) -> bool:
    """Return True if one command can contain all these places."""
    return size_of(places) <= MESSAGE_BYTES


def size_of(places: Sequence[Place]) -> int:
    """Return about how many bytes the places need in a message."""
    return sum(len(host) + _PLACE_BYTES for host, _ in places)


def pieces(places: Sequence[Place]) -> Sequence[Sequence[Place]]:
    """Split the places, in order, into lists that each fit in one message.

    Return at least one list, which may be empty.
    """
    parts: list[list[Place]] = [[]]
    size = 0
    for place in places:
        size += len(place[0]) + _PLACE_BYTES
        if size > MESSAGE_BYTES and parts[-1]:
            parts.append([])
            size = len(place[0]) + _PLACE_BYTES
        parts[-1].append(place)
    return parts


def between(kept: Sequence[Place]) -> list[Mapping[str, object]]:
    """Return the arguments of DELETE_SEEDS_BETWEEN commands that together delete every seed except those in `kept`.

    Each command covers one range of fingerprints and names the seeds in it to keep. The ranges together cover all
    fingerprints.
    """
    parts = pieces(sorted(kept, key=lambda place: place[1]))
    bounds = [b"", *(part[-1][1] for part in parts[:-1]), GREATEST]
    return [{"places": part, "above": bounds[i], "upto": bounds[i + 1]} for i, part in enumerate(parts)]
