"""The live display of a run: a few calm lines, redrawn in place, that fit the terminal whatever its width."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from cli.pace import Pace, amount, clock, count, rate
from shared.domain.explain import meaning
from shared.wire.messages import Progress

_LABEL: Final = 10
_SEPARATOR: Final = "  "
_WIDEST: Final = 110


class LiveDisplay:
    """Draws on stderr. Falls silent for good when the terminal is gone."""

    def __init__(self, title: str, pace: Pace, *, now: Callable[[], float] = time.monotonic) -> None:
        self._title = title
        self._pace = pace
        self._now = now
        self._latest: Progress | None = None
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
            self._live.update(picture(self._title, self._latest, self._pace, self._now(), width), refresh=True)
        except OSError:
            self.hang_up()

    def hang_up(self) -> None:
        self._live = None

    def close(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            with suppress(OSError):
                live.stop()


def picture(title: str, progress: Progress | None, pace: Pace, now: float, width: int) -> RenderableType:
    """The display at `width` columns."""
    elapsed = clock(now - pace.started)
    if progress is None:
        return Group(_spread(Text(title, "bold"), Text(f"starting  {elapsed}", "dim"), width))
    return Group(
        _spread(Text(title, "bold"), Text(_state(progress, pace, elapsed), "cyan"), width),
        *(_line(label, parts, width, style) for label, parts, style in _facts(progress, pace, now) if parts),
    )


def _state(progress: Progress, pace: Pace, elapsed: str) -> str:
    left = pace.left_s(progress) if progress.state == "running" else None
    return f"{progress.state}  {elapsed}" + (f"  about {clock(left)} left" if left is not None else "")


def _facts(progress: Progress, pace: Pace, now: float) -> list[tuple[str, list[str], str]]:
    """The lines: label, what to say (most telling first), style."""
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
                f"{count(progress.hosts_in_motion)} in motion",
                f"{count(progress.hosts_known)} known",
                _workers(progress),
            ],
            "",
        ),
        ("answers", [f"{name} {count(n)}" for name, n in status_classes(tallies.get("status", {})).items()], ""),
        ("errors", _ranked(errors(tallies)), "yellow"),
        ("excluded", _ranked(tallies.get("excluded", {})), "dim"),
        ("slowest", _slowest(progress), "dim"),
        ("given up", [f"{count(progress.dead_letters)} dead letters"] if progress.dead_letters else [], "yellow"),
        ("alarm", list(progress.alarms[-2:]), "bold red"),
    ]


def status_classes(statuses: Mapping[str, int]) -> dict[str, int]:
    """HTTP statuses gathered into `2xx`, `3xx` ..., in that order."""
    classes: dict[str, int] = {}
    for status, n in sorted(statuses.items()):
        name = f"{status[:1]}xx" if status[:1] in tuple("12345") and len(status) == 3 else "other"
        classes[name] = classes.get(name, 0) + n
    return classes


def errors(tallies: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Failures by kind: of URLs that failed for good, and of hosts that could not be visited."""
    found = dict(tallies.get("failed", {}))
    for kind, n in tallies.get("host_failures", {}).items():
        found[kind] = found.get(kind, 0) + n
    return found


def _ranked(counts: Mapping[str, int]) -> list[str]:
    return [f"{meaning(name).short} {count(n)}" for name, n in sorted(counts.items(), key=lambda item: -item[1]) if n]


def _slowest(progress: Progress) -> list[str]:
    if not progress.slowest:
        return []
    host = progress.slowest[0]
    parts = [host.host, f"{host.latency_ms / 1000:.1f} s an answer", f"{count(host.queued)} waiting"]
    if host.blocked_ms > 0:
        parts.append(f"left alone for {clock(host.blocked_ms / 1000)}")
    return parts


def _workers(progress: Progress) -> str:
    n = len(progress.workers)
    busy = sum(worker.busy for worker in progress.workers)
    return f"{n} worker{'' if n == 1 else 's'} with {busy} visits" if n else "no worker yet"


def _spread(left: Text, right: Text, width: int) -> Text:
    """`left` and `right` at the two ends of a line; a left side that is too long is cut."""
    left.truncate(max(8, width - len(right) - 2), overflow="ellipsis")
    line = Text(no_wrap=True, overflow="ellipsis").append_text(left)
    line.append(" " * max(2, width - len(left) - len(right)))
    return line.append_text(right)


def _line(label: str, parts: Sequence[str], width: int, style: str) -> Text:
    line = Text(f"  {label:<{_LABEL}}", "dim", no_wrap=True, overflow="ellipsis")
    return line.append(fitted(parts, width - _LABEL - 2), style)


def fitted(parts: Sequence[str], width: int) -> str:
    """As many of `parts`, from the first on, as fit into `width`; the first is cut rather than left out."""
    text = parts[0] if len(parts[0]) <= width else parts[0][: max(1, width - 1)] + "…"
    for part in parts[1:]:
        if len(text) + len(_SEPARATOR) + len(part) > width:
            break
        text += _SEPARATOR + part
    return text
