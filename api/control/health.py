"""Whether this master is fit to lead: its event loop runs, and the engines that a leader needs answer it.

A leader that keeps its session but gets nothing done keeps everybody else from leading. So one that is unfit resigns,
and a master campaigns only while it is fit. What is decided is pure (`after`); so that nobody leads and resigns in
turns, unfit takes a while of silence, and fit a while in which nothing at all went wrong.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, assert_never

import structlog

from shared.domain.errors import Permanent, Transient, Unusable
from shared.ports.clock import Clock
from shared.stalls import StallWatch, unsaid
from shared.supervise import Tasks

log = structlog.get_logger("orb.control")

Probe = Callable[[], Awaitable[object]]
"""Asks an engine something small."""

EVERY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class HealthRules:
    """Seconds. An engine silent for `silent_s`, or a loop that stood still for `stalled_s`, makes a master unfit; it is
    fit again when for `well_s` no probe failed and the loop stood still for no more than a moment."""

    silent_s: float = 6.0
    stalled_s: float = 5.0
    well_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Answered:
    """An engine answered its probe."""

    engine: str


@dataclass(frozen=True, slots=True)
class Missed:
    """An engine did not."""

    engine: str


@dataclass(frozen=True, slots=True)
class StoodStill:
    """The event loop did nothing for `seconds`."""

    seconds: float


Observation = Answered | Missed | StoodStill


@dataclass(frozen=True, slots=True)
class Condition:
    """What was observed so far. `answered`: when each engine last did. `wrong_at`: when something was last amiss.
    `ailment`: why the master is unfit to lead, None while it is fit."""

    answered: Mapping[str, float] = field(default_factory=dict)
    wrong_at: float | None = None
    ailment: str | None = None


def after(condition: Condition, seen: Observation, now: float, rules: HealthRules) -> Condition:
    """The condition once `seen` was observed at `now`. An engine counts as answering until its first probe."""
    match seen:
        case Answered(engine):
            known = replace(condition, answered={**condition.answered, engine: now})
            return replace(known, ailment=None) if _recovered(known, now, rules) else known
        case Missed(engine):
            since = condition.answered.get(engine, now)
            known = replace(condition, answered={**condition.answered, engine: since}, wrong_at=now)
            silent_s = now - since
            return _unfit(known, f"{engine} is silent for {silent_s:.1f} s") if silent_s >= rules.silent_s else known
        case StoodStill(seconds):
            known = replace(condition, wrong_at=now)
            return _unfit(known, f"the loop stood still for {seconds:.1f} s") if seconds >= rules.stalled_s else known
        case never:
            assert_never(never)


def _unfit(condition: Condition, ailment: str) -> Condition:
    """The first reason stands."""
    return condition if condition.ailment is not None else replace(condition, ailment=ailment)


def _recovered(condition: Condition, now: float, rules: HealthRules) -> bool:
    """Whether nothing was amiss for long enough, and every engine has said so since."""
    wrong_at = condition.wrong_at
    if condition.ailment is None or wrong_at is None:
        return False
    return now - wrong_at >= rules.well_s and all(at > wrong_at for at in condition.answered.values())


class Health:
    """Probes the engines, one at least, and watches the loop while `run` runs; anybody may wait for the verdict."""

    def __init__(
        self, probes: Mapping[str, Probe], clock: Clock, rules: HealthRules | None = None, *, every_s: float = EVERY_S
    ) -> None:
        self._probes = probes
        self._clock = clock
        self._rules = rules or HealthRules()
        self._every_s = every_s
        self._condition = Condition()
        self._turned = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Health {self.ailment or 'fit'}>"

    @property
    def ailment(self) -> str | None:
        """Why this master is unfit to lead; None while it is fit."""
        return self._condition.ailment

    async def fit(self) -> None:
        """Wait until this master is fit to lead."""
        while self.ailment is not None:
            await self._turned.wait()

    async def unfit(self) -> str:
        """Wait until it is not; the ailment."""
        while (ailment := self.ailment) is None:
            await self._turned.wait()
        return ailment

    async def run(self) -> None:
        """Until cancelled."""
        watch = StallWatch(self._clock, self._stood_still, least_s=self._rules.stalled_s / 2, stuck=unsaid)
        async with Tasks() as tasks:
            for engine, probe in self._probes.items():
                tasks.start(f"health.{engine}", self._attend(engine, probe))
            with watch.watching():
                await asyncio.Event().wait()

    def observe(self, seen: Observation) -> None:
        """Take an observation into account."""
        before = self.ailment
        self._condition = after(self._condition, seen, self._clock.elapsed(), self._rules)
        if self.ailment != before:
            if self.ailment is None:
                log.info("health.fit", was=before)
            else:
                log.warning("health.unfit", reason=self.ailment)
            turned, self._turned = self._turned, asyncio.Event()
            turned.set()

    async def _attend(self, engine: str, probe: Probe) -> None:
        self.observe(Answered(engine))  # it did, or this master would not have started
        while True:
            await asyncio.sleep(self._every_s)
            try:
                async with asyncio.timeout(self._rules.silent_s / 2):
                    await probe()
            except (Transient, Permanent, Unusable, TimeoutError) as error:
                log.warning("health.missed", engine=engine, reason=str(error) or type(error).__name__)
                self.observe(Missed(engine))
            else:
                self.observe(Answered(engine))

    def _stood_still(self, seconds: float) -> None:
        self.observe(StoodStill(seconds))
