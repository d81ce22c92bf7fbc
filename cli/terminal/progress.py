"""Ways to show the progress of a run: only messages, or also a line every few seconds.

The live display is in display.py."""

import sys
import time
from collections.abc import Callable
from typing import Final, Protocol, TextIO

from cli.terminal.display_rates import ProgressRates, amount, clock, count, rate
from cli.terminal.summary_counts import ranked
from cli.terminal.wait_messages import blocking, partly, waits_of
from shared.wire.messages import Progress

LINE_EVERY_S: Final = 5.0


class Watch(Protocol):
    """Shows the progress of a run to the user. An error of the output is ignored, so that it cannot end a run."""

    def progress(self, progress: Progress) -> None:
        """Record the newest progress from the master, which arrives about twice a second. `tick` shows it."""

    def note(self, line: str) -> None:
        """Show a message to the user at once."""

    def tick(self) -> None:
        """Show the newest progress and the elapsed time. The run calls this about twice a second."""

    def phase(self, name: str) -> None:
        """Show `name`, what the run does now (such as `stopping`), instead of the crawl's state."""

    def hang_up(self) -> None:
        """Stop all output, because the terminal is gone."""

    def close(self) -> None: ...


class Silent:
    """Shows only messages and no progress. Shows nothing at all if `notes` is False."""

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
    """Prints a line with the progress of a run about every five seconds, for logs and pipes."""

    def __init__(
        self, pace: ProgressRates, *, unblock: str = "--unblock", now: Callable[[], float] = time.monotonic
    ) -> None:
        """Start the output.

        - `pace`: the rates of the run. This object updates them at each progress update.
        - `unblock`: the command that ends the waits of hosts. The lines show it to the user.
        - `now` returns monotonic seconds.
        """
        self._pace = pace
        self._unblock = unblock
        self._now = now
        self._latest: Progress | None = None
        self._printed_at = pace.started
        self._open = True

    def progress(self, progress: Progress) -> None:
        self._latest = progress
        self._pace.seen(progress, self._now())

    def note(self, line: str) -> None:
        if self._open:
            say(line)

    def tick(self) -> None:
        now = self._now()
        if self._open and self._latest is not None and now - self._printed_at >= LINE_EVERY_S:
            self._printed_at = now
            say(plain_line(self._latest, self._pace, now, self._unblock))

    def phase(self, name: str) -> None: ...

    def hang_up(self) -> None:
        self._open = False

    def close(self) -> None: ...


def plain_line(progress: Progress, pace: ProgressRates, now: float, unblock: str = "--unblock") -> str:
    """Return the progress of a run in one line. If the crawl waits, the reason and the remedy come before the numbers.

    `now` is in monotonic seconds. `unblock` is the command that ends the waits of hosts.
    """
    counters = progress.counters
    waits = blocking(progress, unblock)
    state = "".join(f"{wait} | " for wait in waits) or f"{progress.state}: "
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
    parts += partly(waits_of(progress))
    left = pace.left_s(progress)
    if left is not None:
        parts.append(f"about {clock(left)} left")
    return ", ".join(parts)


def say(line: str, to: TextIO | None = None) -> None:
    """Print `orb: ` and `line` to stderr, or to the stream `to`. Ignore errors, such as a closed stream."""
    stream = sys.stderr if to is None else to
    try:
        print(f"orb: {line}", file=stream, flush=True)
    except OSError:
        # stderr is closed; the log in the folder has the line.
        return
