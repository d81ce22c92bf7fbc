"""What is stored of a page that is fetched again: its history and the log of changes, with their compact encodings.

A history takes 12 to 23 bytes, an entry of the log about 13.
"""

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from shared.domain.ids import Fingerprint, HostId

REMEMBERED: Final = 16
"""A history records if the page had changed, for at most this many of its latest comparisons."""

MARK_BYTES: Final = 6
"""The size in bytes of a content mark: a hash of a page's text or items, to compare two versions of the page."""

PREFIX_BYTES: Final = 8
"""How many bytes of a page's fingerprint the log of changes keeps: enough to identify the page on its host."""

GONE: Final = "gone"
"""The reason that is stored with a URL in the state DONE if its page is gone."""

FETCHED_ONCE: Final = "fetched_once"
"""The reason that is stored with a URL in the state DONE if the URL was fetched, and its recrawl policy is `never`.

The URL is fetched again only if a later spec has another policy for it.
"""

QUIET: Final = "quiet"
"""The reason that is stored with a sitemap's URL in the state DONE if its last fetches found nothing new.

The crawl does not fetch this sitemap again.
"""

MISSES_TO_GONE: Final = 2
"""A page is gone after this many fetches in a row found no page."""

_HISTORY: Final = struct.Struct(">BHIBHH")
_SIGNS: Final = struct.Struct(">BI")
_SIGNALLED: Final = 0x80
_LARGEST_VERSION: Final = 2**16 - 1


class PageHistory(Struct, frozen=True):
    """What the fetches of a page or sitemap have shown.

    A sign of change is a date that a sitemap or feed gives for the page, if it is later than the page's last fetch.

    - `version`: the number of the page's newest version, from 1.
    - `compared`: how many comparisons `changes` records, at most REMEMBERED.
    - `changes`: one bit for each comparison. For a page: 1 if the page had changed. For a sitemap: 1 if the fetch found
      something new. Bit 0 is the newest comparison.
    - `checked_ms`: when the newest comparison was made (Unix ms, whole seconds). If there is no comparison yet, it is
      the time of the first fetch.
    - `rate`: a rate, encoded as `ChangeRate.code`. For a page: its estimated rate of change. For a sitemap: the rate at
      which the sitemap is fetched. 0 if there is no rate.
    - `misses`: how many fetches in a row found no page.
    - `mark`: the hash of the text or items of the newest version. Empty if pages are compared by their payloads.
    - `signalled`: for a page: a sign of change came after the last fetch. For a sitemap it means something else: the
      last fetch got different content, but no new URL or date was stored yet. So the next fetch checks that again.
    - `sign_share`: the share of the page's future changes that is expected to have a sign. It is a number from 0 (none)
      to 255 (all). For example, 128 is about half.
    - `known_ms`: when a sign of change last updated `rate` (Unix ms, whole seconds). Each comparison resets it to 0.
    """

    version: int = 1
    compared: int = 0
    changes: int = 0
    checked_ms: int = 0
    rate: int = 0
    misses: int = 0
    mark: bytes = b""
    signalled: bool = False
    sign_share: int = 0
    known_ms: int = 0

    @property
    def quiet(self) -> int:
        """The number of latest fetches in a row that found no change, at most REMEMBERED."""
        return min((self.changes & -self.changes).bit_length() - 1 if self.changes else REMEMBERED, self.compared)

    def after(self, *, changed: bool, now_ms: int, mark: bytes) -> "PageHistory":
        """Return the history after a comparison at `now_ms` (Unix ms). If the page `changed`, it has a new version.

        `mark`: the hash of the page's present text or items. If it is empty, the stored hash is kept.
        """
        return replace(
            self,
            version=min(self.version + changed, _LARGEST_VERSION),
            compared=min(self.compared + 1, REMEMBERED),
            changes=(self.changes << 1 | changed) & ((1 << REMEMBERED) - 1),
            checked_ms=now_ms,
            misses=0,
            mark=mark or self.mark,
            signalled=False,
            known_ms=0,
        )

    def missed(self) -> "PageHistory":
        """Return the history after a fetch that found no page: `misses` is greater by 1."""
        return replace(self, misses=self.misses + 1)

    def encoded(self) -> bytes:
        """Return the history as bytes for the column `fetches.recrawl`. `decoded` reads them."""
        return (
            _HISTORY.pack(
                min(self.misses, MISSES_TO_GONE) << 5 | self.compared | _SIGNALLED * self.signalled,
                self.changes,
                self.checked_ms // 1000,
                self.rate >> 16,
                self.rate & 0xFFFF,
                self.version,
            )
            + (_SIGNS.pack(self.sign_share, self.known_ms // 1000) if self.sign_share or self.known_ms else b"")
            + self.mark
        )


def decoded(stored: bytes | None, at_ms: int) -> PageHistory:
    """Return the history that `PageHistory.encoded` wrote as `stored`.

    If `stored` is None or too short, return the history of a page that was fetched once, at `at_ms` (Unix ms).
    """
    if not stored or len(stored) < _HISTORY.size:
        return PageHistory(checked_ms=at_ms)
    head, changes, checked_s, high, low, version = _HISTORY.unpack_from(stored)
    at = _HISTORY.size
    sign_share = known_s = 0
    if (len(stored) - at) % MARK_BYTES == _SIGNS.size:
        sign_share, known_s = _SIGNS.unpack_from(stored, at)
        at += _SIGNS.size
    return PageHistory(
        version=version,
        compared=head & 0x1F,
        changes=changes,
        checked_ms=checked_s * 1000,
        rate=high << 16 | low,
        misses=head >> 5 & 3,
        mark=bytes(stored[at:]),
        signalled=bool(head & _SIGNALLED),
        sign_share=sign_share,
        known_ms=known_s * 1000,
    )


class ChangeKind(IntEnum):
    """What an entry in the log of changes records: a page was new, had changed, or was gone."""

    NEW = 1
    CHANGED = 2
    GONE = 3


class PageChange(Struct, frozen=True):
    """An entry in the log of changes: a page that was new, had changed or was gone.

    `version`: the number of the page's newest version at that time. `prefix`: the first PREFIX_BYTES bytes of the
    page's fingerprint.
    """

    kind: ChangeKind
    host_id: HostId
    prefix: bytes
    version: int


def change_of(kind: ChangeKind, host_id: HostId, fingerprint: Fingerprint, version: int) -> PageChange:
    """Return an entry for the log of changes. `version`: the number of the page's newest version now."""
    return PageChange(kind, host_id, bytes(fingerprint[:PREFIX_BYTES]), version)


def packed(changes: Iterable[PageChange]) -> bytes:
    """Return entries of the log of changes as the bytes of one row. `unpacked` reads them."""
    return b"".join(
        bytes((each.kind,)) + each.prefix + _number(each.host_id) + _number(each.version) for each in changes
    )


def unpacked(entries: bytes) -> Iterator[PageChange]:
    """Yield the entries that `packed` wrote as `entries`, in order."""
    at = 0
    while at < len(entries):
        kind, prefix = ChangeKind(entries[at]), entries[at + 1 : at + 1 + PREFIX_BYTES]
        host_id, at = _read_number(entries, at + 1 + PREFIX_BYTES)
        version, at = _read_number(entries, at)
        yield PageChange(kind, HostId(host_id), bytes(prefix), version)


def _number(value: int) -> bytes:
    """Return a number as a variable-length integer: 7 bits in each byte, the least significant first."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _read_number(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that `_number` wrote at index `at` of `data`, and the index after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
