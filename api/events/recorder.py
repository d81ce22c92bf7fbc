"""Record changes of crawls and members, new dead letters, and the progress of crawls as events.

Only the leader records. It compares the current state with the last recorded one. A new leader reads the recorded state
from the stream of events. So a change is recorded whatever caused it, even if there was no leader at the time. A state
that began and ended between two comparisons is not recorded.

The crawl controller reports which crawls changed (`take`). So the cost of a comparison does not depend on the number
of crawls without changes.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import structlog

from api.events.diff import SeenMember, of_crawl, of_members, seen
from api.events.publisher import EventPublisher
from api.members.control_plane import ControlPlane
from shared.domain.errors import Transient
from shared.domain.frontier.crawl_rows import CrawlChanges
from shared.domain.frontier.states import WORKED_ON, CrawlState
from shared.domain.frontier.store_model import Counters
from shared.domain.ids import CrawlId, Revision, Term
from shared.ports.clock import Clock
from shared.ports.events import Events
from shared.ports.overview import CrawlOverview, Overview
from shared.wire.events import Event, EventKind, decode_event, events_of
from shared.wire.keys import MemberRecord
from shared.wire.messages import Malformed

WINDOWS_S: Final = (10, 60)


@dataclass(frozen=True, slots=True)
class CrawlRate:
    """The pages and bytes that a crawl stored per second, on average over the last `measured_s` seconds.

    The caller of `CrawlRates.over` asks for a period, such as 60 s. `measured_s` is the period between two samples, so
    it may differ a little, such as 60.4. If the samples began only 20 s ago, `measured_s` is 20.
    """

    measured_s: float
    pages_per_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class _Sample:
    at_s: float
    pages: int
    bytes: int


class CrawlRates:
    """Computes the rates of one crawl from recent samples of its stored pages and bytes.

    Times are seconds of a monotonic clock.
    """

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()

    def sample(self, at_s: float, pages: int, size: int, since_s: float = float("-inf")) -> None:
        """Add a sample: at the time `at_s`, the crawl has `pages` stored pages with `size` bytes in total.

        `since_s`: pass this if the crawl was idle after the previous sample. It is the end of the idle time. Example:
        the previous sample was at 100 s, `since_s` is 130 and `at_s` is 131. Then the crawl stored nothing from 100 s
        to 130 s, and all new pages between 130 s and 131 s.
        """
        # The seconds since the previous sample get samples, too, so that a pause counts in the rates.
        if self._samples and (last := self._samples[-1]).at_s < since_s:
            for back_s in range(max(WINDOWS_S), -1, -1):
                if since_s - back_s > last.at_s:
                    self._samples.append(_Sample(since_s - back_s, last.pages, last.bytes))
        self._samples.append(_Sample(at_s, pages, size))
        # The longest window begins at the newest sample that is older than the window.
        while len(self._samples) > 2 and self._samples[1].at_s <= at_s - max(WINDOWS_S):
            self._samples.popleft()

    def over(self, window_s: float) -> CrawlRate | None:
        """Return the average rate in the `window_s` seconds before the newest sample.

        Return None if there are fewer than two samples.
        """
        if len(self._samples) < 2:
            return None
        last = self._samples[-1]
        first = self._samples[0]
        for sample in self._samples:
            if sample.at_s > last.at_s - window_s:
                break
            first = sample
        span_s = last.at_s - first.at_s
        if span_s <= 0:
            return None
        pages, size = max(0, last.pages - first.pages), max(0, last.bytes - first.bytes)
        return CrawlRate(round(span_s, 1), round(pages / span_s, 2), round(size / span_s, 1))


log = structlog.get_logger("orb.control")

LOOK_S: Final = 0.5
PROGRESS_S: Final = 1.0
DECLARE_S: Final = 10.0
_WHOLE_S: Final = 300.0
"""Interval between comparisons of all crawls, which find changes that were missed."""

_SHOWN: Final = ("discovered", "queued", "leased", "done", "failed", "excluded", "pages", "bytes", "fetches")
_FRESH_MS: Final = 3_600_000
"""Maximum age (ms) at which a crawl without events in the stream counts as new, so that its creation is recorded.

