"""Groups counts by kind and formats them as text, for the live display, plain lines and the summary."""

from collections.abc import Mapping

from cli.terminal.display_rates import count
from shared.domain.explain.sentences import meaning


def status_classes(statuses: Mapping[str, int]) -> dict[str, int]:
    """Return the number of responses in each class of HTTP status: `2xx`, `3xx` and so on, in ascending order.

    `statuses` is the number of responses by status.
    """
    classes: dict[str, int] = {}
    for status, n in sorted(statuses.items()):
        name = f"{status[:1]}xx" if status[:1] in tuple("12345") and len(status) == 3 else "other"
        classes[name] = classes.get(name, 0) + n
    return classes


def errors(tallies: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Return the number of failures by kind, such as `dns`. Failed URLs and failed visits of hosts are added up.

    `tallies`: the counts of a crawl, by group and kind. Only the groups `failed` and `host_failures` are used.
    """
    counts = dict(tallies.get("failed", {}))
    for kind, number in tallies.get("host_failures", {}).items():
        counts[kind] = counts.get(kind, 0) + number
    return counts


def ranked(counts: Mapping[str, int], *, plain: bool = False) -> list[str]:
    """Return each count as text, such as `HTTP 404 12`, the greatest first. Omit counts of 0.

    `plain`: True to use the names of the kinds as they are, instead of their short descriptions.
    """
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [f"{name if plain else meaning(name).short} {count(n)}" for name, n in order if n]
