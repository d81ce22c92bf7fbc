"""The context of a seed: its labels and its source. Pages and items that are found from the seed have it, too.

A message between processes has the whole context. In SQL each partition stores a context once, and URLs refer to it by
an id. The id is a hash of the content. So owners need no common counter, and a message that is delivered twice changes
nothing.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec
from blake3 import blake3

from shared.domain.ids import Fingerprint

MAX_SEED_LABELS: Final = 16
MAX_LABEL_CHARS: Final = 255
MAX_SOURCE_CHARS: Final = 512
MAX_CONTEXT_BYTES: Final = 2_048
"""The maximum size of a context as JSON, in bytes."""

LABEL_NAME: Final = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
_name: Final = re.compile(LABEL_NAME).match
_NAME_FORM: Final = "names are lower-case letters, digits and inner hyphens, at most 63"
_one_line: Final = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]*").fullmatch
_ID_BYTES: Final = 8
_ID_MASK: Final = 2**63 - 1


class SeedContext(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The labels of a seed as (name, value) pairs, sorted by name, and its source. An empty `source` means none."""

    labels: tuple[tuple[str, str], ...] = ()
    source: str = ""


_decoder: Final = msgspec.json.Decoder(SeedContext)
NO_CONTEXT: Final = SeedContext()
NO_CONTEXTS: Final[Mapping[Fingerprint, SeedContext]] = MappingProxyType({})


def context_of(labels: Mapping[str, str] | None, source: str | None) -> SeedContext | None:
    """Return the context of a seed with these labels and this source. Return None if it has neither."""
    return SeedContext(tuple(sorted(labels.items())) if labels else (), source or "") if labels or source else None


def labels_of(context: SeedContext | None) -> dict[str, str]:
    """Return the labels of a context as a mapping from name to value. Return an empty one if `context` is None."""
    return {} if context is None else dict(context.labels)


def source_of(context: SeedContext | None) -> str | None:
    """Return the source of a context, or None if `context` is None or has no source."""
    return (context.source or None) if context is not None else None


def encoded(context: SeedContext) -> str:
    """Return the context as JSON text for SQL. Equal contexts have equal texts."""
    return msgspec.json.encode(context).decode()


def decoded(text: str | None) -> SeedContext | None:
    """Return the context that `encoded` wrote as `text`. Return None if `text` is None."""
    return None if text is None else _decoder.decode(text)


def context_id(context: SeedContext) -> int:
    """Return the id of the context, a positive number of 63 bits: a hash of its content."""
    return int.from_bytes(blake3(encoded(context).encode()).digest(length=_ID_BYTES), "big") & _ID_MASK


def problems_of(labels: Mapping[str, str], source: str) -> Iterator[tuple[str, str, str]]:
    """Yield each problem of a seed's labels and source, as (path, message, hint). Yield nothing if both are valid.

    The path is the field `labels` or `source`, or `labels.NAME` for the value of one label.
    """
    if len(labels) > MAX_SEED_LABELS:
        yield "labels", f"has {len(labels)} labels", f"a seed has at most {MAX_SEED_LABELS}"
    for name, value in labels.items():
        if _name(name) is None:
            yield "labels", f"{name[:80]!r} is not the name of a label", _NAME_FORM
        elif len(value) > MAX_LABEL_CHARS or _one_line(value) is None:
            yield f"labels.{name}", "is not a line of text", f"values are text of at most {MAX_LABEL_CHARS} characters"
    if len(source) > MAX_SOURCE_CHARS or _one_line(source) is None:
        yield "source", "is not a line of text", f"a source is text of at most {MAX_SOURCE_CHARS} characters"


def context_problem(context: SeedContext | None) -> str | None:
    """Return a message if the context as a whole exceeds MAX_CONTEXT_BYTES. Return None if it does not."""
    size = 0 if context is None else context_bytes(context)
    return (
        f"has {size} bytes with its labels and source, more than {MAX_CONTEXT_BYTES}"
        if size > MAX_CONTEXT_BYTES
        else None
    )


def context_bytes(context: SeedContext) -> int:
    """Return the size of the context as JSON in bytes. Its encoding in a message is not larger."""
    return len(msgspec.json.encode(context))


def numbered(given: Sequence[SeedContext | None]) -> tuple[list[SeedContext], list[int]]:
    """Return the distinct contexts in `given`, and for each element of `given` the number of its context, from 1.

    The number is 0 for None: `[a, None, b, a]` gives `[a, b]` and `[1, 0, 2, 1]`. Both lists are empty if all elements
    are None. `context_at` reads both lists.
    """
    numbers: dict[SeedContext, int] = {}
    places = [0 if each is None else numbers.setdefault(each, len(numbers) + 1) for each in given]
    return (list(numbers), places) if numbers else ([], [])


def context_at(contexts: Sequence[SeedContext], numbers: Sequence[int], place: int) -> SeedContext | None:
    """Return the context with the number `numbers[place]`, or None if there is none.

    A number is a position in `contexts`, counted from 1. The number 0 means that there is no context. For example, with
    the contexts `[a, b]` and the numbers `[1, 0, 2, 1]`:

    - `place` 2 has the number 2: return `b`.
    - `place` 1 has the number 0: return None.
    - `place` 4 has no number: return None.

    `contexts` and `numbers` are the two lists that `numbered` returns.
    """
    number = numbers[place] if place < len(numbers) else 0
    return contexts[number - 1] if 0 < number <= len(contexts) else None
