"""Publish events to the stream in the background. A call to publish neither fails nor blocks its caller."""

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import structlog

from shared.domain.errors import Permanent, Transient, Unusable
from shared.domain.ids import Partition
from shared.domain.schedules.history import Firing
from shared.ports.clock import Clock
from shared.ports.events import Events
from shared.wire.events import Event, EventKind, encode_event, event_subject

log = structlog.get_logger("orb.control")

MAX_COUNT: Final = 1_000
_GIVEN_UP_S: Final = 5.0


class EventPublisher:
    """Sends one master's events to the broker in the background, in order. Its queue has at most `max_count` events.

    If the queue is full, a new event is dropped, counted and logged. A queued progress event is replaced by a newer one
    of the same crawl.
    """

    def __init__(self, events: Events, clock: Clock, member: str, *, max_count: int = MAX_COUNT) -> None:
        self.dropped = 0
        self._events = events
        self._clock = clock
        self._member = member
        self._max_count = max_count
        self._process = uuid.uuid4().hex
        self._sequence = 0
        self._waiting: OrderedDict[object, tuple[str, Event]] = OrderedDict()
        self._arrived = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._full = False

    def __repr__(self) -> str:
        return f"<EventPublisher {self._member} waiting={len(self._waiting)} dropped={self.dropped}>"

    def publish(
        self,
        kind: EventKind,
        about: object,
        action: str,
        *,
        crawl: str = "",
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Queue an event for publication, without waiting and without raising. Call it on the event loop's thread.

        `about`: the id of the crawl, member, partition or schedule that the event reports on. `crawl`: the name of the
        crawl.
        """
        event = Event(kind, str(about), action, self._clock.unix_ms(), self._member, crawl, dict(data or {}))
        self._sequence += 1
        key: object = (kind, event.about) if kind is EventKind.PROGRESS else self._sequence
        if len(self._waiting) >= self._max_count and key not in self._waiting:
            self.dropped += 1
            if not self._full:
                self._full = True
                log.warning("events.dropped", master=self._member, waiting=len(self._waiting), dropped=self.dropped)
            return
        self._waiting.pop(key, None)
        # Every attempt has the same id, so an event is stored once even if an acknowledgement was lost.
        self._waiting[key] = (f"{self._process}-{self._sequence}", event)
        self._arrived.set()
        self._empty.clear()

    def alarm(self, partition: Partition, text: str) -> None:
        """Queue an event that reports an alarm about a partition. `text`: what happened."""
        self.publish(EventKind.ALARM, partition, "raised", data={"text": text})

    def fired(self, schedule: str, firing: Firing) -> None:
        """Queue an event that reports what was done at a due time of the schedule named `schedule`."""
        data = {
            "schedule": schedule,
            "due_ms": firing.due_ms,
            "verb": firing.verb,
            "missed": firing.missed,
            "crawls": [each.crawl for each in firing.effects],
        }
        self.publish(EventKind.SCHEDULE, firing.schedule_id, firing.outcome, data=data)

    def pressure(self, member: str, resource: str, reason: str | None) -> None:
        """Queue an event: pressure on a member's resource started, or ended if `reason` is None."""
        data = {"resource": resource, "member": member} | ({} if reason is None else {"reason": reason})
        self.publish(EventKind.RESOURCE_PRESSURE, member, "ended" if reason is None else "started", data=data)

    async def run(self) -> None:
        """Publish queued events in order until cancelled. If one cannot be stored now, retry it before the others."""
        while True:
            while not self._waiting:
                self._full = False
                self._empty.set()
                self._arrived.clear()
                await self._arrived.wait()
            key, (message_id, event) = self._waiting.popitem(last=False)
            wait_s = await self._publish(event, message_id)
            if wait_s is not None:
                if key not in self._waiting:  # A newer value may be queued by now.
                    self._waiting[key] = (message_id, event)
                    self._waiting.move_to_end(key, last=False)
                await asyncio.sleep(wait_s)

    async def finish(self, grace_s: float) -> None:
        """Wait until all queued events are published, for at most `grace_s` seconds. `run` must still be running."""
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._empty.wait()
        if self._waiting:
            log.warning("events.abandoned", master=self._member, waiting=len(self._waiting))

    async def _publish(self, event: Event, message_id: str) -> float | None:
        """Try once to publish an event.

        Return None if the broker stored it, or if it was dropped because it cannot be stored. Otherwise return the
        seconds to wait before the next attempt.
        """
        try:
            await self._events.publish(event_subject(event.kind, event.about), encode_event(event), message_id)
        except Transient as error:
            log.debug("event_publishing.delayed", master=self._member, waiting=len(self._waiting) + 1, error=str(error))
            return error.retry_in
        except Unusable as error:  # Events are no reason to stop the master; parts that need the broker stop it.
            log.error("event_publishing.suspended", master=self._member, error=str(error))
            return _GIVEN_UP_S
        except Permanent as error:
            self.dropped += 1
            log.error(
                "event_publishing.refused", kind=event.kind, about=event.about, action=event.action, error=str(error)
            )
        except Exception:  # One bad event must stop neither the others nor the master.
            self.dropped += 1
            log.exception("event_publishing.failed", kind=event.kind, about=event.about, action=event.action)
        return None
