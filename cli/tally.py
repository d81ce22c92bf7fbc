"""Counts by kind, gathered and put into words: shared by display, plain lines and summary."""

from collections.abc import Mapping

from cli.pace import count
from shared.domain.explain import meaning


def status_classes(statuses: Mapping[str, int]) -> dict[str, int]:
    """HTTP statuses gathered into `2xx`, `3xx` ..., in that order."""
    classes: dict[str, int] = {}
    for status, n in sorted(statuses.items()):
        name = f"{status[:1]}xx" if status[:1] in tuple("12345") and len(status) == 3 else "other"
        classes[name] = classes.get(name, 0) + n
    return classes


def errors(tallies: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Failures by kind: of URLs that failed for good, and of hosts that could not be visited."""
    found = dict(tallies.get("failed", {}))
    for kind, n in tallies.get("host_failures", {}).items():
        found[kind] = found.get(kind, 0) + n
    return found


def ranked(counts: Mapping[str, int], *, plain: bool = False) -> list[str]:
    """`HTTP 404 12`, the most frequent first; `plain` leaves the names as they are."""
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [f"{name if plain else meaning(name).short} {count(n)}" for name, n in order if n]