An older crawl without events had events once, but they have expired. Its creation is not recorded a second time."""

_LETTERS: Final = 100
"""Maximum dead letters that one comparison records with one event each. One event covers all further ones."""

_LATE: Final = 64
"""How far each pass reads back from the newest recorded dead letter, to find dead letters that were committed late.

Dead letters are numbered before they are committed. Example: number 8 may be committed, and recorded, before number 7.
So the next pass reads the numbers below 8 again, and finds 7."""


class EventRecorder:
    """Publishes what changes in the cluster as events, while its master leads. It does nothing on another master."""

    def __init__(
        self,
        plane: ControlPlane,
        overview: Overview,
        events: Events,
        telling: EventPublisher,
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
        self._crawls: dict[CrawlId, CrawlOverview] = {}
        self._members: dict[EventKind, dict[str, SeenMember]] = {}
        self._paces: dict[CrawlId, CrawlRates] = {}
        self._progress: dict[CrawlId, tuple[Any, ...]] = {}
        self._progress_at = self._declared_at = self._whole_at = float("-inf")
        self._changed: set[CrawlId] = set()
        self._counted: set[CrawlId] = set()
        self._moving: set[CrawlId] = set()
        self._arrived = asyncio.Event()
        self._letter = 0
        self._letters: set[int] = set()

    def __repr__(self) -> str:
        return f"<EventRecorder {self._member} term={self._term} crawls={len(self._crawls)}>"

    def take(self, changes: CrawlChanges) -> None:
        """Note which crawls changed, for the next pass. Start the next pass at once if the row of a crawl changed."""
        self._changed.update(changes.rows)
        self._counted.update(changes.counted)
        if changes.rows:
            self._arrived.set()

    async def run(self) -> None:
        """Run `once` periodically, and after changes of crawls, until cancelled."""
        while True:
            self._arrived.clear()
            try:
                await self.once()
            except Transient as error:
                log.debug("event_recording.delayed", error=str(error))
            except Exception:  # Events are no reason to stop a master; parts that need the database stop it.
                log.exception("event_recording.failed", master=self._member)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._arrived.wait()

    async def once(self) -> None:
        """Record what changed since the last pass, if this master leads."""
        term = self._plane.term() if self._plane.is_leader() else None
        if term is None:
            self._term = None
            self._changed.clear()
            self._counted.clear()
            return
        now_s = self._clock.elapsed()
        if now_s - self._declared_at >= DECLARE_S:  # Recreate the stream if it was deleted.
            await self._events.declare()
            self._declared_at = now_s
        if term != self._term:
            await self._begin()
            self._telling.publish(
                EventKind.LEADER, self._member, "elected", data={"term": int(term), "letter": self._letter}
            )
            self._term = term
        self._look_at_members()
        await self._look_at_crawls(now_s)
        await self._look_at_letters()
        if now_s - self._progress_at >= PROGRESS_S:
            await self._look_at_progress(now_s)

    # --- the recorded state -------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Load the state that earlier leaders recorded, from the newest events in the stream."""
        self._paces, self._progress = {}, {}
        self._whole_at = float("-inf")
        self._crawls = {
            standing.crawl_id: standing
            for event in await self._newest(EventKind.CRAWL)
            if (standing := _standing(event)) is not None
        }
        self._members = {
            kind: {event.about: was for event in await self._newest(kind) if (was := _seen(event)) is not None}
            for kind in (EventKind.MASTER, EventKind.WORKER)
        }
        # The event of each election has the letters recorded until then, so that the very first one is not missed.
        letters = [
            _letter(event) for kind in (EventKind.DEAD_LETTER, EventKind.LEADER) for event in await self._newest(kind)
        ]
        self._letter = max(letters) if letters else await self._overview.newest_letter()
        late = await self._overview.letters(self._letter - _LATE, _LATE)
        self._letters = {letter.id for letter in late if letter.id <= self._letter}
        progress = {event.about: event for event in await self._newest(EventKind.PROGRESS)}
        crawls = await self._overview.crawl_overviews()
        self._moving = {
            crawl.crawl_id
            for crawl in crawls
            if crawl.state in WORKED_ON
            or ((last := progress.get(str(crawl.crawl_id))) is not None and not _is_final(last, crawl.state))
        }
        # A crawl without events is new, or its events have expired.
        for crawl in crawls:
            if crawl.crawl_id not in self._crawls and self._aged(crawl):
                self._crawls[crawl.crawl_id] = crawl

    def _aged(self, standing: CrawlOverview) -> bool:
        return standing.created_at_ms < self._clock.unix_ms() - _FRESH_MS

    async def _newest(self, kind: EventKind) -> list[Event]:
        events = []
        for stored in await self._events.newest(events_of(kind)):
            try:
                events.append(decode_event(stored.data))
            except Malformed as error:
                log.warning("event.rejected", sequence=stored.sequence, error=str(error))
        return events

    # --- steps of a pass ----------------------------------------------------------------------------------------------

    def _look_at_members(self) -> None:
        members = self._plane.members()
        for kind, records in ((EventKind.MASTER, members.masters), (EventKind.WORKER, members.workers)):
            now = seen(records)
            for name, action in of_members(self._members.get(kind, {}), now):
                self._telling.publish(kind, name, action, data=_record(records.get(name)))
            self._members[kind] = now

    async def _look_at_crawls(self, now_s: float) -> None:
        """Record the changes of the crawls that `take` noted. Every `_WHOLE_S` seconds compare all crawls instead."""
        whole = now_s - self._whole_at >= _WHOLE_S
        changed, self._changed = self._changed, set()
        if not whole and not changed:
            return
        try:
            overviews = await self._overview.crawl_overviews(None if whole else changed)
        except BaseException:
            self._changed |= changed  # The next pass looks at them.
            raise
        now = {overview.crawl_id: overview for overview in overviews}
        if whole:
            changed = {*self._crawls, *now}
            self._whole_at = now_s
        for crawl_id in sorted(changed):
            self._compare(crawl_id, now.get(crawl_id))

    def _compare(self, crawl_id: CrawlId, after: CrawlOverview | None) -> None:
        before = self._crawls.get(crawl_id)
        shown = after or before
        if shown is None:  # It was created and deleted since the last pass.
            self._moving.discard(crawl_id)
            return
        for action in of_crawl(before, after):
            self._telling.publish(EventKind.CRAWL, crawl_id, action, crawl=shown.name, data=_shown(shown, action))
        if after is None:
            del self._crawls[crawl_id]
            self._paces.pop(crawl_id, None)
            self._progress.pop(crawl_id, None)
            self._moving.discard(crawl_id)
            return
        self._crawls[crawl_id] = after
        if before != after:
            self._move(crawl_id)

    def _move(self, crawl_id: CrawlId) -> None:
        """Add the crawl to `_moving`: the crawls whose progress `_look_at_progress` examines and publishes.

        Only these crawls are added:

        - a crawl that is seeding, running or paused,
        - a crawl that has ended, until its rates (pages and bytes per second) have fallen to zero.

        If the leader changes before they have, `_begin` of the new leader adds the crawl.
        """
        crawl = self._crawls.get(crawl_id)
        if crawl is not None and (crawl.state in WORKED_ON or crawl_id in self._paces):
            self._moving.add(crawl_id)

    async def _look_at_letters(self) -> None:
        letters = await self._overview.letters(max(0, self._letter - _LATE), _LATE + _LETTERS)
        for letter in letters:
            if letter.id not in self._letters:
                data = {"letter": letter.id, "kind": letter.kind, "partition": letter.partition, "url": letter.url}
                crawl = None if letter.crawl_id is None else self._crawls.get(letter.crawl_id)
                name = "" if crawl is None else crawl.name
                self._telling.publish(EventKind.DEAD_LETTER, letter.crawl_id or 0, "created", crawl=name, data=data)
                self._letters.add(letter.id)
        if letters and letters[-1].id > self._letter:
            self._letter = letters[-1].id
            if len(letters) == _LATE + _LETTERS:
                await self._publish_many_created()
            self._letters = {letter for letter in self._letters if letter > self._letter - _LATE}

    async def _publish_many_created(self) -> None:
        """Publish one event "many_created" that covers all dead letters without an event, instead of one event each.

        Then record all these dead letters as published. Call this if there are too many new dead letters for one read.
        """
        newest = await self._overview.newest_letter()
        if newest > self._letter:
            data = {"letter": newest, "after": self._letter}
            self._telling.publish(EventKind.DEAD_LETTER, 0, "many_created", data=data)
            late = await self._overview.letters(newest - _LATE, _LATE)
            self._letter, self._letters = newest, {letter.id for letter in late}

    async def _look_at_progress(self, now_s: float) -> None:
        """Publish the progress of each crawl that changed since the last call or whose rates are not zero yet."""
        counted, self._counted = self._counted, set()
        for crawl_id in counted:
            self._move(crawl_id)
        # A crawl that was deleted before the first comparison of a leadership is moving, but not known.
        self._moving &= self._crawls.keys()
        moving = sorted(self._moving)
        counters_of = await self._overview.counters(moving) if moving else {}
        since_s, self._progress_at = self._progress_at, now_s
        for crawl_id in moving:
            standing = self._crawls[crawl_id]
            counters = counters_of.get(crawl_id, Counters())
            pace = self._paces.setdefault(crawl_id, CrawlRates())
            pace.sample(now_s, counters.pages, counters.bytes, since_s)
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
                        "measured_s": rate.measured_s,
                        "pages_per_s": rate.pages_per_s,
                        "bytes_per_s": rate.bytes_per_s,
                    }
                    for window_s, rate in rates.items()
                    if rate is not None
                ]
                name = standing.name
                self._telling.publish(EventKind.PROGRESS, standing.crawl_id, "updated", crawl=name, data=data)
            if all(rate is not None and (rate.pages_per_s, rate.bytes_per_s) == (0, 0) for rate in rates.values()):
                self._moving.discard(crawl_id)
                if standing.state not in WORKED_ON:
                    del self._paces[crawl_id]


