"""The chronicle: keeps the stream of events telling what became of crawls and members, and how far the crawls are.

The leader keeps it, level-triggered: it compares what is with what was told last, which a new leader finds in the
stream itself. So a change is told whoever made it, also one from while nobody led; and what came and went between two
looks is not told. Nothing rests on it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog

from api.control.happenings import SeenMember, of_crawl, of_members, seen
from api.control.pace import WINDOWS_S, Pace
from api.control.plane import ControlPlane
from api.control.telling import Telling
from shared.domain.errors import Transient
from shared.domain.frontier import WORKED_ON, CrawlState
from shared.domain.ids import CrawlId, Revision, Term
from shared.domain.ledger import Counters
from shared.ports.clock import Clock
from shared.ports.events import Events
from shared.ports.overview import CrawlStanding, Overview
from shared.wire.events import Event, EventKind, decode_event, events_of
from shared.wire.keys import MemberRecord
from shared.wire.messages import Malformed

log = structlog.get_logger("orb.control")

LOOK_S: Final = 0.5
PROGRESS_S: Final = 1.0
DECLARE_S: Final = 10.0
_WHOLE_S: Final = 60.0
_SHOWN: Final = ("discovered", "queued", "leased", "done", "failed", "excluded", "pages", "bytes", "fetches")
_FRESH_MS: Final = 3_600_000
"""A crawl older than this of which nothing was told is not told of as created: its events have aged."""

_LETTERS: Final = 100
"""Dead letters told of at one look; of a flood the rest is only counted."""

_LATE: Final = 64
"""So far below the newest number a dead letter may still appear: numbers are given before transactions commit."""


class Chronicle:
    """One leader's at a time; on a master that does not lead it waits."""

    def __init__(
        self,
        plane: ControlPlane,
        overview: Overview,
        events: Events,
        telling: Telling,
        clock: Clock,
        member: str,
    ) -> None:
        self._plane = plane
        self._overview = overview
        self._events = events
        self._telling = telling
        self._clock = clock
        self._member = member
        self._term: Term | None = None
        self._crawls: dict[CrawlId, CrawlStanding] = {}
        self._members: dict[EventKind, dict[str, SeenMember]] = {}
        self._paces: dict[CrawlId, Pace] = {}
        self._progress: dict[CrawlId, tuple[Any, ...]] = {}
        self._progress_at = self._declared_at = self._whole_at = float("-inf")
        self._moving: dict[CrawlId, CrawlStanding] = {}
        self._line = 0
        self._letter = 0
        self._letters: set[int] = set()

    def __repr__(self) -> str:
        return f"<Chronicle {self._member} term={self._term} crawls={len(self._crawls)}>"

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.once()
            except Transient as error:
                log.debug("chronicle.waits", error=str(error))
            except Exception:  # whoever cannot work without the database says so; this is no reason to stop a master
                log.exception("chronicle.failed", member=self._member)
            await asyncio.sleep(LOOK_S)

    async def once(self) -> None:
        """One look, where this master leads."""
        term = self._plane.term() if self._plane.is_leader() else None
        if term is None:
            self._term = None
            return
        now_s = self._clock.elapsed()
        if now_s - self._declared_at >= DECLARE_S:  # whoever deletes the stream gets a new one
            await self._events.declare()
            self._declared_at = now_s
        if term != self._term:
            await self._begin()
            self._telling.tell(
                EventKind.LEADER, self._member, "elected", data={"term": int(term), "letter": self._letter}
            )
            self._term = term
        self._look_at_members()
        if await self._crawls_changed(now_s):
            self._look_at_crawls(await self._overview.standings())
            self._whole_at = now_s
        await self._look_at_letters()
        if now_s - self._progress_at >= PROGRESS_S:
            self._progress_at = now_s
            await self._look_at_progress()

    # --- what was told before -----------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Go on where the leader before ended, by what it told last."""
        self._paces, self._progress = {}, {}
        self._moving, self._whole_at = {}, float("-inf")
        self._crawls = {
            standing.crawl_id: standing
            for event in await self._newest(EventKind.CRAWL)
            if (standing := _standing(event)) is not None
        }
        self._members = {
            kind: {event.about: was for event in await self._newest(kind) if (was := _seen(event)) is not None}
            for kind in (EventKind.MASTER, EventKind.WORKER)
        }
        # A leader says how far the letters were told when it began, so that the first of all is not missed.
        told = [
            _letter(event) for kind in (EventKind.DEAD_LETTER, EventKind.LEADER) for event in await self._newest(kind)
        ]
        self._letter = max(told) if told else await self._overview.newest_letter()
        late = await self._overview.letters(self._letter - _LATE, _LATE)
        self._letters = {letter.id for letter in late if letter.id <= self._letter}
        # Nothing told of a crawl: it is new, or what was told has aged.
        for unheard in await self._overview.standings():
            if unheard.crawl_id not in self._crawls and self._aged(unheard):
                self._crawls[unheard.crawl_id] = unheard

    def _aged(self, standing: CrawlStanding) -> bool:
        return standing.created_at_ms < self._clock.unix_ms() - _FRESH_MS

    async def _newest(self, kind: EventKind) -> list[Event]:
        found = []
        for stored in await self._events.newest(events_of(kind)):
            try:
                found.append(decode_event(stored.data))
            except Malformed as error:
                log.warning("events.malformed", sequence=stored.sequence, error=str(error))
        return found

    # --- looks --------------------------------------------------------------------------------------------------------

    def _look_at_members(self) -> None:
        members = self._plane.members()
        for kind, records in ((EventKind.MASTER, members.masters), (EventKind.WORKER, members.workers)):
            now = seen(records)
            for name, action in of_members(self._members.get(kind, {}), now):
                self._telling.tell(kind, name, action, data=_record(records.get(name)))
            self._members[kind] = now

    async def _crawls_changed(self, now_s: float) -> bool:
        """Whether all crawls are to be looked at: an operator has changed something, or one that is worked on is not as
        it was. Lines of the audit log may be seen out of their order, so now and then they are in any case. Until they
        were looked at (`_whole_at`), they are to be."""
        line = await self._overview.newest_line()  # before the crawls are read: what comes later is seen by the next
        moving = {each.crawl_id: each for each in await self._overview.standings(worked_on=True)}
        if moving == self._moving and line == self._line and now_s - self._whole_at < _WHOLE_S:
            return False
        self._moving, self._line, self._whole_at = moving, line, float("-inf")
        return True

    def _look_at_crawls(self, standings: Sequence[CrawlStanding]) -> None:
        now = {standing.crawl_id: standing for standing in standings}
        for crawl_id in sorted({*self._crawls, *now}):
            before, after = self._crawls.get(crawl_id), now.get(crawl_id)
            shown = after or before
            assert shown is not None
            for action in of_crawl(before, after):
                self._telling.tell(EventKind.CRAWL, crawl_id, action, crawl=shown.name, data=_shown(shown, action))
        self._crawls = now
        for crawl_id in self._paces.keys() - now.keys():
            del self._paces[crawl_id]
            self._progress.pop(crawl_id, None)

    async def _look_at_letters(self) -> None:
        found = await self._overview.letters(max(0, self._letter - _LATE), _LATE + _LETTERS)
        for letter in found:
            if letter.id not in self._letters:
                data = {"letter": letter.id, "kind": letter.kind, "partition": letter.partition, "url": letter.url}
                crawl = None if letter.crawl_id is None else self._crawls.get(letter.crawl_id)
                name = "" if crawl is None else crawl.name
                self._telling.tell(EventKind.DEAD_LETTER, letter.crawl_id or 0, "buried", crawl=name, data=data)
                self._letters.add(letter.id)
        if found and found[-1].id > self._letter:
            self._letter = found[-1].id
            if len(found) == _LATE + _LETTERS:
                await self._skip_letters()
            self._letters = {letter for letter in self._letters if letter > self._letter - _LATE}

    async def _skip_letters(self) -> None:
        """Of a flood tell that there is more, and go on at its end."""
        newest = await self._overview.newest_letter()
        if newest > self._letter:
            data = {"letter": newest, "after": self._letter}
            self._telling.tell(EventKind.DEAD_LETTER, 0, "more", data=data)
            late = await self._overview.letters(newest - _LATE, _LATE)
            self._letter, self._letters = newest, {letter.id for letter in late}

    async def _look_at_progress(self) -> None:
        """Of crawls that are under way, and of those that have ended until nothing moves."""
        ended = [self._crawls[crawl_id] for crawl_id in self._crawls.keys() & self._paces.keys() - self._moving.keys()]
        moving = sorted([*self._moving.values(), *ended], key=lambda standing: standing.crawl_id)
        counted = await self._overview.counters([standing.crawl_id for standing in moving])
        now_s = self._clock.elapsed()
        for standing in moving:
            counters = counted.get(standing.crawl_id, Counters())
            pace = self._paces.setdefault(standing.crawl_id, Pace())
            pace.sample(now_s, counters.pages, counters.bytes)
            rates = {window_s: pace.over(window_s) for window_s in WINDOWS_S}
            moved = (
                standing.state,
                counters.version,
                *((rate.pages_per_s, rate.bytes_per_s) for rate in rates.values() if rate is not None),
            )
            if moved != self._progress.get(standing.crawl_id):
                self._progress[standing.crawl_id] = moved
                data = {"state": standing.state, **{name: getattr(counters, name) for name in _SHOWN}}
                data["rates"] = [
                    {
                        "window_s": window_s,
                        "over_s": rate.over_s,
                        "pages_per_s": rate.pages_per_s,
                        "bytes_per_s": rate.bytes_per_s,
                    }
                    for window_s, rate in rates.items()
                    if rate is not None
                ]
                name = standing.name
                self._telling.tell(EventKind.PROGRESS, standing.crawl_id, "counted", crawl=name, data=data)
            still = all(rate is None or (rate.pages_per_s, rate.bytes_per_s) == (0, 0) for rate in rates.values())
            if standing.state not in WORKED_ON and still:
                del self._paces[standing.crawl_id]


