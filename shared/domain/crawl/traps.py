"""Detect URLs of endless URL spaces: relative links that resolve deeper and deeper, or parameters that accumulate.

The rules come from other crawlers (StormCrawler's basic URL filter, Heritrix' pathological path rule). They find three
things:

- a path segment that repeats too often
- a path of ten or more segments in which two or more different segments occur three times or more
- a parameter that is repeated with the same value

The result depends on the URL alone, not on where it was found.
"""

from collections import Counter
from typing import Final

from shared.domain.crawl.spec import Traps

CYCLE_SEGMENTS: Final = 10
CYCLE_DISTINCT: Final = 2
CYCLE_TIMES: Final = 3


def repeated_segment(path: str, max_count: int) -> str | None:
    """Return the most frequent segment of `path` if it occurs more than `max_count` times. Otherwise return None.

    An empty segment (`//`) counts as a segment, too.
    """
    if path.count("/") <= max_count:
        return None
    segments = path.split("/")
    if len(segments) - len(set(segments)) < max_count:
        return None
    segment, times = Counter(segments[1:]).most_common(1)[0]
    return segment if times > max_count else None


def cycling_segments(path: str) -> tuple[str, ...]:
    """Return the segments that occur at least `CYCLE_TIMES` times in `path`. Empty segments are left out.

    Return an empty tuple if these are fewer than `CYCLE_DISTINCT`, or `path` has fewer than `CYCLE_SEGMENTS` segments.
    """
    if path.count("/") < CYCLE_SEGMENTS:
        return ()
    often = tuple(part for part, times in Counter(path.split("/")[1:]).items() if times >= CYCLE_TIMES and part)
    return often if len(often) >= CYCLE_DISTINCT else ()


def repeated_parameter(query: str, max_count: int) -> str | None:
    """Return the most frequent `key=value` of `query` (no leading `?`) if it occurs over `max_count` times, or None."""
    if query.count("&") < max_count:
        return None
    counts = Counter(part for part in query.split("&") if part)
    pair, times = counts.most_common(1)[0] if counts else ("", 0)
    return pair if times > max_count else None


def trap(canonical: str, traps: Traps) -> str | None:
    """Return why the canonical URL looks like part of an endless URL space, or None if it does not.

    `traps`: the limits of the spec.
    """
    rest = canonical[canonical.index("/", 8) :]
    path, _, query = rest.partition("?")
    if (max_count := traps.max_segment_repeats) is not None and (
        segment := repeated_segment(path, max_count)
    ) is not None:
        return f"path segment {segment!r} occurs more than {max_count} times"
    if traps.cycles and (segments := cycling_segments(path)):
        return f"path segments {', '.join(segments)} cycle"
    if query and (max_count := traps.max_parameter_repeats) is not None:
        pair = repeated_parameter(query, max_count)
        return None if pair is None else f"parameter {pair!r} occurs more than {max_count} times"
    return None
