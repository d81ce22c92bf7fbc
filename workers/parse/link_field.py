"""Parses the Link header (RFC 8288) for the previous and the next page.

As for `link` elements, only the relations `next` and `prev` are links to pages. A link with `anchor` is ignored,
because it describes another page.
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
    """Yield the targets with relation `next` or `prev`, as written. Stop at malformed text. Takes linear time."""
    position = 0
    while (match := _VALUE.match(value, position)) is not None:
        position = match.end()
        parameters: dict[str, str] = {}
        for name, quoted, bare in _PARAMETER.findall(match[2]):
            parameters.setdefault(name.lower(), quoted or bare)
        if "anchor" not in parameters and not _SEQUENCE.isdisjoint(parameters.get("rel", "").lower().split()):
            yield match[1]