def _letter(event: Event) -> int:
    """Up to which dead letter was told when this was; 0 when it does not say so in our words."""
    told = event.data.get("letter")
    return told if isinstance(told, int) else 0


def _shown(standing: CrawlStanding, action: str) -> dict[str, Any]:
    return {
        "revision": standing.revision,
        "version": standing.version,
        "state": CrawlState.DELETED if action == "deleted" else standing.state,
        "reason": standing.finished_reason,
        "created_at_ms": standing.created_at_ms,
    }


def _standing(event: Event) -> CrawlStanding | None:
    """How a crawl stood when this was told; None when it was gone then, or the event cannot be understood."""
    data = event.data
    try:
        state = CrawlState(data["state"])
        if state is CrawlState.DELETED:
            return None
        return CrawlStanding(
            crawl_id=CrawlId(int(event.about)),
            name=event.crawl,
            revision=Revision(int(data["revision"])),
            version=int(data["version"]),
            state=state,
            finished_reason=data.get("reason"),
            created_at_ms=int(data["created_at_ms"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        log.warning("events.not_understood", kind=event.kind, about=event.about, error=repr(error))
        return None


def _record(record: MemberRecord | None) -> Mapping[str, Any]:
    if record is None:
        return {}
    return {
        "started_at_ms": record.started_at_ms,
        "draining": record.draining,
        "version": record.version,
        "address": record.address,
        "pool": record.pool,
    }


def _seen(event: Event) -> SeenMember | None:
    """The member as it was when this was told; None when it had left."""
    started_at_ms, draining = event.data.get("started_at_ms"), event.data.get("draining")
    if event.action == "left" or not isinstance(started_at_ms, int):
        return None
    return SeenMember(started_at_ms, bool(draining))
