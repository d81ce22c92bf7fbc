"""Ends a worker's visits when the time for its drain is over.

The visits may still report their results, as long as the broker answers.
"""

import asyncio
from contextlib import suppress
from typing import Final

import structlog

from shared.domain.errors import Permanent, Transient, Unusable
from shared.ports.broker import Broker
from shared.ports.clock import Clock
from shared.runtime.supervise import Tasks
from workers.runtime import Runtime

log = structlog.get_logger(__name__)

LAST_REPORTS_S: Final = 10.0
"""How many seconds a visit may still report results after it was stopped. After that it is cancelled."""

SILENT_S: Final = 5.0
"""The broker is silent if both are true:

- It has not answered for this many seconds.
- The last `_UNANSWERED` requests had no answer.

A reply with an error counts as no answer. Visits are cancelled while the broker is silent.
"""

_UNANSWERED: Final = 2
"""How many requests in a row must be unanswered before the broker counts as silent.

A loaded broker may take SILENT_S seconds to answer one request.
"""

_ASK_S: Final = 0.5
_PROBE: Final = "probe"
"""The key of the read request by which `listen` tests if the broker still answers.

The test needs no data, so no record has this key: "no such record" is an answer too. The key is read in the bucket of
robots.txt files, the only one that a worker may read in NATS."""


async def cut_short(runtime: Runtime, visits: Tasks, broker: Broker, clock: Clock, *, grace_s: float) -> None:
    """Stop all visits after `grace_s` seconds. Cancel them LAST_REPORTS_S later, or earlier if the broker is silent.

    Stopped visits may still report their results; cancelled ones may not. If the visits end earlier, the caller must
    cancel this function.
    """
    silent = asyncio.Event()
    async with Tasks() as beside:
        beside.start("drain.listen", listen(broker, clock, silent))
        await asyncio.sleep(grace_s)
        runtime.cancel_all()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_REPORTS_S):
                await silent.wait()
    log.warning("visits.cancelled", visits=len(visits), broker="silent" if silent.is_set() else "slow")
    visits.cancel()


async def listen(broker: Broker, clock: Clock, silent: asyncio.Event) -> None:
    """Send probes to the broker until cancelled. Set `silent` while the broker does not answer, clear it when it does.

    The broker is silent after SILENT_S without an answer to several probes.
    """
    answered_at, unanswered = clock.elapsed(), 0
    while True:
        try:
            await broker.get_robots(_PROBE)
        except (Transient, Permanent, Unusable):
            unanswered += 1
            if unanswered >= _UNANSWERED and clock.elapsed() - answered_at >= SILENT_S:
                silent.set()
        else:
            answered_at, unanswered = clock.elapsed(), 0
            silent.clear()
        await asyncio.sleep(_ASK_S)
