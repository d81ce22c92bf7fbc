"""The end of a worker in good order: what is in hand is reported, unless there is nobody to report it to."""

import asyncio
from contextlib import suppress
from typing import Final

import structlog

from shared.domain.errors import Permanent, Transient, Unusable
from shared.ports.broker import Broker
from shared.ports.clock import Clock
from shared.supervise import Tasks
from workers.runtime import Runtime

log = structlog.get_logger(__name__)

LAST_REPORTS_S: Final = 10.0
"""How long, after the grace, the last reports may take before the shards are handed back instead."""

SILENT_S: Final = 5.0
"""A broker that has answered nothing for so long by then, and to none of `_UNANSWERED` questions in a row, or only that
it keeps no reports, is not waited for: the reports are those of shards that come again."""

_UNANSWERED: Final = 2
"""One question alone may be waited for as long as SILENT_S: that a loaded server takes longer over it says little."""

_ASK_S: Final = 0.5


async def cut_short(runtime: Runtime, visits: Tasks, broker: Broker, clock: Clock, *, grace_s: float) -> None:
    """End the visits that outlast the grace: halted then, and cancelled LAST_REPORTS_S later, or as soon as the broker
    has been silent for SILENT_S. Cancel this when they have ended by themselves."""
    silent = asyncio.Event()
    async with Tasks() as beside:
        beside.start("drain.listen", listen(broker, clock, silent))
        await asyncio.sleep(grace_s)
        runtime.halt()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_REPORTS_S):
                await silent.wait()
    log.warning("worker.reports_missed", visits=len(visits), broker="silent" if silent.is_set() else "slow")
    visits.cancel()


async def listen(broker: Broker, clock: Clock, silent: asyncio.Event) -> None:
    """Keep `silent` as it is: set while the broker has answered nothing for SILENT_S since this began, and to none of
    several questions, or only that it keeps no reports; until cancelled."""
    heard, unanswered = clock.elapsed(), 0
    while True:
        try:
            await broker.reports_state()
        except (Transient, Permanent, Unusable):
            unanswered += 1
            if unanswered >= _UNANSWERED and clock.elapsed() - heard >= SILENT_S:
                silent.set()
        else:
            heard, unanswered = clock.elapsed(), 0
            silent.clear()
        await asyncio.sleep(_ASK_S)
