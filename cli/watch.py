"""Who is told how a run goes: nobody, the readers of plain lines, or (display.py) somebody at a terminal."""

import sys
import time
from collections.abc import Callable
from typing import Final, Protocol, TextIO

from cli.pace import Pace, amount, clock, count, rate
from cli.tally import ranked
from cli.waits import blocking, partly, told_waits
from shared.wire.messages import Progress

LINE_EVERY_S: Final = 5.0


class Watch(Protocol):
    """Hears of a run's progress. Nothing here may end a run: what cannot be shown is not shown."""

    def progress(self, progress: Progress) -> None:
        """What the master tells, about twice a second."""
        ...

    def note(self, line: str) -> None:
        """Something a person should know now."""
        ...

    def tick(self) -> None:
        """Called about twice a second."""
        ...

    def phase(self, name: str) -> None:
        """What the run is doing now, where that is more than the crawl's own state."""
        ...

    def hang_up(self) -> None:
        """The terminal is gone: say nothing more."""
        ...

    def close(self) -> None: ...


class Silent:
    """Says nothing but notes, and those only if told to."""

    def __init__(self, *, notes: bool = True) -> None:
        self._notes = notes

    def progress(self, progress: Progress) -> None: ...

    def note(self, line: str) -> None:
        if self._notes:
            say(line)

    def tick(self) -> None: ...

    def phase(self, name: str) -> None: ...

    def hang_up(self) -> None:
        self._notes = False

    def close(self) -> None: ...


class PlainLines:
    """A line about every five seconds, for logs and pipes."""

    def __init__(self, pace: Pace, *, unblock: str = "--unblock", now: Callable[[], float] = time.monotonic) -> None:
        """`unblock`: the command that lifts a wait."""
        self._pace = pace
        self._unblock = unblock
        self._now = now
        self._latest: Progress | None = None
        self._said_at = pace.started
        self._open = True

    def progress(self, progress: Progress) -> None:
        self._latest = progress
        self._pace.seen(progress, self._now())

    def note(self, line: str) -> None:
        if self._open:
            say(line)

    def tick(self) -> None:
        now = self._now()
        if self._open and self._latest is not None and now - self._said_at >= LINE_EVERY_S:
            self._said_at = now
            say(plain_line(self._latest, self._pace, now, self._unblock))

    def phase(self, name: str) -> None: ...

    def hang_up(self) -> None:
        self._open = False

    def close(self) -> None: ...


def plain_line(progress: Progress, pace: Pace, now: float, unblock: str = "--unblock") -> str:
    """Return how a crawl stands, in one line; if it waits, the line begins with the reason and what changes it."""
    counters = progress.counters
    waits = blocking(progress, unblock)
    state = "".join(f"{said} | " for said in waits) or f"{progress.state}: "
    parts = [
        f"{clock(now - pace.started)} {state}{count(counters.get('pages', 0))} pages",
        f"{rate(pace.pages.per_s)} (average {rate(pace.average(now))})",
        amount(counters.get("bytes", 0)),
        f"{count(counters.get('queued', 0))} queued",
        f"{count(counters.get('leased', 0))} in flight",
    ]
    if hosts := progress.hosts_in_motion:
        parts.append(f"{count(hosts)} host{'' if hosts == 1 else 's'}")
    parts += [f"{count(counters[name])} {name}" for name in ("failed", "excluded") if counters.get(name)]
    if troubled := ranked(progress.tallies.get("host_failures", {})):
        parts.append(f"hosts that could not be visited: {troubled[0]}")
    parts += partly(told_waits(progress))
    left = pace.left_s(progress)
    if left is not None:
        parts.append(f"about {clock(left)} left")
    return ", ".join(parts)


def say(line: str, to: TextIO | None = None) -> None:
    """One line on stderr; a reader that left is no reason to stop."""
    stream = sys.stderr if to is None else to
    try:
        print(f"orb: {line}", file=stream, flush=True)
    except OSError:
        # Nobody reads any more; the log in the folder has it.
        return
