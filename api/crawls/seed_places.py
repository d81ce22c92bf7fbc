"""Divide the places of seeds, each a host and a fingerprint, among the commands that name them."""

from collections.abc import Mapping, Sequence
from typing import Final

from shared.domain.frontier.commands import GREATEST

MESSAGE_BYTES: Final = 512 * 1024
"""Maximum bytes of places in a command: half of the smallest limit that a broker is likely to have."""

_PLACE_BYTES: Final = 24
Place = tuple[str, bytes]


def fits(places: Sequence[Place]) -> bool:
    """Return True if one command can name all these places."""
    return size_of(places) <= MESSAGE_BYTES


def size_of(places: Sequence[Place]) -> int:
    """Return about how many bytes the places (host and fingerprint of URLs) take in a message."""
    return sum(len(host) + _PLACE_BYTES for host, _ in places)


def pieces(places: Sequence[Place]) -> Sequence[Sequence[Place]]:
    """Split the places, in order, into parts that fit in a message. Return at least one part, even if it is empty."""
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
    """Return the arguments of commands that together delete every seed except those in `kept`.

    Each command covers a range of fingerprints; together they cover all.
    """
    parts = pieces(sorted(kept, key=lambda place: place[1]))
    bounds = [b"", *(part[-1][1] for part in parts[:-1]), GREATEST]
    return [{"places": part, "above": bounds[i], "upto": bounds[i + 1]} for i, part in enumerate(parts)]
