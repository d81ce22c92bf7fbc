"""The context of a seed: its labels and its source, which travel to the pages and items that are found from it.

Between processes a context travels whole. In SQL each partition stores a context once, and URLs refer to it by an id
that is made of its content. So owners need no common counter, and a message that comes twice changes nothing.
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
"""The limits of a context: its labels, the characters of a label's value and of the source, and its bytes as JSON."""

LABEL_NAME: Final = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
_name: Final = re.compile(LABEL_NAME).match
_NAME_FORM: Final = "names are lower-case letters, digits and inner hyphens, at most 63"
_one_line: Final = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]*").fullmatch
_ID_BYTES: Final = 8
_ID_MASK: Final = 2**63 - 1


class SeedContext(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The labels of a seed, sorted by their names, and its source. `source` is empty if none was given."""

    labels: tuple[tuple[str, str], ...] = ()
    source: str = ""


_decoder: Final = msgspec.json.Decoder(SeedContext)
NO_CONTEXT: Final = SeedContext()
NO_CONTEXTS: Final[Mapping[Fingerprint, SeedContext]] = MappingProxyType({})


def context_of(labels: Mapping[str, str] | None, source: str | None) -> SeedContext | None:
    """Return the context of a seed with these labels and this source. None if it has neither."""
    return SeedContext(tuple(sorted(labels.items())) if labels else (), source or "") if labels or source else None


def labels_of(context: SeedContext | None) -> dict[str, str]:
    """Return the labels by name. A URL without a context has none."""
    return {} if context is None else dict(context.labels)


def source_of(context: SeedContext | None) -> str | None:
    """Return the source, None if there is none."""
    return (context.source or None) if context is not None else None


def encoded(context: SeedContext) -> str:
    """Return the context as text for SQL. Equal contexts give equal texts."""
    return msgspec.json.encode(context).decode()


def decoded(text: str | None) -> SeedContext | None:
    """Return the context that `encoded` wrote as this text. None for None."""
    return None if text is None else _decoder.decode(text)


def context_id(context: SeedContext) -> int:
    """Return the id of the context, a positive number of 63 bits: a hash of its content."""
    return int.from_bytes(blake3(encoded(context).encode()).digest(length=_ID_BYTES), "big") & _ID_MASK


def problems_of(labels: Mapping[str, str], source: str) -> Iterator[tuple[str, str, str]]:
    """Yield what is wrong with the labels and source of a seed, as path, message and hint. A path may have a name."""
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
    """Return why a context of valid parts is too large. None if it is not."""
    size = 0 if context is None else context_bytes(context)
    return (
        f"has {size} bytes with its labels and source, more than {MAX_CONTEXT_BYTES}"
        if size > MAX_CONTEXT_BYTES
        else None
    )


def context_bytes(context: SeedContext) -> int:
    """Return the bytes that the context takes in a message, or a few more."""
    return len(msgspec.json.encode(context))


def numbered(given: Sequence[SeedContext | None]) -> tuple[list[SeedContext], list[int]]:
    """Return the distinct contexts of a message, and for each of its parts the number of its context, from 1.

    0 stands for none. Both lists are empty if no part has a context.
    """
    numbers: dict[SeedContext, int] = {}
    places = [0 if each is None else numbers.setdefault(each, len(numbers) + 1) for each in given]
    return (list(numbers), places) if numbers else ([], [])


def context_at(contexts: Sequence[SeedContext], numbers: Sequence[int], place: int) -> SeedContext | None:
    """Return the context of a message's part at `place`, as `numbered` wrote it. None if the part has none."""
    number = numbers[place] if place < len(numbers) else 0
    return contexts[number - 1] if 0 < number <= len(contexts) else None
