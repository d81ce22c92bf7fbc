"""Events on their way to the stream. Telling one costs its teller nothing: it neither fails nor holds up anything."""

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import structlog

from shared.domain.errors import Permanent, Transient, Unusable
from shared.domain.ids import Partition
from shared.ports.clock import Clock
from shared.ports.events import Events
from shared.wire.events import Event, EventKind, encode_event, event_subject

log = structlog.get_logger("orb.control")

MOST: Final = 1_000
_GIVEN_UP_S: Final = 5.0


class Telling:
    """One master's events: kept in order until the broker has them, `most` at a time.

    What comes when so many wait is dropped, counted, and told to the log. Of what only its newest value matters (a
    crawl's progress) one waits at most.
    """

    def __init__(self, events: Events, clock: Clock, member: str, *, most: int = MOST) -> None:
        self.dropped = 0
        self._events = events
        self._clock = clock
        self._member = member
        self._most = most
        self._process = uuid.uuid4().hex
        self._told = 0
        self._waiting: OrderedDict[object, tuple[str, Event]] = OrderedDict()
        self._news = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._full = False

    def __repr__(self) -> str:
        return f"<Telling {self._member} waiting={len(self._waiting)} dropped={self.dropped}>"

    def tell(
        self,
        kind: EventKind,
        about: object,
        action: str,
        *,
        crawl: str = "",
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Tell that something happened. Never waits, never raises; to be called on the event loop's thread."""
        event = Event(kind, str(about), action, self._clock.unix_ms(), self._member, crawl, dict(data or {}))
        self._told += 1
        key: object = (kind, event.about) if kind is EventKind.PROGRESS else self._told
        if len(self._waiting) >= self._most and key not in self._waiting:
            self.dropped += 1
            if not self._full:
                self._full = True
                log.warning("events.dropped", member=self._member, waiting=len(self._waiting), dropped=self.dropped)
            return
        self._waiting.pop(key, None)
        # One id for every attempt, so that an event is stored once though an answer was lost.
        self._waiting[key] = (f"{self._process}-{self._told}", event)
        self._news.set()
        self._empty.clear()

    def alarm(self, partition: Partition, text: str) -> None:
        """Tell what somebody should look at (`api.frontier.owner.Alarm`)."""
        self.tell(EventKind.ALARM, partition, "raised", data={"text": text})

    def room(self, member: str, reason: str | None) -> None:
        """Tell that a member is short of room, or no more (`api.control.rationing.Heard`)."""
        told = {} if reason is None else {"reason": reason}
        self.tell(EventKind.ROOM, member, "enough" if reason is None else "short", data=told)

    async def run(self) -> None:
        """Publish what is told, until cancelled."""
        while True:
            while not self._waiting:
                self._full = False
                self._empty.set()
                self._news.clear()
                await self._news.wait()
            key, (message_id, event) = self._waiting.popitem(last=False)
            wait_s = await self._publish(event, message_id)
            if wait_s is not None:
                if key not in self._waiting:  # by now there may be something newer to say
                    self._waiting[key] = (message_id, event)
                    self._waiting.move_to_end(key, last=False)
                await asyncio.sleep(wait_s)

    async def finish(self, grace_s: float) -> None:
        """Wait until everything is published, for at most `grace_s`; `run` goes on meanwhile."""
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._empty.wait()
        if self._waiting:
            log.warning("events.left", member=self._member, waiting=len(self._waiting))

    async def _publish(self, event: Event, message_id: str) -> float | None:
        """None when it is done with; else the seconds to wait before it is tried again."""
        try:
            await self._events.publish(event_subject(event.kind, event.about), encode_event(event), message_id)
        except Transient as error:
            log.debug("events.wait", member=self._member, waiting=len(self._waiting) + 1, error=str(error))
            return error.retry_in
        except Unusable as error:  # whoever cannot work without the broker says so; events are no reason to stop
            log.error("events.cut_off", member=self._member, error=str(error))
            return _GIVEN_UP_S
        except Permanent as error:
            self.dropped += 1
            log.error("events.refused", kind=event.kind, about=event.about, action=event.action, error=str(error))
        except Exception:  # one bad event must not end the others, nor the master
            self.dropped += 1
            log.exception("events.failed", kind=event.kind, about=event.about, action=event.action)
        return None
