"""The live display of a run: a few lines at the bottom of the terminal that are redrawn in place."""

import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from cli.terminal.display_rates import ProgressRates, amount, clock, count, rate
from cli.terminal.summary_counts import errors, ranked, status_classes
from cli.terminal.wait_messages import blocking, partly, waits_of
from shared.wire.messages import Progress

_LABEL: Final = 10
_TITLE: Final = 10
"""The estimate of the remaining time is shown only if at least this many columns are left for the title."""

_SEPARATOR: Final = "  "
_WIDEST: Final = 110


class LiveDisplay:
    """Shows the progress of a run on stderr in a few lines, redrawn in place (the protocol `Watch` of progress.py).

    It stops drawing when the terminal is gone.
    """

    def __init__(
        self, title: str, pace: ProgressRates, *, unblock: str = "--unblock", now: Callable[[], float] = time.monotonic
    ) -> None:
        """Start the display.

        - `title`: the text at the left of the first line, such as the name of the crawl's folder.
        - `pace`: the rates of the run. This object updates them at each progress update.
        - `unblock`: the command that ends the waits of hosts. The display shows it to the user.
        - `now` returns monotonic seconds.
        """
        self._title = title
        self._unblock = unblock
        self._pace = pace
        self._now = now
        self._latest: Progress | None = None
        self._phase: str | None = None
        self._console = Console(file=sys.stderr, highlight=False, markup=False)
        self._live: Live | None = Live(
            console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._live.start()

    def progress(self, progress: Progress) -> None:
        self._latest = progress
        self._pace.seen(progress, self._now())

    def note(self, line: str) -> None:
        if self._live is not None:
            with suppress(OSError):
                self._console.print(Text(f"orb: {line}"))

    def tick(self) -> None:
        if self._live is None:
            return
        width = min(self._console.width, _WIDEST) - 1
        try:
            drawn = picture(
                self._title, self._latest, self._pace, self._now(), width, phase=self._phase, unblock=self._unblock
            )
            self._live.update(drawn, refresh=True)
        except OSError:
            self.hang_up()

    def phase(self, name: str) -> None:
        self._phase = name
        self.tick()

    def hang_up(self) -> None:
        self._live = None

    def close(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            with suppress(OSError):
                live.stop()


def picture(
    title: str,
    progress: Progress | None,
    pace: ProgressRates,
    now: float,
    width: int,
    *,
    phase: str | None = None,
    unblock: str = "--unblock",
) -> RenderableType:
    """Return the lines of the display, for a terminal with `width` columns.

    - `progress`: the latest progress, None before the first.
    - `now`: monotonic seconds.
    - `phase`: what the run does, shown instead of the crawl's state. None: show the state.
    - `unblock`: the command that ends the waits of hosts. The display shows it to the user.
    """
    elapsed = clock(now - pace.started)
    if progress is None:
        return Group(_spread(Text(title, "bold"), Text(f"{phase or 'starting'}  {elapsed}", "dim"), width))
    return Group(
        _spread(Text(title, "bold"), Text(_state(progress, pace, elapsed, phase, width), "cyan"), width),
        *(_wrapped(part, width) for part in (blocking(progress, unblock) if phase is None else ())),
        *(_line(label, parts, width, style) for label, parts, style in _facts(progress, pace, now) if parts),
    )


def _state(progress: Progress, pace: ProgressRates, elapsed: str, phase: str | None, width: int) -> str:
    left = pace.left_s(progress) if progress.state == "running" and phase is None else None
    state = f"{phase or progress.state}  {elapsed}"
    estimate = f"  about {clock(left)} left" if left is not None and left >= 1 else ""
    return state + estimate if len(state + estimate) + _TITLE <= width else state


def _facts(progress: Progress, pace: ProgressRates, now: float) -> list[tuple[str, list[str], str]]:
    """Return each line of the display as its label, its parts (the most important first), and the style of the text.

    A line without parts is not shown.
    """
    counters = progress.counters
    tallies = progress.tallies
    return [
        (
            "pages",
            [
                count(counters.get("pages", 0)),
                rate(pace.pages.per_s),
                f"average {rate(pace.average(now))}",
                amount(counters.get("bytes", 0)),
            ],
            "",
        ),
        (
            "queue",
            [
                f"{count(counters.get('queued', 0))} waiting",
                f"{count(counters.get('leased', 0))} in flight",
                f"{count(counters.get('discovered', 0))} URLs known",
            ],
            "",
        ),
        (
            "hosts",
            [
                *([f"{count(progress.hosts_in_motion)} in motion"] if progress.hosts_in_motion else []),
                *([f"{count(progress.hosts_known)} known"] if progress.hosts_known else []),
                *partly(waits_of(progress)),
                _workers(progress),
            ],
            "",
        ),
        ("answers", [f"{name} {count(n)}" for name, n in status_classes(tallies.get("status", {})).items()], ""),
        ("errors", ranked(errors(tallies)), "yellow"),
        ("excluded", ranked(tallies.get("excluded", {})), "dim"),
        ("left out", [f"{each} links" for each in ranked(tallies.get("left_out", {}))], "dim"),
        ("slowest", _slowest(progress), "dim"),
        ("given up", [f"{count(progress.dead_letters)} dead letters"] if progress.dead_letters else [], "yellow"),
        ("alarm", list(progress.alarms[-2:]), "bold red"),
    ]


def _slowest(progress: Progress) -> list[str]:
    if not progress.slowest:
        return []
    host = progress.slowest[0]
    parts = [host.host, f"{_latency(host.latency_ms)} an answer", f"{count(host.queued)} waiting"]
    if host.blocked_ms > 0:
        parts.append(f"blocked for {clock(host.blocked_ms / 1000)}")
    return parts


def _latency(ms: int) -> str:
    return f"{ms} ms" if ms < 1000 else f"{ms / 1000:.1f} s"


def _workers(progress: Progress) -> str:
    n = len(progress.workers)
    busy = sum(worker.busy for worker in progress.workers)
    return f"{n} worker{'' if n == 1 else 's'}, {busy} visit{'' if busy == 1 else 's'}" if n else "no worker yet"


def _spread(left: Text, right: Text, width: int) -> Text:
    """Return a line of `width` columns with `left` at its left end and `right` at its right end.

    Cut `left` if too long.
    """
    left.truncate(max(8, width - len(right) - 2), overflow="ellipsis")
    line = Text(no_wrap=True, overflow="ellipsis").append_text(left)
    line.append(" " * max(2, width - len(left) - len(right)))
    return line.append_text(right)


def _wrapped(sentence: str, width: int) -> Text:
    """Return the sentence broken into lines of at most `width` columns, so that no part of it is cut."""
    inner = max(1, width - 2)
    return Text("\n".join(f"  {line}" for line in textwrap.wrap(sentence, inner)), "bold yellow", no_wrap=True)


def _line(label: str, parts: Sequence[str], width: int, style: str) -> Text:
    line = Text(f"  {label:<{_LABEL}}", "dim", no_wrap=True, overflow="ellipsis")
    return line.append(fitted(parts, width - _LABEL - 2), style)


def fitted(parts: Sequence[str], width: int) -> str:
    """Join as many of `parts` as fit into `width` characters, beginning with the first. Omit the others.

    If the first part alone is too long, cut it.
    """
    text = parts[0] if len(parts[0]) <= width else parts[0][: max(1, width - 1)] + "…"
    for part in parts[1:]:
        if len(text) + len(_SEPARATOR) + len(part) > width:
            break
        text += _SEPARATOR + part
    return text