def _letter(event: Event) -> int:
    """Return the number of the newest dead letter that this event covers; 0 if the event has no such number."""
    number = event.data.get("letter")
    return number if isinstance(number, int) else 0


def _shown(standing: CrawlOverview, action: str) -> dict[str, Any]:
    return {
        "revision": standing.revision,
        "version": standing.version,
        "state": CrawlState.DELETED if action == "deleted" else standing.state,
        "reason": standing.finished_reason,
        "created_at_ms": standing.created_at_ms,
    }


def _standing(event: Event) -> CrawlOverview | None:
    """Return the crawl's state in this event; None if the crawl was deleted or the event cannot be read."""
    data = event.data
    try:
        state = CrawlState(data["state"])
        if state is CrawlState.DELETED:
            return None
        return CrawlOverview(
            crawl_id=CrawlId(int(event.about)),
            name=event.crawl,
            revision=Revision(int(data["revision"])),
            version=int(data["version"]),
            state=state,
            finished_reason=data.get("reason"),
            created_at_ms=int(data["created_at_ms"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        log.warning("event.ignored", kind=event.kind, about=event.about, error=repr(error))
        return None


def _is_final(progress: Event, state: CrawlState) -> bool:
    """Return True if an ended crawl's newest progress event shows the crawl's present `state` and rates of zero."""
    rates = progress.data.get("rates")
    return (
        progress.data.get("state") == state
        and isinstance(rates, list)
        and len(rates) > 0
        and all(isinstance(r, dict) and (r.get("pages_per_s"), r.get("bytes_per_s")) == (0, 0) for r in rates)
    )


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
    """Return the member's state that this event reports; None if the event reports that the member left."""
    started_at_ms, draining = event.data.get("started_at_ms"), event.data.get("draining")
    if event.action == "left" or not isinstance(started_at_ms, int):
        return None
    return SeenMember(started_at_ms, bool(draining))
