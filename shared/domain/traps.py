"""Signs that a URL comes from an endless space (relative links that resolve deeper and deeper, parameters piling up).

Found in other crawlers' rules (StormCrawler's basic URL filter, Heritrix' pathological path rule): a path segment that
repeats too often, a path of ten or more segments in which two or more of them cycle, and a parameter repeated with the
same value. They judge the URL alone, so that the same URL has the same verdict whoever finds it.
"""

from collections import Counter
from typing import Final

from shared.domain.crawl import Traps

CYCLE_SEGMENTS: Final = 10
CYCLE_DISTINCT: Final = 2
CYCLE_TIMES: Final = 3


def repeated_segment(path: str, most: int) -> str | None:
    """The path segment that stands more than `most` times in `path`, or None. Empty segments (`//`) count alike."""
    segments = path.split("/")
    if len(segments) - len(set(segments)) < most:
        return None
    segment, times = Counter(segments[1:]).most_common(1)[0]
    return segment if times > most else None


def cycling_segments(path: str) -> tuple[str, ...]:
    """The segments that cycle: at least `CYCLE_DISTINCT` of them, each `CYCLE_TIMES` times or more, in a path of at
    least `CYCLE_SEGMENTS` segments; empty if they do not."""
    if path.count("/") < CYCLE_SEGMENTS:
        return ()
    often = tuple(part for part, times in Counter(path.split("/")[1:]).items() if times >= CYCLE_TIMES and part)
    return often if len(often) >= CYCLE_DISTINCT else ()


def repeated_parameter(query: str, most: int) -> str | None:
    """The `key=value` that stands more than `most` times in `query` (no leading `?`), or None."""
    if query.count("&") < most:
        return None
    counts = Counter(part for part in query.split("&") if part)
    pair, times = counts.most_common(1)[0] if counts else ("", 0)
    return pair if times > most else None


def trap(canonical: str, traps: Traps) -> str | None:
    """Why the canonical URL looks like a trap under the limits of `traps`, or None."""
    rest = canonical[canonical.index("/", 8) :]
    path, _, query = rest.partition("?")
    if (most := traps.max_segment_repeats) is not None and (segment := repeated_segment(path, most)) is not None:
        return f"path segment {segment!r} stands more than {most} times"
    if traps.cycles and (segments := cycling_segments(path)):
        return f"path segments {', '.join(segments)} cycle"
    if query and (most := traps.max_parameter_repeats) is not None:
        pair = repeated_parameter(query, most)
        return None if pair is None else f"parameter {pair!r} stands more than {most} times"
    return None
