"""Compare two specs field by field, and apply merge patches to specs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """A field that differs between two specs. `path` is its place, such as `scope.mode`.

    `before` is None if the field was added, `after` is None if it was removed.
    """

    path: str
    before: Any
    after: Any


def spec_difference(before: str, after: str) -> list[Difference]:
    """Return the fields that differ between two specs in JSON, sorted by path. Lists are compared as a whole."""
    old, new = (msgspec.json.decode(spec) for spec in (before, after))
    return sorted(_differing("", old, new), key=lambda difference: difference.path)


def _differing(path: str, before: Any, after: Any) -> Iterator[Difference]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in before.keys() | after.keys():
            place = f"{path}.{name}" if path else str(name)
            yield from _differing(place, before.get(name, _ABSENT), after.get(name, _ABSENT))
    elif before != after:
        yield Difference(path, None if before is _ABSENT else before, None if after is _ABSENT else after)


def merge_patch(target: Any, patch: Any) -> Any:
    """Return the JSON value `target` with the JSON merge patch `patch` (RFC 7396) applied.

    Null in a patch removes a field. A mapping is merged with the present one. Any other value replaces the present one.
    """
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged
