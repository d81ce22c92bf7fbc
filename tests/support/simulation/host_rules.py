"""What operators and failures laid upon hosts, as the simulated database had it over time."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from tests.support.simulation.world import EPOCH_MS

_RULES: Final = "SELECT host, max(blocked_until_ms, operator_blocked_until_ms), operator_delay_ms FROM hosts"


@dataclass(eq=False)
class DatedRules:
    """What a host has from `at` on.

    `known_from`: its owner had it in memory by then, since a later transaction of that owner or its successor was in.
    """

    at: float
    term: int
    blocked_until_ms: int
    delay_ms: int
    known_from: float | None = None


@dataclass(eq=False)
class HostRules:
    """The history of every host's block and operator's delay.

    `trusted` is off once an owner's wall clock was set: owners tell by it how long a block lasts.
    """

    trusted: bool = True
    _hosts: dict[str, list[DatedRules]] = field(default_factory=dict)

    def written(self, rows: Callable[[str], list[Any]], now: float, term: int) -> None:
        """A transaction of the owner under `term` is in."""
        for laid in (laid for history in self._hosts.values() for laid in history):
            if laid.known_from is None and laid.term <= term:
                laid.known_from = now
        for host, blocked_until_ms, delay_ms in rows(_RULES):
            history = self._hosts.setdefault(host, [DatedRules(0.0, 0, 0, 0, 0.0)])
            if (history[-1].blocked_until_ms, history[-1].delay_ms) != (blocked_until_ms, delay_ms):
                history.append(DatedRules(now, term, blocked_until_ms, delay_ms))

    def breach(self, host: str, now: float, asked: float) -> str | None:
        """Why no request may start now for a visit whose last answered question was sent at `asked`; None if it may."""
        since = self._since(host, asked)
        until_ms = min((laid.blocked_until_ms for laid in since), default=0)
        if self.trusted and until_ms > EPOCH_MS + now * 1000 + 1:
            return f"it is blocked since {since[0].at:.3f}, which its owner knew at {asked:.3f}"
        return None

    def delay_s(self, host: str, asked: float) -> float:
        """The operator's delay that a visit must keep whose last answered question was sent at `asked`."""
        return min((laid.delay_ms for laid in self._since(host, asked)), default=0) / 1000

    def _since(self, host: str, asked: float) -> list[DatedRules]:
        """Return what was known before it asked, and what came later. Within one instant no order is known."""
        history = self._hosts.get(host, [])
        known = [n for n, laid in enumerate(history) if laid.known_from is not None and laid.known_from < asked]
        return history[known[-1] :] if known else []
