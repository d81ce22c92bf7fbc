"""The Link header (RFC 8288): which pages come before and after this one.

Relations other than `next` and `prev` are no links to pages here, as for `link` elements. A link with `anchor` speaks
of another page, so it is ignored.
"""

import re
from collections.abc import Iterator
from typing import Final

_SEQUENCE: Final = frozenset(("next", "prev"))
_VALUE: Final = re.compile(r"[ \t,]*+<([^>]*+)>((?:[^\",]|\"(?:[^\"\\]|\\.)*+\"?)*+)", re.DOTALL)
_PARAMETER: Final = re.compile(
    r";[ \t]*+([^;=\" \t]*+)[ \t]*+(?:=[ \t]*+(?:\"((?:[^\"\\]|\\.)*+)\"?|([^;\"]*+)))?", re.DOTALL
)


def sequence_links(value: str) -> Iterator[str]:
    """Yield the targets with relation `next` or `prev`, as written. A malformed rest ends it. Linear in time."""
    position = 0
    while (match := _VALUE.match(value, position)) is not None:
        position = match.end()
        parameters: dict[str, str] = {}
        for name, quoted, bare in _PARAMETER.findall(match[2]):
            parameters.setdefault(name.lower(), quoted or bare)
        if "anchor" not in parameters and not _SEQUENCE.isdisjoint(parameters.get("rel", "").lower().split()):
            yield match[1]
