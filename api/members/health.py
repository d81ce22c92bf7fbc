"""Decide whether this master is fit to lead: its event loop runs, and the engines (database and NATS) respond.

While a leader's session in etcd lasts, no other master can lead, even if the leader cannot work. So an unfit leader
resigns, and a master campaigns only while it is fit.

A master becomes unfit only after an engine was silent, or its event loop stalled, for some time. It becomes fit only
after some time without any failure. So its fitness does not change with every failed request.

`health_after` makes the decision, without I/O.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, assert_never

import structlog

from shared.domain.errors import Permanent, Transient, Unusable
from shared.ports.clock import Clock
from shared.runtime.stalls import StallWatch, unsaid
from shared.runtime.supervise import Tasks

log = structlog.get_logger("orb.control")

Probe = Callable[[], Awaitable[object]]
"""Sends an engine a small request."""

SilentFor = Callable[[], float]
"""Returns the seconds since an engine last answered."""

EVERY_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class HealthLimits:
    """The limits, in seconds, at which a master becomes unfit to lead.

    It is unfit after the database or NATS was silent for `silent_s`, or its event loop stalled for `stalled_s`. It is
    fit again after `well_s` without a failed probe or an observed stall.
    """

    silent_s: float = 6.0
    stalled_s: float = 5.0
    well_s: float = 5.0


@dataclass(frozen=True, slots=True)
class ProbeAnswered:
    """Observation: an engine (database or NATS) answered its probe."""

    engine: str


@dataclass(frozen=True, slots=True)
class ProbeMissed:
    """Observation: an engine (database or NATS) did not answer its probe."""

    engine: str


@dataclass(frozen=True, slots=True)
class LoopStalled:
    """Observation: the event loop stalled for `seconds`."""

    seconds: float


Observation = ProbeAnswered | ProbeMissed | LoopStalled


@dataclass(frozen=True, slots=True)
class HealthState:
    """What was observed of a master's health so far.

    `answered` is the time of the last answer of each engine (the database and NATS), `wrong_at` the time of the last
    failure (`Clock.elapsed`). `ailment` is why the master is unfit to lead, None while it is fit.
    """

    answered: Mapping[str, float] = field(default_factory=dict)
    wrong_at: float | None = None
    ailment: str | None = None


def health_after(condition: HealthState, seen: Observation, now: float, rules: HealthLimits) -> HealthState:
    """Return a master's health after `seen` was observed at `now` (`Clock.elapsed`).

    The silence of an engine (the database or NATS) counts from its last answer. If it never answered, it
    counts from the first probe that the engine missed.
    """
    match seen:
        case ProbeAnswered(engine):
            known = replace(condition, answered={**condition.answered, engine: now})
            return replace(known, ailment=None) if _recovered(known, now, rules) else known
        case ProbeMissed(engine):
            since = condition.answered.get(engine, now)
            known = replace(condition, answered={**condition.answered, engine: since}, wrong_at=now)
            silent_s = now - since
            return _unfit(known, f"{engine} is silent for {silent_s:.1f} s") if silent_s >= rules.silent_s else known
        case LoopStalled(seconds):
            known = replace(condition, wrong_at=now)
            return _unfit(known, f"the loop stood still for {seconds:.1f} s") if seconds >= rules.stalled_s else known
        case never:
            assert_never(never)


def _unfit(condition: HealthState, ailment: str) -> HealthState:
    """Return `condition` as the state of an unfit master.

    If `condition` has no reason yet, the reason is `ailment`. Otherwise `condition` is returned unchanged.
    """
    return condition if condition.ailment is not None else replace(condition, ailment=ailment)


def _recovered(condition: HealthState, now: float, rules: HealthLimits) -> bool:
    """Return True if an unfit master is fit again.

    That is so if nothing failed for `well_s`, and every engine has answered since the last failure.
    """
    wrong_at = condition.wrong_at
    if condition.ailment is None or wrong_at is None:
        return False
    return now - wrong_at >= rules.well_s and all(at > wrong_at for at in condition.answered.values())


class HealthMonitor:
    """Decides whether this master is fit to lead. Tasks wait for its decision with `fit` and `unfit`.

    While `run` runs, it probes the engines (database and NATS; at least one) and watches the event loop for stalls.
    """

    def __init__(
        self,
        probes: Mapping[str, Probe],
        clock: Clock,
        rules: HealthLimits | None = None,
        *,
        every_s: float = EVERY_S,
        silent_s: Mapping[str, SilentFor] = MappingProxyType({}),
    ) -> None:
        """Set up the monitor.

        - `probes`: by engine, a function that sends the engine a request and raises an error if no answer comes.
        - `every_s`: the seconds between two probes.
        - `silent_s`: by engine, a function that returns the seconds since the engine last answered any request. If an
          engine answered another request during a failed probe, the probe counts as answered.
        """
        self._probes = probes
        self._silent_s = silent_s
        self._clock = clock
        self._rules = rules or HealthLimits()
        self._every_s = every_s
        self._condition = HealthState()
        self._turned = asyncio.Event()

    def __repr__(self) -> str:
        return f"<HealthMonitor {self.ailment or 'fit'}>"

    @property
    def ailment(self) -> str | None:
        """Why this master is unfit to lead; None while it is fit."""
        return self._condition.ailment

    async def fit(self) -> None:
        """Wait until this master is fit to lead."""
        while self.ailment is not None:
            await self._turned.wait()

    async def unfit(self) -> str:
        """Wait until this master is unfit to lead. Return the reason."""
        while (ailment := self.ailment) is None:
            await self._turned.wait()
        return ailment

    async def run(self) -> None:
        """Probe the engines (database and NATS) and watch the event loop for stalls, until cancelled."""
        watch = StallWatch(self._clock, self._on_stall, least_s=self._rules.stalled_s / 2, stuck=unsaid)
        async with Tasks() as tasks:
            for engine, probe in self._probes.items():
                tasks.start(f"health.{engine}", self._attend(engine, probe))
            with watch.watching():
                await asyncio.Event().wait()

    def observe(self, seen: Observation) -> None:
        """Update the health with one observation. Log it if the master becomes fit or unfit."""
        before = self.ailment
        self._condition = health_after(self._condition, seen, self._clock.elapsed(), self._rules)
        if self.ailment != before:
            if self.ailment is None:
                log.info("health.restored", reason=before)
            else:
                log.warning("health.degraded", reason=self.ailment)
            turned, self._turned = self._turned, asyncio.Event()
            turned.set()

    async def _attend(self, engine: str, probe: Probe) -> None:
        self.observe(ProbeAnswered(engine))  # It answered already, or this master would not have started.
        while True:
            await asyncio.sleep(self._every_s)
            began = self._clock.elapsed()
            try:
                async with asyncio.timeout(self._rules.silent_s / 2):
                    await probe()
            except (Transient, Permanent, Unusable, TimeoutError) as error:
                silent_s = self._silent_s.get(engine)
                if silent_s is not None and silent_s() < self._clock.elapsed() - began:
                    log.info("health_probe.delayed", engine=engine, error=str(error) or type(error).__name__)
                    self.observe(ProbeAnswered(engine))
                    continue
                log.warning("health_probe.failed", engine=engine, error=str(error) or type(error).__name__)
                self.observe(ProbeMissed(engine))
            else:
                self.observe(ProbeAnswered(engine))

    def _on_stall(self, seconds: float) -> None:
        self.observe(LoopStalled(seconds))
