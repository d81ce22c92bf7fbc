"""The links that a worker has reported, so that it need not report them again."""

from collections.abc import Iterable
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Final

from shared.domain.ids import CrawlId, Fingerprint, Revision

DEFAULT_SLOTS: Final = 1 << 20
_DEPTH_BITS: Final = 24
_MAX_DEPTH: Final = (1 << _DEPTH_BITS) - 1
_MAX_GENERATIONS: Final = 4096


class KnownLinks:
    """A cache of fixed size of the links whose report the broker has acknowledged.

    A link in the cache was certainly reported. A reported link may be missing: each link has one place in a table, and
    a later link with the same place replaces it. A missing link is reported again, which is harmless.

    The links of a crawl at one revision of its spec form a group with a number, which the code calls `generation`.
    Links to requisites, and links by extra hops, have groups of their own. Each used place takes 24 bytes of memory.
    """

    __slots__ = ("_fingerprints", "_generations", "_mask", "_next_generation", "_tags")

    def __init__(self, slots: int = DEFAULT_SLOTS) -> None:
        if slots < 1 or slots & (slots - 1):
            raise ValueError(f"the number of slots must be a power of two, not {slots}")
        self._mask: Final = slots - 1
        self._fingerprints: Final = _zeros(16 * slots)
        # generation << _DEPTH_BITS | least depth reported. Generation 0 marks an empty slot.
        self._tags = memoryview(_zeros(8 * slots)).cast("Q")
        self._generations: Final[dict[tuple[CrawlId, Revision, bool, int], int]] = {}
        self._next_generation = 1

    def generation(self, crawl_id: CrawlId, revision: Revision, *, requisites: bool = False, extra: int = 0) -> int:
        """Return the number of a group of links, which `contains` and `remember` take as an argument.

        The group has the links of one crawl at one revision, of one sort (`requisites`, `extra`). A link is found only
        in the group in which it was stored. The number stays the same until 4,096 groups are in use. Then every group
        gets a new number, so that all links are forgotten.

        - `requisites`: True for links to requisites, False for other links.
        - `extra`: the number of extra hops that lead to the links.
        """
        generation = self._generations.get((crawl_id, revision, requisites, extra))
        if generation is None:
            if len(self._generations) >= _MAX_GENERATIONS:
                self._generations.clear()
            generation = self._generations[crawl_id, revision, requisites, extra] = self._next_generation
            self._next_generation += 1
        return generation

    def forget(self) -> None:
        """Empty the cache, so that every link is reported again when it is found."""
        self._tags = memoryview(_zeros(self._tags.nbytes)).cast("Q")

    def contains(self, generation: int, fingerprint: Fingerprint, depth: int) -> bool:
        """Return True if a link of the group with the number `generation` was reported with `depth` or a lower depth.

        Return False if it was not reported, or if the cache has lost it.
        """
        slot = (hash(fingerprint) + generation) & self._mask
        tag = self._tags[slot]
        return (
            tag >> _DEPTH_BITS == generation
            and tag & _MAX_DEPTH <= depth
            and self._fingerprints[16 * slot : 16 * slot + 16] == fingerprint
            and self._tags[slot] == tag  # a thread that reads a large page may call this while the loop writes the slot
        )

    def remember(self, generation: int, fingerprints: Iterable[Fingerprint], depth: int) -> None:
        """Store in the cache that links of the group with the number `generation` were reported with `depth`.

        Call this only after the broker has acknowledged their report.
        """
        if depth > _MAX_DEPTH:
            return
        for fingerprint in fingerprints:
            if not self.contains(generation, fingerprint, depth):
                slot = (hash(fingerprint) + generation) & self._mask
                self._tags[slot] = 0
                self._fingerprints[16 * slot : 16 * slot + 16] = fingerprint
                self._tags[slot] = generation << _DEPTH_BITS | depth


def _zeros(size: int) -> mmap:
    """Return `size` zero bytes. A memory page takes no memory before it is written to."""
    return mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS)
